#include "world.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace fake_driver {

World& world() {
  static auto* made = [] {
    auto* w = new World;
    if (const char* count = std::getenv("FAKE_CUDA_DEVICES")) w->devices = std::atoi(count);
    w->queues.insert(&w->legacy);
    return w;
  }();
  return *made;
}

int& depth_inside() {
  static thread_local int depth = 0;
  return depth;
}
bool is_inside() { return depth_inside() != 0; }

std::vector<CUcontext>& context_stack() {
  // As in a driver, it is there in exit handlers, when a thread's own objects with destructors are gone.
  static std::mutex mutex;
  static auto& all = *new std::deque<std::vector<CUcontext>>;
  static thread_local std::vector<CUcontext>* const stack = [] {
    const std::lock_guard lock(mutex);
    return &all.emplace_back();
  }();
  return *stack;
}
CUstreamCaptureMode& capture_mode() {
  static thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

namespace {
char contexts[64];
}  // namespace

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }
int device_of(CUcontext context) { return static_cast<int>(reinterpret_cast<char*>(context) - contexts); }
int current_device() { return context_stack().empty() ? 0 : device_of(context_stack().back()); }

/// FAKE_CUDA_PEERS: "0-1 2>1".
bool reaches(int device, int other) {
  if (device == other) return true;
  const char* const pairs = std::getenv("FAKE_CUDA_PEERS");
  if (pairs == nullptr) return world().peers;
  const std::string all = fmt::format(" {} ", pairs);
  const auto says = [&](const std::string& pair) { return all.find(pair) != std::string::npos; };
  return says(fmt::format(" {}-{} ", std::min(device, other), std::max(device, other))) ||
         says(fmt::format(" {}>{} ", device, other));
}

bool fails(const char* name, CUresult& error) {
  World& w = world();
  if (!w.counting) return false;
  ++w.calls;
  const bool still_fails = w.failure_lasts && w.fail_at != 0 && w.calls > w.fail_at;
  if (w.calls != w.fail_at && !still_fails) return false;
  w.failed = name;
  error = w.fail_with;
  return true;
}

CUresult forbidden_by_capture() {
  if (capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (auto& [id, capture] : world().captures) {
    const bool mine = capture.thread == std::this_thread::get_id();
    if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    if (capture.mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !mine) continue;
    capture.invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

bool is_legacy_barred(bool spoils) {
  bool barred = false;
  for (const Queue* queue : world().queues) {
    if (!queue->blocking || queue->capture == 0) continue;
    barred = true;
    if (spoils) world().captures.at(queue->capture).invalid = true;
  }
  return barred;
}

CUresult refuse_export() {
  ++world().refused_exports;
  return CUDA_ERROR_INVALID_VALUE;
}

// Memory: anonymous files, so that another process can map it as CUDA's IPC would.

Allocation* find_allocation(std::uintptr_t address, std::uintptr_t* begin) {
  auto& all = world().allocations;
  auto after = all.upper_bound(address);
  if (after == all.begin()) return nullptr;
  --after;
  if (address >= after->first + after->second.bytes) return nullptr;
  if (begin) *begin = after->first;
  return &after->second;
}

bool may_use(int device, const Allocation& memory) {
  switch (memory.kind) {
    case Allocation::Kind::kPool: return memory.device == device || world().pools[memory.device].contains(device);
    case Allocation::Kind::kMapped: return memory.readers.contains(device);
    default: return true;
  }
}

void* map_memory(int fd, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
#ifdef __SANITIZE_ADDRESS__
  // What lay at these addresses before, such as a thread's stack, may have left its marks.
  if (memory != MAP_FAILED) __asan_unpoison_memory_region(memory, bytes);
#endif
  return memory;
}

CUresult make_allocation(std::uintptr_t* address, std::size_t bytes, Allocation::Kind kind) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const memory = map_memory(fd, bytes);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  World& w = world();
  // What nobody has written is no zero.
  std::fill_n(static_cast<unsigned char*>(memory), std::min<std::size_t>(bytes, 1 << 20), 0xa5);
  *address = reinterpret_cast<std::uintptr_t>(memory);
  w.allocations[*address] = {bytes, kind, current_device(), w.next_id++, fd};
  if (kind == Allocation::Kind::kDevice || kind == Allocation::Kind::kPool) {
    ++w.counts.device_allocations;
    w.counts.device_bytes += static_cast<std::int64_t>(bytes);
  } else {
    ++w.counts.host_allocations;
    w.counts.host_bytes += static_cast<std::int64_t>(bytes);
  }
  return CUDA_SUCCESS;
}

CUresult free_allocation(std::uintptr_t address, Allocation::Kind kind) {
  World& w = world();
  const auto found = w.allocations.find(address);
  if (found == w.allocations.end() || found->second.kind != kind) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), found->second.bytes);
  if (found->second.fd >= 0) close(found->second.fd);
  if (kind == Allocation::Kind::kDevice || kind == Allocation::Kind::kPool) {
    --w.counts.device_allocations;
    w.counts.device_bytes -= static_cast<std::int64_t>(found->second.bytes);
  } else if (kind == Allocation::Kind::kHost) {
    --w.counts.host_allocations;
    w.counts.host_bytes -= static_cast<std::int64_t>(found->second.bytes);
  } else {
    --w.counts.imports;
  }
  w.allocations.erase(found);
  return CUDA_SUCCESS;
}

