// Ranks that are processes and share device 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::test {

struct ProcessesTime {
  double us = 0;    ///< median of one all-reduce, as rank 0 saw it
  std::string why;  ///< not empty: it has none
};
/// What the ranks' buffers are.
enum class ProcessBuffers : std::uint8_t {
  kOwn,        ///< cudaMalloc's: copied into staging
  kAllocated,  ///< ncclMemAlloc's: worked on in place when the ranks agree
  kWindows,    ///< and in windows of all ranks: worked on in place
};
/// An all-reduce of so many bytes of float32 per rank, checked and then timed. To be called before this process uses CUDA.
ProcessesTime time_processes(int ranks, std::size_t bytes, int repeats, ProcessBuffers kind);

}  // namespace tutti::test
