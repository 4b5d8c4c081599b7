// The fat binary that nvcc made of kernels.cu, as it is.
  .section .rodata
  .balign 64
  .hidden tutti_trainer_image
  .global tutti_trainer_image
  tutti_trainer_image:
  .incbin "trainer.fatbin"
  .byte 0
  .section .note.GNU-stack, "", %progbits
