// Streams that wait for words in memory, write them, and call functions of the host.
#include "calls.h"

#include <atomic>
#include <chrono>

namespace fake_driver {
namespace {

/// A GPU works by itself. The thread begins with the first wait, as others' tests find more mistakes without it.
void work_by_itself() {
  static const bool begun = [] {
    std::thread([] {
      for (;;) {
        bool moved = false;
        {
          const Lock lock(world().mutex);
          moved = work_some();
        }
        // Whoever takes a lock again at once may have it for ever.
        moved ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }).detach();
    return true;
  }();
  (void)begun;
}

/// The word must be the host's, and CUDA's too.
std::uint32_t* word_at(CUdeviceptr address) {
  const Allocation* const found = find_allocation(address);
  const bool fits = found && found->kind != Allocation::Kind::kDevice && address % sizeof(std::uint32_t) == 0;
  return fits ? reinterpret_cast<std::uint32_t*>(address) : nullptr;
}

CUresult stream_wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  FAKE_CALL("cuStreamWaitValue32");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  std::uint32_t* const word = word_at(address);
  const bool flushes = (flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0;
  if (!word || (flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)) != CU_STREAM_WAIT_VALUE_GEQ)
    return CUDA_ERROR_INVALID_VALUE;
  if (flushes) ++world().staged.flushes;
  work_by_itself();
  (void)note({.what = Given::What::kWaitForWord, .stream = stream});
  return give(*queue, [word, value](const std::shared_ptr<GraphRun>&) -> Work {
    return [word, value] {
      const std::uint32_t now = std::atomic_ref(*word).load(std::memory_order_acquire);
      return static_cast<std::int32_t>(now - value) >= 0;
    };
  });
}

CUresult stream_write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  FAKE_CALL("cuStreamWriteValue32");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  std::uint32_t* const word = word_at(address);
  if (!word || flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  return give(*queue, [word, value](const std::shared_ptr<GraphRun>&) -> Work {
    return [word, value] {
      std::atomic_ref(*word).store(value, std::memory_order_release);
      return true;
    };
  });
}

/// The function finds the driver's lock taken: it may not wait for anybody who calls CUDA.
CUresult launch_host(CUstream stream, CUhostFn function, void* data) {
  FAKE_CALL("cuLaunchHostFunc");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  work_by_itself();
  return give(*queue, [function, data](const std::shared_ptr<GraphRun>&) -> Work {
    return [function, data] {
      call_back(function, data);
      return true;
    };
  });
}

template <class Function>
void* entry(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::vector<Entry> word_entries() {
  return {{"cuStreamWaitValue32", entry(stream_wait_value)},
          {"cuStreamWriteValue32", entry(stream_write_value)},
          {"cuLaunchHostFunc", entry(launch_host)}};
}

}  // namespace fake_driver
