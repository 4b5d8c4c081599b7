/* All of libnccl.so.2: NCCL's names, each one jump to the function in libtutti.so. No state lives here. A jump leaves
 * registers and stack alone, so that it serves every signature. */

#if defined(__x86_64__)
#define TUTTI_JUMP(target) "endbr64\n jmp " target "@PLT\n"
#elif defined(__aarch64__)
#define TUTTI_JUMP(target) "hint #34\n b " target "\n" /* bti c */
#else
#error "libnccl.so.2's jumps are written for x86-64 and aarch64; add this processor's here"
#endif

#define TUTTI_STUB(binding, name, target) \
  __asm__(                                \
      ".text\n .p2align 4\n"              \
      "." binding " " name                \
      "\n"                                \
      ".type " name ", %function\n" name ":\n" TUTTI_JUMP(target) ".size " name ", .-" name "\n");

#define TUTTI_ENTRY(name)                              \
  TUTTI_STUB("weak", "nccl" #name, "tutti_api_" #name) \
  TUTTI_STUB("globl", "pnccl" #name, "tutti_api_" #name)
#include "entry_points.def"
#undef TUTTI_ENTRY

TUTTI_STUB("globl", "ncclResetDebugInitInternal", "tutti_api_ResetDebugInitInternal")
