#include "copies.h"

#include "forked.h"
#include "gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include <sched.h>
#include <sys/mman.h>

namespace tutti::test {
namespace {

/// What the processes share.
struct Page {
  std::atomic<int> arrived;
  CopyTimes times;
};

/// Ends a process that hangs.
constexpr unsigned kLimitS = 15;

/// Until all processes have come here so many times. False: one will not.
bool meet(std::atomic<int>& arrived, int processes, int times, const std::atomic<bool>& failed) {
  ++arrived;
  while (arrived < times * processes) {
    if (failed) return false;
    sched_yield();
  }
  return true;
}

bool copy_by(std::size_t way, void* to, const void* from, std::size_t bytes, CUstream stream) {
  const Gpu& gpu = Gpu::get();
  switch (way) {
    case 0: return gpu.copy(to, from, bytes, stream), true;
    case 1: return gpu.copy_rows(to, from, bytes / 2, 2, stream), true;
    default: return gpu.copy_beside_kernels(to, from, bytes, stream);
  }
}

double us_of(std::size_t way, void* to, const void* from, std::size_t bytes, CUstream stream, int repeats) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int i = -2; i < repeats; ++i) {
    const auto start = Clock::now();
    if (!copy_by(way, to, from, bytes, stream)) return 0;
    Gpu::get().wait(stream);
    if (i >= 0) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

/// What is wrong; empty: nothing.
std::string run_process(int processes, int number, std::size_t bytes, int repeats, Page& page,
                        const std::atomic<bool>& failed) {
  if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
  const Gpu& gpu = Gpu::get();
  gpu.use(0);
  std::vector<std::uint32_t> values(bytes / 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u) + number;
  const OnGpu<std::uint32_t> from(values);
  CUstream stream = gpu.make_stream();
  for (std::size_t way = 0; way < kCopyWays.size(); ++way) {
    const OnGpu<std::uint32_t> to(std::vector<std::uint32_t>(values.size(), 0));
    const int met = 2 * static_cast<int>(way);
    if (!meet(page.arrived, processes, met + 1, failed)) return "";
    const double us = us_of(way, to.data(), from.data(), bytes, stream, repeats);
    if (!meet(page.arrived, processes, met + 2, failed)) return "";  // what follows is work for the GPU too
    if (us > 0 && to.read() != values) return fmt::format("{}: other bytes came", kCopyWays[way]);
    if (number == 0) page.times.us[way] = us;
  }
  gpu.destroy(stream);
  return "";
}

}  // namespace

CopyTimes time_copies(int processes, std::size_t bytes, int repeats) {
  void* const memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {.us = {}, .why = "no memory to share"};
  Page& page = *new (memory) Page{};
  CopyTimes times;
  times.why = run_forked(processes, kLimitS, [&](int number, const std::atomic<bool>& failed) {
    return run_process(processes, number, bytes, repeats, page, failed);
  });
  times.us = page.times.us;
  munmap(memory, sizeof(Page));
  return times;
}

}  // namespace tutti::test
