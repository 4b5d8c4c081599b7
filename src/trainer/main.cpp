// tutti-train: reads the command line and the data, starts the ranks (or is one of a launcher's), ends with their exit code.

#include "trainer/job.h"
#include "trainer/journal.h"
#include "trainer/options.h"

#include <fmt/format.h>
#include <nccl.h>
#include <sched.h>
#include <tutti/launch.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace tutti::trainer {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;
constexpr int kRanksMax = 64;

int fail(int exit_code, const std::string& message) {
  fmt::print(stderr, "tutti-train: {}\n", message);
  return exit_code;
}

/// The cores that this process may use, but at least two ranks: with one there is nothing to average.
int default_ranks() {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::clamp(cores, 2, kRanksMax);
}

int run_processes(const Job& job, int ranks) {
  const auto body = [](const tuttiLaunchInfo_t* info, const ncclUniqueId* id, void* context) {
    return static_cast<const Job*>(context)->run_rank(info->rank, info->size, *id);
  };
  tuttiLaunchOutcome_t outcome{};
  // The children get `job` as the fork's copy and do not write to it.
  if (tuttiLaunchLocal(ranks, body, const_cast<Job*>(&job), &outcome) != ncclSuccess) {
    return fail(kFailed, fmt::format("starting {} ranks: {}", ranks, ncclGetLastError(nullptr)));
  }
  if (outcome.signal != 0) {
    return fail(kFailed, fmt::format("rank {} was ended by signal {} ({})", outcome.failed_rank, outcome.signal,
                                     strsignal(outcome.signal)));
  }
  return outcome.exit_code == 0 ? 0 : kFailed;
}

int run_threads(const Job& job, int ranks) {
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess)
    return fail(kFailed, fmt::format("making an id: {}", ncclGetLastError(nullptr)));
  std::vector<int> exit_codes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { exit_codes[static_cast<std::size_t>(rank)] = job.run_rank(rank, ranks, id); });
  }
  for (auto& thread : threads) thread.join();
  return *std::max_element(exit_codes.begin(), exit_codes.end());
}

int run_launched(const Job& job, const tuttiLaunchInfo_t& me, bool with_mpi) {
  if (with_mpi && tuttiLaunchInitMpi() != ncclSuccess) {
    return fail(kFailed, fmt::format("rank {}: --net mpi: {}", me.rank, ncclGetLastError(nullptr)));
  }
  ncclUniqueId id;
  if (tuttiLaunchUniqueId(&me, &id) != ncclSuccess) {
    return fail(kFailed, fmt::format("rank {}: meeting the other ranks: {}", me.rank, ncclGetLastError(nullptr)));
  }
  const int exit_code = job.run_rank(me.rank, me.size, id);
  if (with_mpi && tuttiLaunchFinalizeMpi() != ncclSuccess) {
    return fail(kFailed, fmt::format("rank {}: --net mpi: {}", me.rank, ncclGetLastError(nullptr)));
  }
  return exit_code;
}

int run(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  const auto& options = std::get<Options>(parsed);
  // Before the library reads it.
  if (!options.network.empty()) setenv("TUTTI_NET", options.network.c_str(), 1);

  tuttiLaunchInfo_t me;
  if (tuttiLaunchDetect(&me) != ncclSuccess) return fail(kFailed, ncclGetLastError(nullptr));
  const bool launched = std::strcmp(me.launcher, TUTTI_LAUNCHER_NONE) != 0;
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
  if (launched) return run_launched(*job, me, options.network == "mpi");
  const int ranks = options.ranks != 0 ? options.ranks : default_ranks();
  return options.threads ? run_threads(*job, ranks) : run_processes(*job, ranks);
}

}  // namespace
}  // namespace tutti::trainer

int main(int argc, char** argv) { return tutti::trainer::run(argc, argv); }
