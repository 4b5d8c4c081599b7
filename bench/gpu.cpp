#include "gpu.h"

#include <fmt/format.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace tutti::bench {
namespace {

Error no_gpu(const std::string& why) { return error(Code::kUnhandledCuda, fmt::format("--device cuda: {}", why)); }

}  // namespace

Status Gpu::status(Outcome outcome, const char* function) {
  if (outcome == 0) return {};
  return error(Code::kUnhandledCuda, fmt::format("{}: CUDA error {}", function, outcome));
}

Status Gpu::load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return no_gpu("there is no CUDA driver (libcuda.so.1)");
  using Find = Outcome (*)(const char*, void**, int, unsigned long long);
  const auto find = reinterpret_cast<Find>(dlsym(library, "cuGetProcAddress"));
  if (find == nullptr) return no_gpu("the CUDA driver is older than CUDA 11.3");
  // By the version of its interface that each has had since.
  const auto get = [&](auto& function, const char* name, int version) -> Status {
    void* address = nullptr;
    if (find(name, &address, version, 0) != 0 || address == nullptr)
      return no_gpu(fmt::format("the CUDA driver has no {}", name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    return {};
  };
  TUTTI_TRY(get(init_, "cuInit", 2000));
  TUTTI_TRY(get(device_count_, "cuDeviceGetCount", 2000));
  TUTTI_TRY(get(device_name_, "cuDeviceGetName", 2000));
  TUTTI_TRY(get(device_bus_id_, "cuDeviceGetPCIBusId", 4010));
  TUTTI_TRY(get(retain_, "cuDevicePrimaryCtxRetain", 7000));
  TUTTI_TRY(get(set_current_, "cuCtxSetCurrent", 4000));
  TUTTI_TRY(get(allocate_, "cuMemAlloc", 3020));
  TUTTI_TRY(get(free_, "cuMemFree", 3020));
  TUTTI_TRY(get(copy_, "cuMemcpyAsync", 4000));
  TUTTI_TRY(get(stream_create_, "cuStreamCreate", 2000));
  TUTTI_TRY(get(stream_destroy_, "cuStreamDestroy", 4000));
  TUTTI_TRY(get(stream_wait_, "cuStreamSynchronize", 2000));
  TUTTI_TRY(get(begin_capture_, "cuStreamBeginCapture", 10010));
  TUTTI_TRY(get(end_capture_, "cuStreamEndCapture", 10000));
  TUTTI_TRY(get(instantiate_, "cuGraphInstantiateWithFlags", 11040));
  TUTTI_TRY(get(launch_, "cuGraphLaunch", 10000));
  TUTTI_TRY(get(graph_destroy_, "cuGraphDestroy", 10000));
  TUTTI_TRY(get(executable_destroy_, "cuGraphExecDestroy", 10000));
  constexpr Outcome kNoDevice = 100;
  const Outcome begun = init_(0);
  if (begun == kNoDevice) return no_gpu("the CUDA driver finds no GPU");
  TUTTI_TRY(status(begun, "cuInit"));
  TUTTI_TRY(status(device_count_(&count_), "cuDeviceGetCount"));
  if (count_ == 0) return no_gpu("the CUDA driver finds no GPU");
  return {};
}

Result<const Gpu*> Gpu::open() {
  static Gpu gpu;
  static const Status loaded = gpu.load();
  if (!loaded.ok()) return loaded.error();
  return &gpu;
}

Result<int> Gpu::count_apart() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return system_error("pipe");
  const pid_t child = fork();
  if (child < 0) return system_error("fork");
  if (child == 0) {
    const Result<const Gpu*> gpu = open();
    const std::string text = gpu.ok() ? fmt::format("{}", gpu.value()->count()) : gpu.error().message;
    _exit(write(ends[1], text.data(), text.size()) < 0 ? 2 : gpu.ok() ? 0 : 1);
  }
  close(ends[1]);
  std::array<char, 512> text{};
  std::size_t length = 0;
  for (;;) {
    const ssize_t got = read(ends[0], text.data() + length, text.size() - 1 - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<std::size_t>(got);
  }
  close(ends[0]);
  int outcome = 0;
  while (waitpid(child, &outcome, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0) return std::atoi(text.data());
  return error(Code::kUnhandledCuda,
               length > 0 ? std::string(text.data()) : "--device cuda: the CUDA driver ends the process");
}

Status Gpu::use(int gpu) const {
  // The context is this program's until it ends.
  void* context = nullptr;
  TUTTI_TRY(status(retain_(&context, gpu), "cuDevicePrimaryCtxRetain"));
  return status(set_current_(context), "cuCtxSetCurrent");
}

std::string Gpu::name(int gpu) const {
  std::array<char, 256> text{};
  return device_name_(text.data(), static_cast<int>(text.size()), gpu) == 0 ? text.data() : "GPU";
}

Gpu::Seat Gpu::seat(int gpu) const {
  Seat seat;
  gethostname(seat.host.data(), seat.host.size() - 1);
  device_bus_id_(seat.bus_id.data(), static_cast<int>(seat.bus_id.size()), gpu);
  return seat;
}

Result<void*> Gpu::allocate(std::size_t bytes) const {
  Address memory = 0;
  const Status done = status(allocate_(&memory, bytes), "cuMemAlloc");
  if (!done.ok())
    return error(Code::kUnhandledCuda, fmt::format("no GPU memory for a buffer of {} bytes; choose a smaller -e: {}",
                                                   bytes, done.error().message));
  return reinterpret_cast<void*>(memory);
}
void Gpu::free(void* memory) const { (void)free_(reinterpret_cast<Address>(memory)); }

Status Gpu::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  TUTTI_TRY_ASSIGN(void* const stream, make_stream());
  Status copied =
      status(copy_(reinterpret_cast<Address>(to), reinterpret_cast<Address>(const_cast<void*>(from)), bytes, stream),
             "cuMemcpyAsync");
  if (copied.ok()) copied = wait(stream);
  destroy_stream(stream);
  return copied;
}

Result<void*> Gpu::make_stream() const {
  constexpr unsigned kNonBlocking = 1;
  void* stream = nullptr;
  TUTTI_TRY(status(stream_create_(&stream, kNonBlocking), "cuStreamCreate"));
  return stream;
}
void Gpu::destroy_stream(void* stream) const { (void)stream_destroy_(stream); }
Status Gpu::wait(void* stream) const { return status(stream_wait_(stream), "cuStreamSynchronize"); }

Status Gpu::begin_capture(void* stream) const {
  constexpr int kThreadLocal = 1;
  return status(begin_capture_(stream, kThreadLocal), "cuStreamBeginCapture");
}
Result<void*> Gpu::end_capture(void* stream) const {
  void* graph = nullptr;
  TUTTI_TRY(status(end_capture_(stream, &graph), "cuStreamEndCapture"));
  void* executable = nullptr;
  const Status made = status(instantiate_(&executable, graph, 0), "cuGraphInstantiate");
  (void)graph_destroy_(graph);
  if (!made.ok()) return made.error();
  return executable;
}
Status Gpu::launch(void* graph, void* stream) const { return status(launch_(graph, stream), "cuGraphLaunch"); }
void Gpu::destroy_graph(void* graph) const { (void)executable_destroy_(graph); }

}  // namespace tutti::bench
