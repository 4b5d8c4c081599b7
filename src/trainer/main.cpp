// tutti-train: reads the command line and the data, starts the ranks (or is one of a launcher's), ends with their exit code.

#include "base/rank_threads.h"
#include "base/standard_output.h"
#include "trainer/cuda/cuda_backend.h"
#include "trainer/job.h"
#include "trainer/journal.h"
#include "trainer/options.h"
#include "transport/memory_available.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <nccl.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

namespace tutti::trainer {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;
constexpr int kRanksMax = 64;

/// A file that is opened later would take the place of one that the shell has closed (`>&-`), and get what is printed.
void keep_standard_descriptors() {
  int descriptor = 0;
  do descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
  while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) (void)close(descriptor);
}

int fail(int exit_code, const std::string& message) {
  complain("tutti-train: {}\n", message);
  return exit_code;
}

/// In a process of its own: one that has opened the driver may not fork.
Outcome<int> gpus_of_this_host() {
  struct Answer {
    int gpus;
    char failure[512];
  };
  void* shared = nullptr;
  if (tuttiMemAlloc(&shared, sizeof(Answer), nullptr) != ncclSuccess) return Failure{ncclGetLastError(nullptr)};
  const std::unique_ptr<void, ncclResult_t (*)(void*)> memory(shared, tuttiMemFree);
  const auto ask = [](const tuttiLaunchInfo_t*, const ncclUniqueId*, void* context) {
    auto& answer = *static_cast<Answer*>(context);
    const auto gpus = count_gpus();
    if (gpus) {
      answer.gpus = *gpus;
    } else {
      *fmt::format_to_n(answer.failure, sizeof answer.failure - 1, "{}", gpus.failure().message).out = '\0';
    }
    return 0;
  };
  tuttiLaunchOutcome_t outcome{};
  if (tuttiLaunchLocal(1, ask, shared, &outcome) != ncclSuccess) return Failure{ncclGetLastError(nullptr)};
  const auto& answer = *static_cast<const Answer*>(shared);
  if (answer.gpus > 0) return answer.gpus;
  return Failure{answer.failure[0] != '\0' ? answer.failure : "--device cuda: the CUDA driver ends the process"};
}

/// On the host one for each core that this process may use, but at least two: with one there is nothing to average.
Outcome<int> ranks_to_start(const Options& options) {
  if (options.ranks != 0) return options.ranks;
  if (options.device == DeviceKind::kCuda) {
    const auto gpus = gpus_of_this_host();
    if (!gpus) return gpus.failure();
    return std::min(*gpus * options.ranks_per_gpu, kRanksMax);
  }
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, kRanksMax);
}

/// Empty, or why the ranks of this host cannot have their memory: the kernel would kill one of them, or other programs.
std::string memory_lack(const Job& job, int ranks, int ranks_here) {
  const double needed = job.bytes_of_rank(ranks) * ranks_here;
  const auto available = static_cast<double>(transport::memory_available_bytes());
  if (needed <= available) return "";
  return fmt::format(
      "{} rank{} of this model take{} at least {}, and {} of memory are available; choose a smaller model "
      "(--hidden{}), a smaller --batch or fewer --ranks",
      ranks_here, ranks_here == 1 ? "" : "s", ranks_here == 1 ? "s" : "", memory_text(needed), memory_text(available),
      job.is_of_text() ? ", --context, --embedding" : "");
}

int run_processes(const Job& job, int ranks) {
  const auto body = [](const tuttiLaunchInfo_t* info, const ncclUniqueId* id, void* context) {
    const int code = static_cast<const Job*>(context)->run_rank({info->rank, info->size, info->rank}, *id);
    return code != 0 ? code : end_output("tutti-train", 0);
  };
  tuttiLaunchOutcome_t outcome{};
  // The children get `job` as the fork's copy and do not write to it.
  if (tuttiLaunchLocal(ranks, body, const_cast<Job*>(&job), &outcome) != ncclSuccess) {
    return fail(kFailed, fmt::format("starting {} ranks: {}", ranks, ncclGetLastError(nullptr)));
  }
  if (outcome.signal == SIGPIPE) return end_without_reader();
  if (outcome.signal != 0) {
    const int code = fail(kFailed, fmt::format("rank {} was ended by signal {} ({})", outcome.failed_rank,
                                               outcome.signal, strsignal(outcome.signal)));
    return asks_to_end(outcome.signal) ? end_asked(outcome.signal) : code;
  }
  return outcome.exit_code == 0 ? 0 : kFailed;
}

