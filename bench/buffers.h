// A rank's buffers: private (malloc) or shared (tuttiMemAlloc) memory, with guard bytes before and after the part in
// use.
#pragma once

#include "base/result.h"

#include <nccl.h>

#include <cstddef>

namespace tutti::bench {

class Buffer {
 public:
  enum class Kind { kPrivate, kShared };

  /// `registered_with`: the communicator the memory is registered with, or nullptr. All ranks make their buffers in the
  /// same order.
  static Result<Buffer> make(std::size_t bytes, Kind kind, ncclComm_t registered_with);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

  std::byte* data() const { return base_ + kGuardBytes; }
  /// Writes the guards around the first `bytes` of the data.
  void set_guards(std::size_t bytes);
  /// Guard bytes that have changed since.
  std::size_t damaged_guards(std::size_t bytes) const;

 private:
  Buffer() = default;
  static constexpr std::size_t kGuardBytes = 256;
  static constexpr std::byte kGuard{0xa7};

  std::byte* base_ = nullptr;
  Kind kind_ = Kind::kPrivate;
  ncclComm_t comm_ = nullptr;
  void* registration_ = nullptr;
};

}  // namespace tutti::bench
