// gpu-bench: what communicators on one GPU cost, each figure beside its ceiling measured in the same run. All ranks are on device 0, and in
// this process but where a line says how many. Prints a line per goal and writes it down at once (results.h). Ends with 3 if a goal is
// missed, with 1 if something else is wrong.
#include "copies.h"
#include "gpu.h"
#include "processes.h"
#include "results.h"

#include <fmt/format.h>
#include <nccl.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include <sched.h>

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Options {
  bool smoke = false;  ///< tiny, and no goal: that it runs
  std::string part;    ///< that alone; "": all but `paths` and `copies`
  Results results;

  bool has(std::string_view one) const { return part.empty() ? one != "paths" && one != "copies" : part == one; }
};
constexpr std::array<std::string_view, 6> kParts = {"start", "small", "large", "processes", "copies", "paths"};
constexpr int kMissed = 3;

/// Median time of one, when `each` of them are given to `stream` and then waited for.
double median_us(CUstream stream, int repeats, int each, const std::function<void()>& give) {
  std::vector<double> times;
  for (int i = -2; i < repeats; ++i) {
    const auto start = Clock::now();
    for (int k = 0; k < each; ++k) give();
    Gpu::get().wait(stream);
    if (i >= 0) times.push_back(us_since(start) / each);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void must(ncclResult_t result) {
  if (result == ncclSuccess) return;
  fmt::print(stderr, "{}\n", ncclGetLastError(nullptr));
  std::exit(1);
}

class Memory {
 public:
  explicit Memory(std::size_t bytes) : data_(Gpu::get().allocate(bytes)) {}
  ~Memory() { Gpu::get().release(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

/// All ranks on one stream, as a thread that holds them all would have them.
class Crew {
 public:
  Crew(int ranks, std::size_t bytes) : comms_(static_cast<std::size_t>(ranks)) {
    const std::vector<int> devices(comms_.size(), 0);
    must(ncclCommInitAll(comms_.data(), ranks, devices.data()));
    for (int r = 0; r < ranks; ++r) {
      in_.push_back(std::make_unique<Memory>(bytes));
      out_.push_back(std::make_unique<Memory>(bytes));
      // No zeros: what is summed must be as irregular as a user's.
      std::vector<float> values(bytes / 4);
      std::uint32_t random = 12345u + static_cast<std::uint32_t>(r);
      for (float& v : values) v = static_cast<float>((random = random * 1664525u + 1013904223u) >> 8) * 0x1p-24f;
      Gpu::get().copy(in_.back()->data(), values.data(), values.size() * 4);
    }
    stream_ = Gpu::get().make_stream();
  }
  ~Crew() {
    for (ncclComm_t comm : comms_) ncclCommDestroy(comm);
    Gpu::get().destroy(stream_);
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  CUstream stream() const { return stream_; }
  void* in(std::size_t r) const { return in_[r]->data(); }
  void* out(std::size_t r) const { return out_[r]->data(); }
  void all_reduce(std::size_t bytes, ncclDataType_t type) const {
    must(ncclGroupStart());
    for (std::size_t r = 0; r < comms_.size(); ++r) {
      must(ncclAllReduce(in(r), out(r), bytes / (type == ncclBfloat16 ? 2 : 4), type, ncclSum, comms_[r], stream_));
    }
    must(ncclGroupEnd());
  }
  /// How kernels do an all-reduce of float32.
  std::string path(std::size_t bytes) const {
    char text[8192] = {};
    must(tuttiExplain(comms_[0], tuttiAllReduce, bytes / 4, ncclFloat32, ncclSum, 0, text, sizeof text, nullptr));
    const std::string all = text;
    const std::size_t begin = all.find("path: ") + 6;
    return all.substr(begin, all.find(':', begin) - begin);
  }
  void reduce(std::size_t bytes, ncclDataType_t type) const {
    must(ncclGroupStart());
    for (std::size_t r = 0; r < comms_.size(); ++r) {
      must(ncclReduce(in(r), out(r), bytes / (type == ncclBfloat16 ? 2 : 4), type, ncclSum, 0, comms_[r], stream_));
    }
    must(ncclGroupEnd());
  }

 private:
  std::vector<ncclComm_t> comms_;
  std::vector<std::unique_ptr<Memory>> in_;
  std::vector<std::unique_ptr<Memory>> out_;
  CUstream stream_ = nullptr;
};

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {
    fmt::print("gpu-bench on {}, driver of CUDA {}, commit {}\n", Gpu::get().name(), Gpu::get().driver_version(),
               options_.results.commit());
  }
  /// At least `goal` of the ceiling.
  void ratio(const std::string& what, double found, double ceiling, const char* unit, double goal) {
    add(what, found, unit, ceiling, found / ceiling, goal, found / ceiling >= goal);
  }
  /// At most `goal`; `floor`: what nothing could be faster than here.
  void at_most(const std::string& what, double found, const char* unit, double floor, double goal) {
    add(what, found, unit, floor, floor > 0 ? found / floor : 0, goal, found <= goal);
  }
  /// No goal: to be compared.
  void shown(const std::string& what, double found, const char* unit, double floor) {
    fmt::print("        {:<58} {:>9.2f} {:<5} floor   {:>9.2f}\n", what, found, unit, floor);
    std::fflush(stdout);
    options_.results.add(
        fmt::format(R"("what":{},"found":{:.6g},"unit":"{}","floor":{:.6g})", quoted(what), found, unit, floor));
  }
  void not_run(const std::string& what, const std::string& why) {
    fmt::print("NOT RUN {:<58} {}\n", what, why);
    std::fflush(stdout);
    options_.results.add(fmt::format(R"("what":{},"not_run":{})", quoted(what), quoted(why)));
    is_broken_ = true;
  }
  int finish() const {
    fmt::print("{} goal(s) missed{}\n", missed_, options_.smoke ? " (not asked of a smoke run)" : "");
    if (is_broken_) return 1;
    return missed_ == 0 || options_.smoke ? 0 : kMissed;
  }

 private:
  void add(const std::string& what, double found, const char* unit, double ceiling, double ratio, double goal,
           bool met) {
    fmt::print("{:<7} {:<58} {:>9.2f} {:<5} ceiling {:>9.2f}  ratio {:>6.3f}  goal {}\n", met ? "ok" : "MISSED", what,
               found, unit, ceiling, ratio, goal);
    std::fflush(stdout);
    options_.results.add(
        fmt::format(R"("what":{},"found":{:.6g},"unit":"{}","ceiling":{:.6g},"ratio":{:.4g},"goal":{},"met":{})",
                    quoted(what), found, unit, ceiling, ratio, goal, met));
    missed_ += met ? 0 : 1;
  }
  const Options& options_;
  int missed_ = 0;
  bool is_broken_ = false;
};

/// Bytes read and written per second by the device's own copy.
double copy_gbps(std::size_t bytes, int repeats) {
  const Memory from(bytes);
  const Memory to(bytes);
  CUstream stream = Gpu::get().make_stream();
  const double us = median_us(stream, repeats, 4, [&] { Gpu::get().copy(to.data(), from.data(), bytes, stream); });
  Gpu::get().destroy(stream);
  return 2.0 * static_cast<double>(bytes) / us / 1000;
}

std::size_t large_bytes(const Options& o) { return o.smoke ? 1 << 16 : std::size_t{256} << 20; }

/// By number of processes and what their buffers are. They are forked from this one, which has not used CUDA yet.
using ProcessesTimes = std::map<std::pair<int, ProcessBuffers>, ProcessesTime>;
ProcessesTimes time_all_processes(const Options& o) {
  ProcessesTimes times;
  if (!o.has("processes")) return times;
  for (const int ranks : {2, 4}) {
    for (const ProcessBuffers kind : {ProcessBuffers::kOwn, ProcessBuffers::kAllocated, ProcessBuffers::kWindows}) {
      times[{ranks, kind}] = time_processes(ranks, large_bytes(o), o.smoke ? 3 : 20, kind);
    }
  }
  return times;
}

void processes(Report& report, const Options& o, const ProcessesTimes& times) {
  const std::size_t bytes = large_bytes(o);
  const double copy = copy_gbps(bytes, o.smoke ? 3 : 20);
  for (const auto& [how, time] : times) {
    const auto [ranks, kind] = how;
    const char* const buffers = kind == ProcessBuffers::kOwn         ? ""
                                : kind == ProcessBuffers::kAllocated ? ", ncclMemAlloc"
                                                                     : ", windows";
    const std::string what = fmt::format("all-reduce, {} processes, float32, {} MiB{}", ranks, bytes >> 20, buffers);
    if (time.why.empty()) {
      report.ratio(what, 2.0 * ranks * static_cast<double>(bytes) / time.us / 1000, copy, "GB/s", 0.60);
    } else {
      report.not_run(what, time.why);
    }
  }
}

/// Of as many bytes as staging has. What the ways of decision 13 are to be chosen by.
using AllCopyTimes = std::map<int, CopyTimes>;  ///< by number of processes
constexpr std::size_t kCopyBytes = std::size_t{9} << 19;
AllCopyTimes time_all_copies(const Options& o) {
  AllCopyTimes times;
  if (!o.has("copies")) return times;
  for (const int processes : {1, 2, 4}) times[processes] = time_copies(processes, kCopyBytes, o.smoke ? 3 : 50);
  return times;
}

void copies(Report& report, const AllCopyTimes& all) {
  const double floor = all.at(1).us[0];
  for (const auto& [processes, times] : all) {
    for (std::size_t way = 0; way < kCopyWays.size(); ++way) {
      const std::string what = fmt::format("copy of {} KiB, {} process{}, {}", kCopyBytes >> 10, processes,
                                           processes == 1 ? "" : "es at once", kCopyWays[way]);
      if (!times.why.empty()) {
        report.not_run(what, times.why);
      } else if (times.us[way] > 0) {
        report.shown(what, times.us[way], "us", floor);
      }
    }
  }
}

void large(Report& report, const Options& o) {
  const std::size_t bytes = large_bytes(o);
  const int repeats = o.smoke ? 3 : 20;
  const double copy = copy_gbps(bytes, repeats);
  for (const int ranks : {2, 4, 8}) {
    const Crew crew(ranks, bytes);
    for (const ncclDataType_t type : {ncclFloat32, ncclBfloat16}) {
      const char* name = type == ncclFloat32 ? "float32" : "bfloat16";
      double us = median_us(crew.stream(), repeats, 2, [&] { crew.reduce(bytes, type); });
      report.ratio(fmt::format("sum of {} sources, {}, {} MiB each", ranks, name, bytes >> 20),
                   (ranks + 1.0) * static_cast<double>(bytes) / us / 1000, copy, "GB/s", 0.92);
      us = median_us(crew.stream(), repeats, 2, [&] { crew.all_reduce(bytes, type); });
      report.ratio(fmt::format("all-reduce, {} ranks in one process, {}, {} MiB", ranks, name, bytes >> 20),
                   2.0 * ranks * static_cast<double>(bytes) / us / 1000, copy, "GB/s", 0.85);
    }
  }
}

double graph_us(const Crew& crew, std::size_t bytes, int repeats, int each) {
  const Gpu& gpu = Gpu::get();
  gpu.begin_capture(crew.stream());
  for (int i = 0; i < each; ++i) crew.all_reduce(bytes, ncclFloat32);
  CUgraph graph = gpu.end_capture(crew.stream());
  CUgraphExec executable = gpu.make_executable(graph);
  const double us = median_us(crew.stream(), repeats, 1, [&] { gpu.launch(executable, crew.stream()); }) / each;
  gpu.destroy(executable);
  gpu.destroy(graph);
  return us;
}

/// A copy of next to nothing, given and waited for alike: what any work on a stream costs.
double floor_us(const Crew& crew, int repeats) {
  const Memory from(64);
  const Memory to(64);
  return median_us(crew.stream(), repeats, 50, [&] { Gpu::get().copy(to.data(), from.data(), 8, crew.stream()); });
}

/// What it finds on up to seven of the processors that this thread may use, the middle one: what is short depends on how fast the processor
/// is just now, which others' work beside it on the same core may halve.
double on_processors(const std::function<double()>& measure) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return measure();
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &all)) processors.push_back(i);
  }
  const std::size_t tried = std::min<std::size_t>(processors.size(), 7);
  std::vector<double> found;
  for (std::size_t i = 0; i < tried; ++i) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processors[i * processors.size() / tried], &one);
    sched_setaffinity(0, sizeof one, &one);
    found.push_back(measure());
  }
  sched_setaffinity(0, sizeof all, &all);
  std::ranges::sort(found);
  return found[(tried - 1) / 2];
}

