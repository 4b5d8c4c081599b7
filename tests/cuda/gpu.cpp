#include "gpu.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace tutti::test {
namespace {

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: CUDA error %d\n", what, static_cast<int>(result));
  std::abort();
}

}  // namespace

std::string Gpu::open() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return "there is no CUDA driver (libcuda.so.1)";
  auto* const find = reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"));
  if (!find) return "the CUDA driver is too old";
  void* address = nullptr;
#define TUTTI_TEST_FUNCTION(member, function, version)                                                               \
  if (find(#function, &address, version, 0) != CUDA_SUCCESS || !address) return "the CUDA driver has no " #function; \
  member = reinterpret_cast<PFN_##function##_v##version>(address);
  TUTTI_TEST_FUNCTIONS(TUTTI_TEST_FUNCTION)
#undef TUTTI_TEST_FUNCTION
  if (find("cuMemGetInfo", &address, 3020, 0) == CUDA_SUCCESS) {
    mem_info_ = reinterpret_cast<PFN_cuMemGetInfo_v3020>(address);
  }
#if CUDA_VERSION >= 13000
  if (find("cuMemcpyBatchAsync", &address, 13000, 0) == CUDA_SUCCESS) {
    copy_batch_async_ = reinterpret_cast<PFN_cuMemcpyBatchAsync_v13000>(address);
  }
#endif
  if (init_(0) != CUDA_SUCCESS || devices() == 0) return "the CUDA driver finds no GPU";
  use(0);
  return "";
}

namespace {
const Gpu* the_gpu = nullptr;
}

std::string Gpu::why_not() {
  static Gpu gpu;
  if (the_gpu) return "";
  std::string reason = gpu.open();
  if (reason.empty()) the_gpu = &gpu;
  return reason;
}
const Gpu& Gpu::get() {
  if (!the_gpu) {
    if (const std::string reason = why_not(); !reason.empty()) {
      std::fprintf(stderr, "%s\n", reason.c_str());
      std::abort();
    }
  }
  return *the_gpu;
}

void Gpu::use(int device) const {
  CUcontext context = nullptr;
  static CUcontext contexts[64] = {};  // each is retained once
  if (!contexts[device]) check(primary_retain_(&contexts[device], device), "cuDevicePrimaryCtxRetain");
  context = contexts[device];
  check(context_set_(context), "cuCtxSetCurrent");
}
void* Gpu::allocate(std::size_t bytes) const {
  CUdeviceptr memory = 0;
  check(mem_alloc_(&memory, bytes), "cuMemAlloc");
  return reinterpret_cast<void*>(memory);
}
void* Gpu::allocate_pinned(std::size_t bytes) const {
  void* memory = nullptr;
  check(host_alloc_(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
  return memory;
}
void Gpu::release(void* memory) const { check(mem_free_(reinterpret_cast<CUdeviceptr>(memory)), "cuMemFree"); }
void* Gpu::allocate_from_pool(std::size_t bytes, CUstream stream) const {
  CUdeviceptr memory = 0;
  check(mem_alloc_async_(&memory, bytes, stream), "cuMemAllocAsync");
  return reinterpret_cast<void*>(memory);
}
void Gpu::release_to_pool(void* memory, CUstream stream) const {
  check(mem_free_async_(reinterpret_cast<CUdeviceptr>(memory), stream), "cuMemFreeAsync");
}
void* Gpu::map(int device, std::size_t piece_bytes, std::size_t pieces, bool shared, void* wanted) const {
  CUdeviceptr begin = 0;
  check(reserve_(&begin, piece_bytes * pieces, 0, reinterpret_cast<CUdeviceptr>(wanted), 0), "cuMemAddressReserve");
  map_pieces(device, begin, piece_bytes, pieces, shared);
  return reinterpret_cast<void*>(begin);
}
void Gpu::replace_piece(int device, void* piece, std::size_t piece_bytes, bool shared) const {
  const auto at = reinterpret_cast<CUdeviceptr>(piece);
  check(unmap_(at, piece_bytes), "cuMemUnmap");
  map_pieces(device, at, piece_bytes, 1, shared);
}
void Gpu::map_pieces(int device, CUdeviceptr begin, std::size_t piece_bytes, std::size_t pieces, bool shared) const {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  prop.requestedHandleTypes = shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (std::size_t i = 0; i < pieces; ++i) {
    CUmemGenericAllocationHandle piece{};
    check(create_(&piece, piece_bytes, &prop, 0), "cuMemCreate");
    check(map_(begin + i * piece_bytes, piece_bytes, 0, piece, 0), "cuMemMap");
    check(release_(piece), "cuMemRelease");
  }
  check(set_access_(begin, piece_bytes * pieces, &access, 1), "cuMemSetAccess");
}
void Gpu::unmap(void* memory, std::size_t piece_bytes, std::size_t pieces) const {
  const auto begin = reinterpret_cast<CUdeviceptr>(memory);
  for (std::size_t i = 0; i < pieces; ++i) check(unmap_(begin + i * piece_bytes, piece_bytes), "cuMemUnmap");
  check(unreserve_(begin, piece_bytes * pieces), "cuMemAddressFree");
}
void Gpu::release_pinned(void* memory) const { check(host_free_(memory), "cuMemFreeHost"); }
void Gpu::copy(void* to, const void* from, std::size_t bytes) const {
  CUstream stream = make_stream();
  copy(to, from, bytes, stream);
  wait(stream);
  destroy(stream);
}
void Gpu::copy(void* to, const void* from, std::size_t bytes, CUstream stream) const {
  if (bytes == 0) return;
  check(copy_async_(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream),
        "cuMemcpyAsync");
}
void Gpu::copy_rows(void* to, const void* from, std::size_t row_bytes, std::size_t rows, CUstream stream) const {
  CUDA_MEMCPY2D shape{};
  shape.Height = rows;
  shape.WidthInBytes = shape.srcPitch = shape.dstPitch = row_bytes;
  shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  shape.srcDevice = reinterpret_cast<CUdeviceptr>(from);
  shape.dstDevice = reinterpret_cast<CUdeviceptr>(to);
  check(copy_rows_async_(&shape, stream), "cuMemcpy2DAsync");
}
bool Gpu::copy_beside_kernels([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                              [[maybe_unused]] std::size_t bytes, [[maybe_unused]] CUstream stream) const {
#if CUDA_VERSION >= 13000
  if (!copy_batch_async_) return false;
  auto destination = reinterpret_cast<CUdeviceptr>(to);
  auto source = reinterpret_cast<CUdeviceptr>(from);
  CUmemcpyAttributes how{};
  how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  how.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  std::size_t first = 0;
  check(copy_batch_async_(&destination, &source, &bytes, 1, &how, &first, 1, stream), "cuMemcpyBatchAsync");
  return true;
#else
  return false;
#endif
}
namespace {

/// In which context each stream was made.
std::mutex streams_mutex;
std::map<CUstream, CUcontext>& contexts_of_streams() {
  static std::map<CUstream, CUcontext> all;
  return all;
}

}  // namespace

CUstream Gpu::make_stream(unsigned flags) const {
  CUstream stream = nullptr;
  check(stream_create_(&stream, flags), "cuStreamCreate");
  CUcontext context = nullptr;
  check(context_get_(&context), "cuCtxGetCurrent");
  const std::lock_guard lock(streams_mutex);
  contexts_of_streams()[stream] = context;
  return stream;
}
CUstream Gpu::make_stream() const { return make_stream(CU_STREAM_NON_BLOCKING); }
CUstream Gpu::make_blocking_stream() const { return make_stream(CU_STREAM_DEFAULT); }
void Gpu::destroy(CUstream stream) const { check(stream_destroy_(stream), "cuStreamDestroy"); }
void Gpu::wait(CUstream stream) const { check(stream_synchronize_(stream), "cuStreamSynchronize"); }

void Gpu::begin_capture(CUstream stream, CUstreamCaptureMode mode) const {
  check(begin_capture_(stream, mode), "cuStreamBeginCapture");
}
CUgraph Gpu::end_capture(CUstream stream) const {
  CUgraph graph = nullptr;
  (void)end_capture_(stream, &graph);
  return graph;
}
void Gpu::spoil_capture() const {
  CUdeviceptr memory = 0;
  if (mem_alloc_(&memory, 8) == CUDA_SUCCESS) check(mem_free_(memory), "cuMemFree");
}
CUgraphExec Gpu::make_executable(CUgraph graph) const {
  CUgraphExec executable = nullptr;
  check(instantiate_(&executable, graph, 0), "cuGraphInstantiate");
  return executable;
}
void Gpu::launch(CUgraphExec executable, CUstream stream) const {
  check(graph_launch_(executable, stream), "cuGraphLaunch");
}
void Gpu::destroy(CUgraphExec executable) const { check(executable_destroy_(executable), "cuGraphExecDestroy"); }
void Gpu::destroy(CUgraph graph) const { check(graph_destroy_(graph), "cuGraphDestroy"); }

CUevent Gpu::make_event() const {
  CUevent event = nullptr;
  check(event_create_(&event, 0), "cuEventCreate");
  return event;
}
void Gpu::record(CUevent event, CUstream stream) const { check(event_record_(event, stream), "cuEventRecord"); }
void Gpu::destroy(CUevent event) const { check(event_destroy_(event), "cuEventDestroy"); }
void Gpu::order(CUstream from, CUstream to) const {
  CUcontext current = nullptr;
  check(context_get_(&current), "cuCtxGetCurrent");
  CUcontext context = current;
  {
    const std::lock_guard lock(streams_mutex);
    const auto known = contexts_of_streams().find(from);
    if (known != contexts_of_streams().end()) context = known->second;
  }
  check(context_set_(context), "cuCtxSetCurrent");
  CUevent event = make_event();
  record(event, from);
  check(context_set_(current), "cuCtxSetCurrent");
  check(stream_wait_event_(to, event, 0), "cuStreamWaitEvent");
  destroy(event);
}
void Gpu::wait_for_word(CUstream stream, const std::uint32_t* word, std::uint32_t value) const {
  check(wait_value_(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32");
}
std::size_t Gpu::free_bytes() const {
  std::size_t left = 0;
  std::size_t total = 0;
  if (mem_info_) check(mem_info_(&left, &total), "cuMemGetInfo");
  return left;
}
bool Gpu::has_context() const {
  CUcontext context = nullptr;
  check(context_get_(&context), "cuCtxGetCurrent");
  return context != nullptr;
}
std::string Gpu::name() const {
  char text[256] = {};
  check(device_name_(text, sizeof text, 0), "cuDeviceGetName");
  return text;
}
int Gpu::driver_version() const {
  int version = 0;
  check(driver_version_(&version), "cuDriverGetVersion");
  return version;
}
int Gpu::devices() const {
  int count = 0;
  check(device_count_(&count), "cuDeviceGetCount");
  return count;
}

}  // namespace tutti::test
