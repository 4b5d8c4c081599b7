#include "processes.h"

#include "forked.h"
#include "gpu.h"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace tutti::test {
namespace {

/// What the processes share.
struct Page {
  std::atomic<int> id_is_there;
  ncclUniqueId id;
  double us;
};

/// Ends a process that hangs.
constexpr unsigned kLimitS = 60;

std::string text_of(const char* what) { return fmt::format("{}: {}", what, ncclGetLastError(nullptr)); }

/// What is wrong; empty: nothing.
std::string run_rank(int ranks, int rank, std::size_t bytes, int repeats, ProcessBuffers kind, Page& page,
                     const std::atomic<bool>& failed) {
  using Clock = std::chrono::steady_clock;
  if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
  const Gpu& gpu = Gpu::get();
  gpu.use(0);
  if (rank == 0) {
    if (ncclGetUniqueId(&page.id) != ncclSuccess) return text_of("ncclGetUniqueId");
    page.id_is_there = 1;
  }
  for (; page.id_is_there == 0; usleep(1000)) {
    if (failed) return "";
  }
  ncclComm_t comm = nullptr;
  if (ncclCommInitRank(&comm, ranks, page.id, rank) != ncclSuccess) return text_of("ncclCommInitRank");
  const std::size_t count = bytes / sizeof(float);
  // Sums of small whole numbers are exact in any order.
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 31 + static_cast<std::size_t>(rank)) % 1024);
  std::vector<void*> buffers(2);  // input and output
  for (void*& buffer : buffers) {
    if (kind == ProcessBuffers::kOwn) {
      buffer = gpu.allocate(bytes);
      continue;
    }
    if (ncclMemAlloc(&buffer, bytes) != ncclSuccess) return text_of("ncclMemAlloc");
    ncclWindow_t window = nullptr;
    if (kind == ProcessBuffers::kWindows &&
        ncclCommWindowRegister(comm, buffer, bytes, &window, NCCL_WIN_COLL_SYMMETRIC) != ncclSuccess) {
      return text_of("ncclCommWindowRegister");
    }
  }
  gpu.copy(buffers[0], values.data(), bytes);
  CUstream stream = gpu.make_stream();
  std::vector<double> times;
  for (int i = -2; i < repeats; ++i) {
    const auto start = Clock::now();
    if (ncclAllReduce(buffers[0], buffers[1], count, ncclFloat32, ncclSum, comm, stream) != ncclSuccess) {
      return text_of("ncclAllReduce");
    }
    gpu.wait(stream);
    if (i >= 0) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::vector<float> found(count, -1.0f);
  gpu.copy(found.data(), buffers[1], bytes);
  for (std::size_t i = 0; i < count; ++i) {
    float wanted = 0;
    for (int r = 0; r < ranks; ++r) wanted += static_cast<float>((i * 31 + static_cast<std::size_t>(r)) % 1024);
    if (found[i] != wanted) return fmt::format("element {} is {}, not {}", i, found[i], wanted);
  }
  gpu.destroy(stream);
  if (ncclCommDestroy(comm) != ncclSuccess) return text_of("ncclCommDestroy");
  for (void* buffer : buffers) kind == ProcessBuffers::kOwn ? gpu.release(buffer) : (void)ncclMemFree(buffer);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  if (rank == 0) page.us = times[times.size() / 2];
  return "";
}

}  // namespace

ProcessesTime time_processes(int ranks, std::size_t bytes, int repeats, ProcessBuffers kind) {
  void* const memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {0, "no memory to share"};
  Page& page = *static_cast<Page*>(memory);
  ProcessesTime time;
  time.why = run_forked(ranks, kLimitS, [&](int rank, const std::atomic<bool>& failed) {
    return run_rank(ranks, rank, bytes, repeats, kind, page, failed);
  });
  time.us = page.us;
  munmap(memory, sizeof(Page));
  return time;
}

}  // namespace tutti::test
