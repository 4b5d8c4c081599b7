// What reproducible sums cost: the same all-reduces on a default and on a reproducible communicator of the same ranks, one of
// each in random order, so that whatever else the machine does meets both alike. Prints the ratio of their medians for each size.
#include "median.h"
#include "nccl_status.h"

#include "base/standard_output.h"

#include <tutti/launch.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

namespace tutti::bench {
namespace {

constexpr char kUsage[] =
    "reproducible-cost [RANKS] [threads|processes] [float32|bfloat16]\n"
    "times all-reduces of 8 bytes to 16 MiB, default and reproducible in random order; 2 to 64 ranks; 2 ranks, "
    "processes, float32 if not given\n";

struct Options {
  int ranks = 2;
  bool threads = false;
  ncclDataType_t type = ncclFloat32;
  std::size_t element_bytes = 4;
};

constexpr std::size_t kBytesMax = std::size_t{16} << 20;

/// So many pairs of calls that a size takes about as long as the others.
int pairs_of(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>((std::size_t{256} << 20) / (bytes + 4096), 31, 2001));
}

/// A rank's two communicators and its buffers.
class Rank {
 public:
  explicit Rank(const Options& options) : options_(options), send_(kBytesMax), receive_(kBytesMax) {}
  ~Rank() {
    for (ncclComm_t comm : comms_) {
      if (comm) (void)ncclCommAbort(comm);
    }
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Status join(int rank, const ncclUniqueId ids[2]) {
    rank_ = rank;
    for (int reproducible = 0; reproducible < 2; ++reproducible) {
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.reproducible = reproducible;
      TUTTI_TRY(nccl(tuttiCommInitRank(&comms_[reproducible], options_.ranks, ids[reproducible], rank, &config),
                     "tuttiCommInitRank"));
    }
    return {};
  }

  Status measure(std::size_t bytes) {
    const std::size_t count = bytes / options_.element_bytes;
    std::vector<double> times[2];
    const int pairs = pairs_of(bytes), warmup = pairs / 10 + 2;
    std::mt19937 random(1);  // the same on every rank
    for (int pair = -warmup; pair < pairs; ++pair) {
      // A fixed pattern could fall in step with the ranks' waiting for each other.
      const int first = static_cast<int>(random() & 1U);
      for (int turn = 0; turn < 2; ++turn) {
        const int reproducible = turn ^ first;
        const auto start = std::chrono::steady_clock::now();
        TUTTI_TRY(nccl(
            ncclAllReduce(send_.data(), receive_.data(), count, options_.type, ncclSum, comms_[reproducible], nullptr),
            "ncclAllReduce"));
        const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
        if (pair >= 0) times[reproducible].push_back(time.count());
      }
    }
    const double by_default = median(times[0]), reproducible = median(times[1]);
    if (rank_ == 0)
      std::printf("%12zu %12.2f %12.2f %8.2f\n", bytes, by_default, reproducible, reproducible / by_default);
    return {};
  }

  Status run(int rank, const ncclUniqueId ids[2]) {
    TUTTI_TRY(join(rank, ids));
    if (rank == 0) std::printf("%12s %12s %12s %8s\n", "bytes", "default us", "repro. us", "ratio");
    for (std::size_t bytes = 8; bytes <= kBytesMax; bytes *= 8) TUTTI_TRY(measure(bytes));
    return {};
  }

 private:
  const Options& options_;
  int rank_ = 0;
  ncclComm_t comms_[2] = {};
  std::vector<std::byte> send_, receive_;
};

int run_rank(const Options& options, int rank, const ncclUniqueId ids[2]) {
  const Status status = Rank(options).run(rank, ids);
  if (status.ok()) return 0;
  std::fprintf(stderr, "reproducible-cost: rank %d: %s\n", rank, status.error().message.c_str());
  return 1;
}

struct Job {
  Options options;
  ncclUniqueId second;
};

int process_body(const tuttiLaunchInfo_t* info, const ncclUniqueId* id, void* context) {
  const Job& job = *static_cast<const Job*>(context);
  const ncclUniqueId ids[2] = {*id, job.second};
  return end_output("reproducible-cost", run_rank(job.options, info->rank, ids));
}

int run_processes(Job& job) {
  tuttiLaunchOutcome_t outcome{};
  const Status status = nccl(tuttiLaunchLocal(job.options.ranks, process_body, &job, &outcome), "starting the ranks");
  if (!status.ok()) std::fprintf(stderr, "reproducible-cost: %s\n", status.error().message.c_str());
  return status.ok() ? outcome.exit_code : 1;
}

int run_threads(const Job& job) {
  ncclUniqueId ids[2] = {{}, job.second};
  if (ncclGetUniqueId(&ids[0]) != ncclSuccess) return 1;
  std::vector<int> codes(static_cast<std::size_t>(job.options.ranks), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.options.ranks; ++rank)
    threads.emplace_back([&, rank] { codes[static_cast<std::size_t>(rank)] = run_rank(job.options, rank, ids); });
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(codes.begin(), codes.end());
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "threads" || word == "processes") {
      options.threads = word == "threads";
    } else if (word == "float32" || word == "bfloat16") {
      options.type = word == "float32" ? ncclFloat32 : ncclBfloat16;
      options.element_bytes = word == "float32" ? 4 : 2;
    } else {
      const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), options.ranks);
      if (problem != std::errc() || end != word.data() + word.size()) return false;
      if (options.ranks < 2 || options.ranks > 64) return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  if (argc == 2 && (std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h")) {
    std::fputs(tutti::bench::kUsage, stdout);
    return tutti::end_output("reproducible-cost", 0);
  }
  tutti::bench::Job job;
  if (!tutti::bench::parse(argc, argv, job.options)) {
    std::fputs(tutti::bench::kUsage, stderr);
    return 2;
  }
  if (ncclGetUniqueId(&job.second) != ncclSuccess) {
    std::fprintf(stderr, "reproducible-cost: %s\n", ncclGetLastError(nullptr));
    return 1;
  }
  const int code = job.options.threads ? tutti::bench::run_threads(job) : tutti::bench::run_processes(job);
  return tutti::end_output("reproducible-cost", code);
}