int run_threads(const Job& job, int ranks) {
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess)
    return fail(kFailed, fmt::format("making an id: {}", ncclGetLastError(nullptr)));
  KeptParts kept;
  return run_as_threads("tutti-train", ranks, [&](int rank) { return job.run_rank({rank, ranks, rank, &kept}, id); });
}

int run_launched(const Job& job, const tuttiLaunchInfo_t& me, const std::string& network) {
  int with_mpi = network == "mpi" ? 1 : 0;
  if (!with_mpi && tuttiLaunchWantsMpi(&me, &with_mpi) != ncclSuccess) {
    return fail(kFailed, fmt::format("choosing the network: {}", ncclGetLastError(nullptr)));
  }
  if (with_mpi && tuttiLaunchInitMpi() != ncclSuccess) {
    return fail(kFailed, fmt::format("rank {}: starting MPI: {}", me.rank, ncclGetLastError(nullptr)));
  }
  ncclUniqueId id;
  if (tuttiLaunchUniqueId(&me, &id) != ncclSuccess) {
    return fail(kFailed, fmt::format("rank {}: meeting the other ranks: {}", me.rank, ncclGetLastError(nullptr)));
  }
  const int exit_code = job.run_rank({me.rank, me.size, me.local_rank < 0 ? me.rank : me.local_rank}, id);
  if (with_mpi && tuttiLaunchFinalizeMpi() != ncclSuccess) {
    return fail(kFailed, fmt::format("rank {}: ending MPI: {}", me.rank, ncclGetLastError(nullptr)));
  }
  return exit_code;
}

int run(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  const auto& options = std::get<Options>(parsed);
  // Before the library reads it.
  if (!options.network.empty()) setenv("TUTTI_NET", options.network.c_str(), 1);
  if (options.ranks_per_gpu > 1) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);  // asked for, so allowed

  tuttiLaunchInfo_t me;
  if (tuttiLaunchDetect(&me) != ncclSuccess) return fail(kFailed, ncclGetLastError(nullptr));
  // A job of one process may start ranks of its own, where it is told to.
  const bool told = options.ranks != 0 || options.threads;
  const bool launched = me.size > 1 || (std::strcmp(me.launcher, TUTTI_LAUNCHER_NONE) != 0 && !told);
  if (launched && (options.threads || (options.ranks != 0 && options.ranks != me.size))) {
    return fail(kWrongUsage, fmt::format("{} started {} ranks; leave --ranks and --threads out", me.launcher, me.size));
  }
  if (!launched && options.network == "mpi") {
    return fail(kWrongUsage, "--net mpi is for ranks that mpirun or srun starts");
  }
  if (me.rank == 0) {
    if (const auto problem = Journal::check_paths(options)) return fail(kFailed, problem->message);
  }
  const auto job = Job::prepare(options);
  if (!job) return fail(kFailed, job.failure().message);
  if (launched && me.size == 1) {
    std::fprintf(stderr, "tutti-train: %s started one process: one rank; --ranks N starts more\n", me.launcher);
  }
  const auto ranks = launched ? Outcome<int>(me.size) : ranks_to_start(options);
  if (!ranks) return fail(kFailed, ranks.failure().message);
  if (options.device == DeviceKind::kHost) {
    const std::string lack = memory_lack(*job, *ranks, launched ? std::max(me.local_size, 1) : *ranks);
    if (!lack.empty()) return me.local_rank > 0 ? kFailed : fail(kFailed, lack);
  }
  if (launched) return run_launched(*job, me, options.network);
  return options.threads ? run_threads(*job, *ranks) : run_processes(*job, *ranks);
}

}  // namespace
}  // namespace tutti::trainer

int main(int argc, char** argv) {
  tutti::trainer::keep_standard_descriptors();
  // Rank 0 finds out itself when nobody reads any more, and tells the others.
  (void)std::signal(SIGPIPE, SIG_IGN);
  const int code = tutti::trainer::run(argc, argv);
  return code != 0 ? code : tutti::end_output("tutti-train", 0);
}
