#include "cuda/device.h"
#include "cuda/driver.h"

#include <fmt/format.h>

#include <cstring>
#include <list>
#include <mutex>
#include <utility>

namespace tutti::cuda {
namespace {

CUcontext context_of(const Device& device) { return static_cast<CUcontext>(device.context()); }

/// A stream of the library's own, which no capture sees and no other stream waits for.
class PrivateStream {
 public:
  PrivateStream() : status_(driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING)) {}
  ~PrivateStream() {
    if (stream_) (void)driver().stream_destroy(stream_);
  }
  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;
  const Status& status() const { return status_; }
  CUstream get() const { return stream_; }
  Status wait() const { return driver().stream_synchronize(stream_); }

 private:
  CUstream stream_ = nullptr;
  Status status_;
};

CUdeviceptr address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

Status copy(const Device& device, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  if (bytes == 0) return {};
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  const PrivateStream stream;
  TUTTI_TRY(stream.status());
  TUTTI_TRY(driver().copy_async(to, from, bytes, stream.get()));
  return stream.wait();
}

}  // namespace

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<Device> device, std::size_t bytes) {
  const ContextScope scope(context_of(*device));
  TUTTI_TRY(scope.status());
  CUdeviceptr data = 0;
  if (Status made = driver().mem_alloc(&data, bytes); !made.ok()) {
    return error(Code::kUnhandledCuda, fmt::format("{} bytes of device {}'s memory: {}", bytes, device->facts().ordinal,
                                                   made.error().message));
  }
  DeviceMemory memory;
  memory.device_ = std::move(device);
  memory.data_ = reinterpret_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  const PrivateStream stream;
  TUTTI_TRY(stream.status());
  TUTTI_TRY(driver().set_bytes_async(data, 0, bytes, stream.get()));
  TUTTI_TRY(stream.wait());
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (!data_) return;
  const ContextScope scope(context_of(*device_));
  if (scope.is_gone()) return;
  (void)driver().mem_free(address(data_));
}

Status DeviceMemory::write(std::size_t offset, const void* from, std::size_t bytes) const {
  return copy(*device_, address(data_ + offset), reinterpret_cast<CUdeviceptr>(from), bytes);
}