// Streams.

Queue* queue_of(CUstream stream) {
  World& w = world();
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return &w.legacy;
  if (stream == CU_STREAM_PER_THREAD) {
    auto& own = w.thread_queues[std::this_thread::get_id()];
    if (!own) {
      own = std::make_unique<Queue>();
      w.queues.insert(own.get());
    }
    return own.get();
  }
  auto* const queue = reinterpret_cast<Queue*>(stream);
  return w.queues.contains(queue) ? queue : nullptr;
}

int device_of(const Queue& queue) { return queue.device < 0 ? current_device() : queue.device; }

namespace {

void push(Queue& queue, Work work) {
  queue.work.push_back(std::move(work));
  ++queue.given;
}

/// The legacy default stream waits for all blocking streams, and they for it.
void order_with_legacy(Queue& queue) {
  World& w = world();
  const auto wait_for = [&](Queue* other) {
    if (other == &queue || other->done == other->given) return;
    push(queue, [other, target = other->given, &w] { return !w.queues.contains(other) || other->done >= target; });
  };
  if (&queue == &w.legacy) {
    for (Queue* other : w.queues) {
      if (other->blocking) wait_for(other);
    }
  } else if (queue.blocking) {
    wait_for(&w.legacy);
  }
}

/// Whoever gives more to a stream than it has room for waits. With the lock, once.
void wait_for_room(const Queue& queue) {
  static const std::size_t room = [] {
    const char* const set = std::getenv("FAKE_CUDA_ROOM");
    return set ? std::strtoul(set, nullptr, 10) : 1024;
  }();
  Lock lock(world().mutex, std::adopt_lock);
  work_until(lock, [&] { return queue.work.size() < room; });
  lock.release();
}

}  // namespace

