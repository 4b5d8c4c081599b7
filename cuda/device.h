// A GPU as this process uses it: its primary context with the library's kernels, and the memory, events and streams that the library
// owns there. No CUDA header is needed to include this; built without CUDA, open() says so.
#pragma once

#include "base/result.h"
#include "cuda/kernel_abi.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::cuda {

/// A cudaStream_t: a stream of CUDA's, or one of its numbers for default streams (0, 1: legacy, 2: per thread).
using StreamHandle = void*;

/// The calling thread's own default stream: another thread that uses the number means another stream.
inline bool is_per_thread_stream(StreamHandle stream) { return reinterpret_cast<std::uintptr_t>(stream) == 2; }

/// Success if a driver with a device is there; else why not.
Status find_devices();
/// Whether somebody in this process has asked, and there was one, be it too old. Costs nothing.
bool devices_are_known();
/// The devices that this process sees.
Result<int> device_count();
/// That of the context that is current on this thread; 0 where none is.
Result<int> current_device();

struct DeviceFacts {
  int ordinal = 0;
  std::array<std::uint8_t, 16> uuid{};
  std::array<char, 16> bus_id{};  ///< "0000:17:00.0"
  std::uint32_t multiprocessors = 0;
};

/// Open while anybody holds it; all kernels are loaded at once, as loading one later would wait for kernels that run.
class Device {
 public:
  /// The same object for everybody in this process.
  static Result<std::shared_ptr<Device>> open(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceFacts& facts() const { return facts_; }
  void* context() const { return context_; }
  /// kThreads threads in each of `blocks`; `arguments`: the kernel's one argument, copied.
  Status launch(KernelKind kind, DataType type, std::uint32_t blocks, const void* arguments, StreamHandle stream) const;
  /// The same of kNothingKernel (no arguments: nullptr) and kCopyKernel.
  Status launch_copy(const CopyLaunch& copy, std::uint32_t blocks, StreamHandle stream) const;
  Status launch_nothing(StreamHandle stream) const;
  /// Blocks of any kernel that are resident at once.
  std::uint32_t resident_blocks() const { return resident_blocks_; }
  /// Whether the machine lets this device load from and store to the other's memory.
  Result<bool> can_reach(const Device& other) const;
  /// Lets it: only where it can. False: it reaches as many others' as it may.
  Result<bool> reach(const Device& other) const;

 private:
  Device() = default;
  Status start(int ordinal);
  Status load_kernels();
  Status run(void* function, std::uint32_t blocks, const void* arguments, StreamHandle stream) const;

  DeviceFacts facts_;
  void* context_ = nullptr;
  std::vector<void*> modules_;
  std::array<std::array<void*, kDataTypes>, kKernelKinds> kernels_{};
  void* copy_ = nullptr;
  void* nothing_ = nullptr;
  std::uint32_t resident_blocks_ = 0;
};

/// The device's context is the calling thread's until another one is: for code of others that calls CUDA there.
Status make_current(const Device& device);

/// Of the stream alone, also where another one has had its handle; 0: of the legacy default stream. Of this thread's own, if that is named.
Result<std::uint64_t> stream_id(const Device& device, StreamHandle stream);

/// Whether what the default stream is given waits for this stream, or is waited for by it; so it is of default streams themselves.
Result<bool> follows_default_stream(const Device& device, StreamHandle stream);

/// A copy of `from`, made and freed in the stream's order, so that a capture takes both.
Result<void*> copy_aside(const Device& device, const void* from, std::size_t bytes, StreamHandle stream);
Status free_aside(const Device& device, void* copy, StreamHandle stream);

/// Memory of a device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory();
  /// Zeroes, once the device is done with what it was given before.
  static Result<DeviceMemory> allocate(std::shared_ptr<Device> device, std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Copies from the host, and waits for the copy, also while a stream of this thread is being captured.
  Status write(std::size_t offset, const void* from, std::size_t bytes) const;
  Status read(std::size_t offset, void* to, std::size_t bytes) const;

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Host memory that kernels of all devices reach at the same address; zero at first.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PinnedMemory();
  static Result<PinnedMemory> allocate(std::shared_ptr<Device> device, std::size_t bytes);
  std::byte* data() const { return data_; }

 private:
  void swap(PinnedMemory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
  }
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
};

/// Host memory of the program's, shared with other processes perhaps, that streams of this process's devices write and look at.
class SharedWords {
 public:
  SharedWords() = default;
  SharedWords(SharedWords&& other) noexcept { swap(other); }
  SharedWords& operator=(SharedWords&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SharedWords();
  /// Whole pages, which outlive it. Others in this process may name the same ones.
  static Result<SharedWords> of(std::shared_ptr<Device> device, void* memory, std::size_t bytes);
  /// Where the device reaches it.
  std::uint64_t address() const { return address_; }

 private:
  void swap(SharedWords& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    std::swap(address_, other.address_);
  }
  std::shared_ptr<Device> device_;
  void* memory_ = nullptr;
  std::uint64_t address_ = 0;
};

/// A store or a wait of a stream, at an address of SharedWords. A store comes behind all memory accesses that the stream was given
/// before; a wait is over when the word has a bit of `value`, and uses nothing of the GPU meanwhile.
struct StreamWord {
  bool waits = false;
  std::uint64_t address = 0;
  std::uint32_t value = 0;
};
/// In order. At most 128.
Status give_words(const Device& device, std::span<const StreamWord> words, StreamHandle stream);

/// Orders streams, of any device. Recording it again does not change what waits for an earlier record.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept { swap(other); }
  Event& operator=(Event&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Event();
  static Result<Event> create(std::shared_ptr<Device> device);
  Status record(StreamHandle stream) const;
  /// What `stream` of `device` is given from now on waits for the last record.
  Status hold(const Device& device, StreamHandle stream) const;
  /// Of a stream that is captured: each launch of the graph records the event in the outside world, and waits for what was recorded there when
  /// it was made. The graph needs the event as long as it lives.
  Status record_by_launches(StreamHandle stream) const;
  Status hold_launches(const Device& device, StreamHandle stream) const;
  /// Whether the last record is reached.
  Result<bool> is_complete() const;

 private:
  Status record(StreamHandle stream, unsigned how) const;
  Status hold(const Device& device, StreamHandle stream, unsigned how) const;
  void swap(Event& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
  }
  std::shared_ptr<Device> device_;
  void* event_ = nullptr;
};

/// A stream of the library's own, which neither waits for default streams nor is waited for by them.
class OwnStream {
 public:
  OwnStream() = default;
  OwnStream(OwnStream&& other) noexcept { swap(other); }
  OwnStream& operator=(OwnStream&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OwnStream();
  static Result<OwnStream> create(std::shared_ptr<Device> device);
  StreamHandle handle() const { return stream_; }

 private:
  void swap(OwnStream& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
  }
  std::shared_ptr<Device> device_;
  void* stream_ = nullptr;
};

/// A capture into a graph that a stream takes part in.
struct Capture {
  std::uint64_t id = 0;  ///< 0: none is under way
  void* graph = nullptr;
  int device = 0;  ///< the stream's
};
/// kInvalidUsage: the capture was invalidated, or it is the legacy default stream, and one that waits for that is captured. The program's
/// mistake: nothing is spoilt by asking.
Result<Capture> capture_of(const Device& device, StreamHandle stream);
/// `held` lives until the graph, and all that was made of it, is gone. The last reference goes in the next call of this function for the same
/// device, or of release_graph_memory() that may free there: CUDA may not be called from where a graph ends, and before it frees memory it may
/// wait for all that is on the device.
Status keep_for_graph(const Capture& capture, std::shared_ptr<void> held);
/// `may_free`: of a device.
void release_graph_memory(const std::function<bool(int)>& may_free);

}  // namespace tutti::cuda
