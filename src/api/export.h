// Which symbols the libraries export, and the three names of every NCCL function.
//
// The body is tutti_api_X, in libtutti.so. Two aliases there carry NCCL's names: pncclX, strong, and ncclX, weak, so
// that a profiler may define its own ncclX and call pncclX. libnccl.so.2 has the same two names, which jump to
// tutti_api_X (nccl_stubs.c): a process that loads both libraries has one state, whichever name is found first.
#pragma once

#define TUTTI_EXPORT __attribute__((visibility("default")))

// GCC wants an alias to promise what its target's body shows, that it throws nothing; clang takes the promise for an
// exception specification, which nccl.h's declarations do not have.
#if defined(__clang__)
#define TUTTI_ALIAS_ATTRIBUTES
#else
#define TUTTI_ALIAS_ATTRIBUTES nothrow,
#endif

/// Opens the definition of ncclX, pncclX and tutti_api_X.
#define TUTTI_NCCL_API(result, name, ...)                                      \
  extern "C" TUTTI_EXPORT result tutti_api_##name(__VA_ARGS__);                \
  extern "C" TUTTI_EXPORT result pnccl##name(__VA_ARGS__)                      \
      __attribute__((TUTTI_ALIAS_ATTRIBUTES alias("tutti_api_" #name)));       \
  extern "C" TUTTI_EXPORT result nccl##name(__VA_ARGS__)                       \
      __attribute__((TUTTI_ALIAS_ATTRIBUTES weak, alias("tutti_api_" #name))); \
  extern "C" result tutti_api_##name(__VA_ARGS__)

/// Opens the definition of a function of tutti/*.h.
#define TUTTI_API(result, name, ...)                \
  extern "C" TUTTI_EXPORT result name(__VA_ARGS__); \
  extern "C" result name(__VA_ARGS__)