Status DeviceMemory::read(std::size_t offset, void* to, std::size_t bytes) const {
  return copy(*device_, reinterpret_cast<CUdeviceptr>(to), address(data_ + offset), bytes);
}

Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<Device> device, std::size_t bytes) {
  const ContextScope scope(context_of(*device));
  TUTTI_TRY(scope.status());
  void* data = nullptr;
  TUTTI_TRY(driver().host_alloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  PinnedMemory memory;
  memory.device_ = std::move(device);
  memory.data_ = static_cast<std::byte*>(data);
  std::memset(data, 0, bytes);
  CUdeviceptr mapped = 0;
  TUTTI_TRY(driver().host_device_pointer(&mapped, data, 0));
  if (mapped != address(memory.data_)) {
    return error(Code::kUnhandledCuda, "the driver maps pinned memory at another address (no unified addressing)");
  }
  return memory;
}

PinnedMemory::~PinnedMemory() {
  if (!data_) return;
  const ContextScope scope(context_of(*device_));
  if (scope.is_gone()) return;
  (void)driver().host_free(data_);
}

Result<void*> copy_aside(const Device& device, const void* from, std::size_t bytes, StreamHandle stream) {
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  CUdeviceptr copy = 0;
  TUTTI_TRY(driver().mem_alloc_async(&copy, bytes, static_cast<CUstream>(stream)));
  Status copied = driver().copy_async(copy, reinterpret_cast<CUdeviceptr>(from), bytes, static_cast<CUstream>(stream));
  if (copied.ok()) return reinterpret_cast<void*>(copy);
  (void)driver().mem_free_async(copy, static_cast<CUstream>(stream));
  return copied.error();
}

Status free_aside(const Device& device, void* copy, StreamHandle stream) {
  // Freed even if the context could not be made current: the stream has one.
  const ContextScope scope(context_of(device));
  return driver().mem_free_async(reinterpret_cast<CUdeviceptr>(copy), static_cast<CUstream>(stream));
}

Result<Event> Event::create(std::shared_ptr<Device> device) {
  const ContextScope scope(context_of(*device));
  TUTTI_TRY(scope.status());
  CUevent event = nullptr;
  TUTTI_TRY(driver().event_create(&event, CU_EVENT_DISABLE_TIMING));
  Event made;
  made.device_ = std::move(device);
  made.event_ = event;
  return made;
}

Event::~Event() {
  if (!event_) return;
  const ContextScope scope(context_of(*device_));
  if (scope.is_gone()) return;
  (void)driver().event_destroy(static_cast<CUevent>(event_));
}

Status Event::record(StreamHandle stream, unsigned how) const {
  const ContextScope scope(context_of(*device_), ContextUse::kStreams);
  TUTTI_TRY(scope.status());
  return driver().event_record(static_cast<CUevent>(event_), static_cast<CUstream>(stream), how);
}

Status Event::hold(const Device& device, StreamHandle stream, unsigned how) const {
  const ContextScope scope(context_of(device), ContextUse::kStreams);
  TUTTI_TRY(scope.status());
  return driver().stream_wait_event(static_cast<CUstream>(stream), static_cast<CUevent>(event_), how);
}

Status Event::record(StreamHandle stream) const { return record(stream, CU_EVENT_RECORD_DEFAULT); }
Status Event::hold(const Device& device, StreamHandle stream) const {
  return hold(device, stream, CU_EVENT_WAIT_DEFAULT);
}
Status Event::record_by_launches(StreamHandle stream) const { return record(stream, CU_EVENT_RECORD_EXTERNAL); }
Status Event::hold_launches(const Device& device, StreamHandle stream) const {
  return hold(device, stream, CU_EVENT_WAIT_EXTERNAL);
}

Result<bool> Event::is_complete() const {
  const ContextScope scope(context_of(*device_));
  TUTTI_TRY(scope.status());
  const CUresult result = driver().event_query.raw(static_cast<CUevent>(event_));
  if (result == CUDA_SUCCESS) return true;
  if (result == CUDA_ERROR_NOT_READY) return false;
  return driver_error(driver().event_query.name(), result);
}

Result<OwnStream> OwnStream::create(std::shared_ptr<Device> device) {
  const ContextScope scope(context_of(*device));
  TUTTI_TRY(scope.status());
  CUstream stream = nullptr;
  TUTTI_TRY(driver().stream_create(&stream, CU_STREAM_NON_BLOCKING));
  OwnStream made;
  made.device_ = std::move(device);
  made.stream_ = stream;
  return made;
}

OwnStream::~OwnStream() {
  if (!stream_) return;
  const ContextScope scope(context_of(*device_));
  if (scope.is_gone()) return;
  (void)driver().stream_destroy(static_cast<CUstream>(stream_));
}

Result<Capture> capture_of(const Device& device, StreamHandle stream) {
  const ContextScope scope(context_of(device), ContextUse::kStreams);
  TUTTI_TRY(scope.status());
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUresult result =
      driver().stream_capture_info.raw(static_cast<CUstream>(stream), &status, &id, &graph, nullptr, nullptr);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return error(Code::kInvalidUsage,
                 "the legacy default stream waits for a stream that is captured into a graph, and cannot be used "
                 "before that capture ends; use another stream, or capture one that was made with "
                 "cudaStreamNonBlocking");
  }
  if (result != CUDA_SUCCESS) return driver_error(driver().stream_capture_info.name(), result);
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return error(Code::kInvalidUsage, "the stream's capture into a graph was invalidated by an earlier error; end it");
  }
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? Capture{id, graph, device.facts().ordinal} : Capture{};
}

namespace {

struct HeldByGraph {
  std::shared_ptr<void> memory;
  int device = 0;
};
/// What graphs have let go of, until somebody may call CUDA.
struct Released {
  std::mutex mutex;
  std::list<HeldByGraph> all;
};
Released& released() {
  static auto* made = new Released;
  return *made;
}

/// A list of one: whoever ends the graph may have no memory for it.
void CUDA_CB let_go(void* pointer) {
  const std::unique_ptr<std::list<HeldByGraph>> held(static_cast<std::list<HeldByGraph>*>(pointer));
  const std::lock_guard lock(released().mutex);
  released().all.splice(released().all.end(), *held);
}

}  // namespace

void release_graph_memory(const std::function<bool(int)>& may_free) {
  std::list<HeldByGraph> gone;  // ends after the lock: what it frees may come back here
  const std::lock_guard lock(released().mutex);
  auto& all = released().all;
  for (auto one = all.begin(); one != all.end();) {
    const auto its = one++;
    if (may_free(its->device)) gone.splice(gone.end(), all, its);
  }
}

Status keep_for_graph(const Capture& capture, std::shared_ptr<void> held) {
  release_graph_memory([&](int device) { return device == capture.device; });
  auto one = std::make_unique<std::list<HeldByGraph>>();
  one->push_back({std::move(held), capture.device});
  CUuserObject object = nullptr;
  TUTTI_TRY(driver().user_object_create(&object, one.get(), let_go, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  (void)one.release();
  Status kept = driver().graph_retain_object(static_cast<CUgraph>(capture.graph), object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (!kept.ok()) (void)driver().user_object_release(object, 1);
  return kept;
}

}  // namespace tutti::cuda
