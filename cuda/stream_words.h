// What a stream and a thread of this process tell each other: words in pinned memory that the stream writes and waits for, and copies
// between a device and host memory that is registered with it.
#pragma once

#include "cuda/device.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti::cuda {

/// Host memory of somebody else, pinned while this lives: copies to and from devices need not wait for anything then.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  RegisteredMemory(RegisteredMemory&& other) noexcept { swap(other); }
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~RegisteredMemory();
  /// `memory` must outlive what comes back.
  static Result<RegisteredMemory> add(std::shared_ptr<Device> device, void* memory, std::size_t bytes);

 private:
  void swap(RegisteredMemory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
  }
  std::shared_ptr<Device> device_;
  void* memory_ = nullptr;
};

/// Between memory of the device and memory that is pinned or registered, in the stream's order. Either may be the user's, and managed or
/// pinned, too: for a copy from host memory to host memory CUDA would have the caller wait until the stream has made it, so that a kernel
/// does that, where it reaches both.
Status copy_on_stream(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream);

/// The same, into the device's memory by a copy engine, however few the bytes are, unless there is but one.
Status copy_by_engine(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream);

/// The word, in PinnedMemory, has the value once everything before it on the stream is done, and can be seen by whoever has read the value.
Status write_word(const Device& device, std::uint32_t* word, std::uint32_t value, StreamHandle stream);

/// Whether a wait for a word can make sure that what follows it sees what others (a network's adapter) wrote to the device's memory before.
Result<bool> can_flush(const Device& device);

/// What the stream is given from now on waits until the word has come as far as the value: numbers that grow, and may wrap round. No
/// thread and no kernel waits. `flushes`: it sees what others wrote before, where can_flush().
Status wait_for_word(const Device& device, const std::uint32_t* word, std::uint32_t value, StreamHandle stream,
                     bool flushes = false);

/// Calls function(data) in a thread of the driver's when the stream comes here, in a graph at each replay; what follows waits for its end. It
/// must not call CUDA, nor wait for what another such function has to do.
Status call_host(const Device& device, void (*function)(void*), void* data, StreamHandle stream);

}  // namespace tutti::cuda
