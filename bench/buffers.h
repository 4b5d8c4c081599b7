// A rank's buffers: private (malloc) or shared (tuttiMemAlloc) memory, with guard bytes before and after the part in
// use. On a GPU they have a copy in host memory, which is written and looked at in their place.
#pragma once

#include "gpu.h"

#include "base/result.h"

#include <nccl.h>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::bench {

class Buffer {
 public:
  enum class Kind { kPrivate, kShared };

  /// `registered_with`: the communicator the memory is registered with, or nullptr. All ranks make their buffers in the
  /// same order. `gpu`: on the calling thread's GPU, or nullptr.
  static Result<Buffer> make(std::size_t bytes, Kind kind, ncclComm_t registered_with, const Gpu* gpu);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

  /// What calls get.
  std::byte* address() const { return base_ + kGuardBytes; }
  /// The same bytes where the program can write and read them.
  std::byte* data() { return host() + kGuardBytes; }
  const std::byte* data() const { return host() + kGuardBytes; }
  /// The first `bytes` of the data, guards included, to and from a GPU; on host memory there is nothing to do.
  Status upload(std::size_t bytes) const;
  Status download(std::size_t bytes);
  /// Writes the guards around the first `bytes` of the data.
  void set_guards(std::size_t bytes);
  /// Guard bytes that have changed since.
  std::size_t damaged_guards(std::size_t bytes) const;

 private:
  Buffer() = default;
  static constexpr std::size_t kGuardBytes = 256;
  static constexpr std::byte kGuard{0xa7};

  std::byte* host() { return gpu_ ? copy_.data() : base_; }
  const std::byte* host() const { return gpu_ ? copy_.data() : base_; }

  std::byte* base_ = nullptr;
  const Gpu* gpu_ = nullptr;
  std::vector<std::byte> copy_;
  Kind kind_ = Kind::kPrivate;
  ncclComm_t comm_ = nullptr;
  void* registration_ = nullptr;
};

/// Of ranks that are threads: where one has failed, others may be at work on its buffers still, which stay until all have ended.
class KeptBuffers {
 public:
  void add(Buffer&& buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> buffers_;
};

}  // namespace tutti::bench
