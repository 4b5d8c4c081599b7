// What a program that uses GPUs does by itself: memory, streams, graphs. Through the driver, which is found at run time: the fake one in
// development, a real one where there is a GPU.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tutti::test {

/// Ends the program, with the function's name, if a call fails.
class Gpu {
 public:
  /// Empty, or why there is none.
  static std::string why_not();
  static const Gpu& get();

  void use(int device) const;
  void* allocate(std::size_t bytes) const;
  void* allocate_pinned(std::size_t bytes) const;
  void release(void* memory) const;
  /// Of the current device's pool, in the stream's order.
  void* allocate_from_pool(std::size_t bytes, CUstream stream) const;
  void release_to_pool(void* memory, CUstream stream) const;
  /// Pieces of physical memory at consecutive addresses, which the device may use and no other; `shared`: other processes can be given them.
  /// `wanted`: the address, if that is free.
  void* map(int device, std::size_t piece_bytes, std::size_t pieces, bool shared = false, void* wanted = nullptr) const;
  void unmap(void* memory, std::size_t piece_bytes, std::size_t pieces) const;
  /// Other physical memory at the address of one of them.
  void replace_piece(int device, void* piece, std::size_t piece_bytes, bool shared) const;
  void release_pinned(void* memory) const;
  /// Waits.
  void copy(void* to, const void* from, std::size_t bytes) const;
  /// Does not.
  void copy(void* to, const void* from, std::size_t bytes, CUstream stream) const;
  /// The same of rows that lie behind each other.
  void copy_rows(void* to, const void* from, std::size_t row_bytes, std::size_t rows, CUstream stream) const;
  /// The same, by what runs no kernels if the driver can. False: it, or what this was compiled with, does not know of that (CUDA 13 does).
  bool copy_beside_kernels(void* to, const void* from, std::size_t bytes, CUstream stream) const;
  CUstream make_stream() const;
  /// One that is ordered with the default stream.
  CUstream make_blocking_stream() const;
  void destroy(CUstream stream) const;
  void wait(CUstream stream) const;
  CUresult query(CUstream stream) const { return stream_query_(stream); }

  void begin_capture(CUstream stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) const;
  /// Null if the capture was spoilt.
  CUgraph end_capture(CUstream stream) const;
  /// By what a global one forbids its thread.
  void spoil_capture() const;
  CUgraphExec make_executable(CUgraph graph) const;
  void launch(CUgraphExec executable, CUstream stream) const;
  void destroy(CUgraphExec executable) const;
  void destroy(CUgraph graph) const;
  /// What `to` is given from now on waits for what `from` was given.
  void order(CUstream from, CUstream to) const;
  /// What `stream` is given from now on waits until the word, in pinned memory, has come as far as the value.
  void wait_for_word(CUstream stream, const std::uint32_t* word, std::uint32_t value) const;
  /// Free bytes of the current device; 0: not known.
  std::size_t free_bytes() const;
  CUevent make_event() const;
  void record(CUevent event, CUstream stream) const;
  void destroy(CUevent event) const;
  /// Of the calling thread.
  bool has_context() const;
  std::string name() const;
  /// Whether this is the driver of tests/cuda/fake/.
  bool is_fake() const { return name().starts_with("Fake "); }
  int driver_version() const;
  int devices() const;

 private:
  Gpu() = default;
  std::string open();
  CUstream make_stream(unsigned flags) const;
  void map_pieces(int device, CUdeviceptr begin, std::size_t piece_bytes, std::size_t pieces, bool shared) const;

#define TUTTI_TEST_FUNCTIONS(X)                       \
  X(init_, cuInit, 2000)                              \
  X(driver_version_, cuDriverGetVersion, 2020)        \
  X(device_count_, cuDeviceGetCount, 2000)            \
  X(device_name_, cuDeviceGetName, 2000)              \
  X(primary_retain_, cuDevicePrimaryCtxRetain, 7000)  \
  X(context_set_, cuCtxSetCurrent, 4000)              \
  X(context_get_, cuCtxGetCurrent, 4000)              \
  X(mem_alloc_, cuMemAlloc, 3020)                     \
  X(mem_free_, cuMemFree, 3020)                       \
  X(mem_alloc_async_, cuMemAllocAsync, 11020)         \
  X(mem_free_async_, cuMemFreeAsync, 11020)           \
  X(reserve_, cuMemAddressReserve, 10020)             \
  X(unreserve_, cuMemAddressFree, 10020)              \
  X(create_, cuMemCreate, 10020)                      \
  X(release_, cuMemRelease, 10020)                    \
  X(map_, cuMemMap, 10020)                            \
  X(unmap_, cuMemUnmap, 10020)                        \
  X(set_access_, cuMemSetAccess, 10020)               \
  X(host_alloc_, cuMemHostAlloc, 2020)                \
  X(host_free_, cuMemFreeHost, 2000)                  \
  X(copy_async_, cuMemcpyAsync, 4000)                 \
  X(copy_rows_async_, cuMemcpy2DAsync, 3020)          \
  X(stream_create_, cuStreamCreate, 2000)             \
  X(stream_destroy_, cuStreamDestroy, 4000)           \
  X(stream_synchronize_, cuStreamSynchronize, 2000)   \
  X(stream_query_, cuStreamQuery, 2000)               \
  X(stream_wait_event_, cuStreamWaitEvent, 3020)      \
  X(wait_value_, cuStreamWaitValue32, 11070)          \
  X(event_create_, cuEventCreate, 2000)               \
  X(event_destroy_, cuEventDestroy, 4000)             \
  X(event_record_, cuEventRecord, 2000)               \
  X(begin_capture_, cuStreamBeginCapture, 10010)      \
  X(end_capture_, cuStreamEndCapture, 10000)          \
  X(instantiate_, cuGraphInstantiateWithFlags, 11040) \
  X(graph_launch_, cuGraphLaunch, 10000)              \
  X(graph_destroy_, cuGraphDestroy, 10000)            \
  X(executable_destroy_, cuGraphExecDestroy, 10000)
#define TUTTI_TEST_FUNCTION(member, function, version) PFN_##function##_v##version member = nullptr;
  TUTTI_TEST_FUNCTIONS(TUTTI_TEST_FUNCTION)
#undef TUTTI_TEST_FUNCTION
  PFN_cuMemGetInfo_v3020 mem_info_ = nullptr;  ///< not in the fake
#if CUDA_VERSION >= 13000
  PFN_cuMemcpyBatchAsync_v13000 copy_batch_async_ = nullptr;
#endif
};

/// Memory of the current device that holds `values`, until the end of the scope.
template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values) : count_(values.size()) {
    memory_ = Gpu::get().allocate(bytes());
    Gpu::get().copy(memory_, values.data(), values.size() * sizeof(T));
  }
  ~OnGpu() { Gpu::get().release(memory_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  T* data() const { return static_cast<T*>(memory_); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    Gpu::get().copy(values.data(), memory_, values.size() * sizeof(T));
    return values;
  }
  void write(const std::vector<T>& values) const { Gpu::get().copy(memory_, values.data(), values.size() * sizeof(T)); }

 private:
  std::size_t bytes() const { return count_ == 0 ? 1 : count_ * sizeof(T); }
  std::size_t count_;
  void* memory_ = nullptr;
};

}  // namespace tutti::test