/// All-reduces of sizes that lines may carry, by the ways that NCCL_PROTO and NCCL_ALGO leave: the crossovers of
/// src/comm/device_path.cpp are to be held against these.
void paths(Report& report, const Options& o) {
  const int repeats = o.smoke ? 3 : 50;
  for (const int ranks : {2, 4, 8}) {
    const Crew crew(ranks, std::size_t{128} << 10);
    const double floor = floor_us(crew, repeats);
    for (std::size_t bytes = 8; bytes <= (128 << 10); bytes *= 4) {
      const std::string what = fmt::format("all-reduce, {} ranks, {} bytes, {}", ranks, bytes, crew.path(bytes));
      report.shown(what + ", eager",
                   median_us(crew.stream(), repeats, 50, [&] { crew.all_reduce(bytes, ncclFloat32); }), "us", floor);
      report.shown(what + ", one of 100 in a graph", graph_us(crew, bytes, repeats, 100), "us", floor);
    }
  }
}

void small(Report& report, const Options& o) {
  const Crew crew(8, std::size_t{1} << 20);
  const int repeats = o.smoke ? 3 : 50;
  const double floor = on_processors([&] { return floor_us(crew, repeats); });
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 10, std::size_t{16} << 10, std::size_t{1} << 20}) {
    const double goal = bytes <= (16 << 10) ? 10 : 14;
    const auto give = [&] { crew.all_reduce(bytes, ncclFloat32); };
    report.at_most(fmt::format("all-reduce, 8 ranks, {} bytes, eager", bytes),
                   on_processors([&] { return median_us(crew.stream(), repeats, 50, give); }), "us", floor, goal);
    if (bytes > (16 << 10)) continue;
    report.at_most(fmt::format("all-reduce, 8 ranks, {} bytes, one of 100 in a graph", bytes),
                   graph_us(crew, bytes, repeats, 100), "us", floor, 6);
  }
}