CUresult give(Queue& queue, const Node& node) {
  World& w = world();
  if (queue.capture != 0) {
    Capture& capture = w.captures.at(queue.capture);
    if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture.graph->lanes[queue.lane].push_back(node);
    return CUDA_SUCCESS;
  }
  if (&queue == &w.legacy && is_legacy_barred(true)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  wait_for_room(queue);
  order_with_legacy(queue);
  push(queue, node(nullptr));
  return CUDA_SUCCESS;
}

bool work_some() {
  World& w = world();
  std::vector<Queue*> busy;
  for (Queue* queue : w.queues) {
    if (!queue->work.empty()) busy.push_back(queue);
  }
  if (busy.empty()) return false;
  w.random = w.random * 6364136223846793005u + 1442695040888963407u;
  std::rotate(busy.begin(), busy.begin() + static_cast<std::ptrdiff_t>((w.random >> 33) % busy.size()), busy.end());
  bool moved = false;
  for (Queue* queue : busy) {
    if (!w.queues.contains(queue) || queue->work.empty() || !queue->work.front()()) continue;
    queue->work.pop_front();
    ++queue->done;
    moved = true;
  }
  return moved;
}

void work_until(Lock& lock, const std::function<bool()>& is_done) {
  while (!is_done()) {
    if (work_some()) continue;
    // A kernel waits for one that another thread, or another process, has yet to start.
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
  }
}

void wait_until_idle(Lock& lock, int device) {
  static const bool waits = std::getenv("FAKE_CUDA_IDLE_MAPPING") != nullptr;
  if (!waits) return;
  const auto is_idle = [&](const Queue* queue) {
    return queue->work.empty() || (device >= 0 && queue->device >= 0 && queue->device != device);
  };
  work_until(lock, [&] { return std::ranges::all_of(world().queues, is_idle); });
}

void end_over_unloaded_kernels() {
  std::fputs("fake driver: cuModuleUnload while kernels of the module are queued\n", stderr);
  std::abort();
}

Graph::~Graph() {
  for (UserObject* object : objects) {
    if (--object->references != 0) continue;
    call_back(object->destroy, object->data);
    delete object;
    --world().counts.user_objects;
  }
}

void call_back(CUhostFn function, void* data) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  pthread_setname_np(pthread_self(), "cuda-callback");
  const int depth = std::exchange(depth_inside(), 0);
  function(data);
  depth_inside() = depth;
  pthread_setname_np(pthread_self(), name);
}

// What tests ask.

void set_devices(int count) { world().devices = count; }
void set_peers(bool reach) { world().peers = reach; }
void set_memory(std::int64_t bytes) {
  const Lock lock(world().mutex);
  world().memory = bytes;
}
void set_counting(bool counts) {
  const Lock lock(world().mutex);
  world().counting = counts;
}
std::uint64_t calls() { return world().calls; }
void fail_after(std::uint64_t more, CUresult error, bool lasts) {
  const Lock lock(world().mutex);
  world().fail_at = more == 0 ? 0 : world().calls + more;
  world().fail_with = error;
  world().failure_lasts = lasts;
  world().failed.clear();
}
std::string failed_function() { return world().failed; }
Live live() {
  const Lock lock(world().mutex);
  return world().counts;
}
std::string describe(const Live& l) {
  return fmt::format(
      "{} device allocations ({} bytes), {} of the host ({} bytes), {} imports, {} registrations, {} streams, {} "
      "events, {} "
      "modules, {} "
      "contexts, {} user objects",
      l.device_allocations, l.device_bytes, l.host_allocations, l.host_bytes, l.imports, l.registrations, l.streams,
      l.events, l.modules, l.contexts, l.user_objects);
}
std::uint64_t launches() { return world().launches; }
std::uint64_t refused_exports() {
  const Lock lock(world().mutex);
  return world().refused_exports;
}
Staged staged() {
  const Lock lock(world().mutex);
  return world().staged;
}
void note_given() {
  const Lock lock(world().mutex);
  world().notes = true;
  world().given.clear();
}
std::vector<Given> given() {
  const Lock lock(world().mutex);
  return world().given;
}
std::optional<std::size_t> note(const Given& given) {
  if (!world().notes) return {};
  world().given.push_back(given);
  return world().given.size() - 1;
}
void set_naps(bool naps) { world().naps = naps; }
void set_quick_ends(bool quick) {
  const Lock lock(world().mutex);
  world().quick_ends = quick;
}
void set_seed(std::uint64_t seed) { world().random = seed; }

}  // namespace fake_driver
