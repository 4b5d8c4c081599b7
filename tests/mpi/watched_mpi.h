// What the plug-in asks MPI for, looked at and meddled with: the program's functions go before the library's.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>

namespace tutti::test {

inline std::atomic<long> mpi_calls{0};

/// Messages of users' memory, sent and received.
struct Posted {
  std::atomic<long> messages{0};
  std::atomic<long> on_gpu{0};  ///< of them: in memory of the GPU
  std::atomic<long> bytes{0};
  std::atomic<long> without_context{0};
  std::atomic<long> cancelled{0};
};
inline Posted posted;

/// What happens to such messages when they are sent; kRefuse: no request is looked at.
enum class Meddling { kNone, kWithhold, kFail, kRefuse };
inline std::atomic<Meddling> meddling{Meddling::kNone};
/// All ranks have posted one; a send does not fail before, or the rank that receives may hear of it before it has.
inline std::atomic<bool> all_have_posted{false};
/// The withheld send waits for nothing any more.
void drop_withheld();

/// This is memory of the GPU, or is not any more (0 bytes).
void note_gpu_memory(const void* data, std::size_t bytes);

}  // namespace tutti::test