void start(Report& report) {
  const std::vector<int> devices(8, 0);
  std::vector<ncclComm_t> comms(8);
  const std::size_t before = Gpu::get().free_bytes();
  const auto begin = Clock::now();
  must(ncclCommInitAll(comms.data(), 8, devices.data()));
  report.at_most("init of 8 ranks, the kernels' loading included", us_since(begin) / 1000, "ms", 0, 300);
  const std::size_t after = Gpu::get().free_bytes();
  if (before != 0) {
    report.at_most("device memory per rank", static_cast<double>(before - std::min(before, after)) / 8 / (1 << 20),
                   "MiB", 0, 8);
  }
  for (ncclComm_t comm : comms) must(ncclCommDestroy(comm));
}

int run(const Options& options) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("TUTTI_DEVICE", "cuda", 1);
  const ProcessesTimes times = time_all_processes(options);
  const AllCopyTimes copy_times = time_all_copies(options);
  if (const std::string reason = Gpu::why_not(); !reason.empty()) {
    fmt::print("skipped: {}\n", reason);
    return 77;
  }
  Report report(options);
  if (options.has("start")) start(report);
  if (options.has("small")) small(report, options);
  if (options.has("large")) large(report, options);
  if (options.has("processes")) processes(report, options, times);
  if (options.has("copies")) copies(report, copy_times);
  if (options.has("paths")) paths(report, options);
  return report.finish();
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  tutti::test::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (options.results.takes(argc, argv, i)) continue;
    if (word == "--smoke") {
      options.smoke = true;
    } else if (word == "--part" && i + 1 < argc && std::ranges::count(tutti::test::kParts, argv[i + 1]) > 0) {
      options.part = argv[++i];
    } else {
      fmt::print(stderr, "usage: gpu-bench [--smoke] [--part start|small|large|processes|copies|paths] {}\n",
                 tutti::test::Results::kUsage);
      return 2;
    }
  }
  return tutti::test::run(options);
}
