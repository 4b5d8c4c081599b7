// The fake driver's world: devices, allocations, streams, events, captures. One lock for all; everything here is used under it.
#pragma once

#include "fake_driver.h"

#include "base/dtype.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace tutti::cuda {
struct FoldLaunch;
struct LanesLaunch;
struct LinesLaunch;
}  // namespace tutti::cuda

namespace fake_driver {

struct Allocation {
  enum class Kind { kDevice, kHost, kImport, kRegistered, kPool, kMapped };
  std::size_t bytes = 0;
  Kind kind = Kind::kDevice;
  int device = 0;
  std::uint64_t id = 0;
  int fd = -1;
  std::uint64_t block = 0;  ///< of memory of cuMemMap: its physical memory
  std::set<int> readers{};  ///< devices that may use it, if it is mapped
};

/// A point in a stream's work.
struct Mark {
  bool reached = false;
  std::chrono::steady_clock::time_point when{};  ///< it was reached
  std::uint64_t capture = 0;                     ///< not 0: recorded in this capture
  std::size_t lane = 0;                          ///< of the capture
  std::size_t position = 0;                      ///< nodes of that lane before it
  std::optional<std::size_t> noted{};            ///< in World::given
};

/// Work: does what it can and says whether it is done.
using Work = std::function<bool()>;

struct Queue {
  static inline std::uint64_t made = 0;
  std::uint64_t id = ++made;
  std::deque<Work> work;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
  std::size_t lane = 0;       ///< of the capture
  std::uint64_t capture = 0;  ///< 0: none
  bool blocking = true;       ///< ordered with the legacy default stream
  int device = -1;            ///< -1: a default stream, which is of whatever device is current
};

struct Event {
  int device = 0;
  std::shared_ptr<Mark> last;
};

/// A node of a graph makes its work anew for each launch. Events become marks of that launch.
struct GraphRun {
  std::map<const Mark*, std::shared_ptr<Mark>> marks;
  std::map<std::uint64_t, void*> allocations;
  std::shared_ptr<Mark> mark(const Mark* captured) {
    auto& made = marks[captured];
    if (!made) made = std::make_shared<Mark>();
    return made;
  }
};
using Node = std::function<Work(const std::shared_ptr<GraphRun>&)>;
struct UserObject {
  void* data = nullptr;
  CUhostFn destroy = nullptr;
  unsigned references = 0;
};
/// A node that records or waits for an event of the world outside: at each launch, when that is called.
struct ExternalEvent {
  Event* event = nullptr;
  const Mark* mark = nullptr;  ///< stands for it in the graph
};
struct Graph {
  std::vector<std::vector<Node>> lanes;
  std::vector<std::shared_ptr<Mark>> marks;  ///< keeps them at their addresses
  std::vector<ExternalEvent> waits;
  std::vector<ExternalEvent> records;
  std::vector<UserObject*> objects;
  bool has_kernels = false;
  ~Graph();
};

struct Capture {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  std::shared_ptr<Graph> graph;
  bool invalid = false;
  Queue* origin = nullptr;
  std::vector<std::size_t> joined;  ///< by lane: how many of its nodes others wait for
};

struct World {
  std::recursive_mutex mutex;
  int devices = 1;
  bool peers = true;
  std::uint64_t random = 1;
  std::map<std::uintptr_t, Allocation> allocations;
  std::uint64_t next_id = 1;
  std::set<Queue*> queues;
  std::map<std::thread::id, std::unique_ptr<Queue>> thread_queues;
  Queue legacy;
  std::map<std::uint64_t, Capture> captures;
  std::uint64_t next_capture = 1;
  Live counts;
  std::int64_t memory = 0;  ///< set_memory()
  bool counting = false;
  std::atomic<bool> naps{false};
  bool quick_ends = false;
  std::vector<Queue*> free_handles;  ///< of streams that have ended so
  std::uint64_t calls = 0;
  std::uint64_t fail_at = 0;
  CUresult fail_with = CUDA_SUCCESS;
  bool failure_lasts = false;
  std::string failed;
  std::uint64_t launches = 0;
  std::uint64_t refused_exports = 0;
  Staged staged;
  bool notes = false;
  std::vector<Given> given;
  std::vector<int> retained;
  std::map<int, std::set<int>> pools;  ///< by device: the others that may use its pool's memory
};
World& world();
using Lock = std::unique_lock<std::recursive_mutex>;

/// Of the calling thread.
int& depth_inside();
struct Inside {
  Inside() { ++depth_inside(); }
  ~Inside() { --depth_inside(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};
std::vector<CUcontext>& context_stack();
CUstreamCaptureMode& capture_mode();
int current_device();
CUcontext context_of(int device);
int device_of(CUcontext context);
/// Whether a device reaches the other's memory.
bool reaches(int device, int other);

/// Whether the call of this name is the one to fail.
bool fails(const char* name, CUresult& error);
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and captures are spoilt, if one forbids this thread calls like this.
CUresult forbidden_by_capture();

/// Whether a stream that the legacy default stream waits for is captured, so that this one may not be used; `spoils`: and it is.
bool is_legacy_barred(bool spoils);
/// CUDA_ERROR_INVALID_VALUE for memory that is shared in another way, or not at all.
CUresult refuse_export();

/// The one pool of a device.
CUmemoryPool pool_of(int device);
/// Whether kernels of the device may use what lies there.
bool may_use(int device, const Allocation& memory);
Allocation* find_allocation(std::uintptr_t address, std::uintptr_t* begin = nullptr);
/// MAP_FAILED where it cannot be.
void* map_memory(int fd, std::size_t bytes);
CUresult make_allocation(std::uintptr_t* address, std::size_t bytes, Allocation::Kind kind);
CUresult free_allocation(std::uintptr_t address, Allocation::Kind kind);

Queue* queue_of(CUstream stream);
int device_of(const Queue& queue);
/// Into the stream, or into the graph that it is captured into.
CUresult give(Queue& queue, const Node& node);
/// A function of the program's, which has this thread as one of the driver's: "cuda-callback".
void call_back(CUhostFn function, void* data);
/// If it is to be noted: where it is among all that is.
std::optional<std::size_t> note(const Given& given);
/// Does some work of some streams; false: there was nothing that could be done.
bool work_some();
/// Waits until `is_done`, working; the lock is let go now and then.
void work_until(Lock& lock, const std::function<bool()>& is_done);
/// In what changes how memory is mapped: until there is no work (on this device; -1: on any), with FAKE_CUDA_IDLE_MAPPING.
void wait_until_idle(Lock& lock, int device = -1);

/// One argument, copied from where it lies, as work.
using KernelBody = std::function<Work(const void* argument, unsigned blocks)>;
struct Kernel {
  std::string name;
  std::size_t argument_bytes = 0;
  KernelBody body;
  /// Users' memory that it goes to.
  std::function<std::vector<const void*>(const void* argument)> touches = [](const void*) {
    return std::vector<const void*>{};
  };
};
/// A kernel of a module that was loaded.
struct Module;
struct Function {
  const Kernel* kernel = nullptr;
  std::weak_ptr<Module> module;
};
/// What is queued or runs holds it.
struct Module {
  int device = 0;
  std::list<Function> functions;
};
/// Kernels ran, or were to run, whose module is gone: ends the program, so that every test notices.
[[noreturn]] void end_over_unloaded_kernels();
/// The fold kernel of one rank that waits for others, which are other launches.
Work fold_alone(tutti::DataType type, const tutti::cuda::FoldLaunch* launch, unsigned blocks);
Work lines(tutti::DataType type, const tutti::cuda::LinesLaunch* launch, unsigned blocks);
Work lanes(tutti::DataType type, const tutti::cuda::LanesLaunch* launch, unsigned blocks);
/// tutti-train's, and its fake cuBLAS's.
std::vector<Kernel> trainer_kernels();
/// nullptr: neither the library nor tutti-train has a kernel of that name.
const Kernel* find_kernel(const std::string& name);

}  // namespace fake_driver
