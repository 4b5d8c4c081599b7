// Ranks that are processes and share device 0.
#pragma once

#include <cstddef>
#include <string>

namespace tutti::test {

struct ProcessesTime {
  double us = 0;    ///< median of one all-reduce, as rank 0 saw it
  std::string why;  ///< not empty: it has none
};
/// An all-reduce of so many bytes of float32 per rank, checked and then timed. `windows`: buffers that all ranks have registered, which are
/// worked on in place; else what cudaMalloc gives. To be called before this process uses CUDA.
ProcessesTime time_processes(int ranks, std::size_t bytes, int repeats, bool windows);

}  // namespace tutti::test
