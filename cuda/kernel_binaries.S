// The fat binaries that nvcc made, as they are. kernel_images.cpp has their table.
#define TUTTI_TEXT(x) #x
#define TUTTI_DATA_TYPE(enumerator, name)          \
  .balign 64;                                      \
  .hidden tutti_image_##name##_begin;              \
  .hidden tutti_image_##name##_end;                \
  .global tutti_image_##name##_begin;              \
  .global tutti_image_##name##_end;                \
  tutti_image_##name##_begin:                      \
  .incbin TUTTI_TEXT(name.fatbin);                 \
  tutti_image_##name##_end:                        \
  .byte 0;

  .section .rodata
#include "cuda/data_types.def"
  .section .note.GNU-stack, "", %progbits
