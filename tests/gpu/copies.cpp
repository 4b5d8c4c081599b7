#include "copies.h"

#include "gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::test {
namespace {

/// What the processes share.
struct Page {
  std::atomic<int> arrived;
  std::atomic<bool> failed;  ///< one of them, which the others need not wait for
  CopyTimes times;
  char why[512];
};

/// Ends a process that hangs.
constexpr unsigned kLimitS = 15;

/// Until all processes have come here so many times. False: one will not.
bool meet(Page& page, int processes, int times) {
  ++page.arrived;
  while (page.arrived < times * processes) {
    if (page.failed) return false;
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
std::string run_process(int processes, int number, std::size_t bytes, int repeats, Page& page) {
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
    if (!meet(page, processes, met + 1)) return "";
    const double us = us_of(way, to.data(), from.data(), bytes, stream, repeats);
    if (!meet(page, processes, met + 2)) return "";  // what follows is work for the GPU too
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
  std::vector<pid_t> children;
  for (int number = 0; number < processes; ++number) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kLimitS);
      const std::string wrong = run_process(processes, number, bytes, repeats, page);
      if (!wrong.empty()) fmt::format_to_n(page.why, sizeof page.why - 1, "process {}: {}", number, wrong);
      _exit(wrong.empty() ? 0 : 1);
    }
    if (child < 0) page.failed = true;
    if (child > 0) children.push_back(child);
  }
  CopyTimes times;
  if (page.failed) times.why = "a process could not be made";
  for (std::size_t ended = 0; ended < children.size(); ++ended) {
    int status = 0;
    wait(&status);
    if (status == 0) continue;
    page.failed = true;
    if (times.why.empty()) times.why = fmt::format("a process ended with status {:#x}", status);
  }
  if (page.why[0] != 0) times.why = page.why;
  times.us = page.times.us;
  munmap(memory, sizeof(Page));
  return times;
}

}  // namespace tutti::test
