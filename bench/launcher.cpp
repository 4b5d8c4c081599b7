#include "launcher.h"

#include "nccl_status.h"
#include "rank.h"
#include "report_files.h"

#include "base/rank_threads.h"
#include "base/standard_output.h"
#include "transport/memory_available.h"

#include <tutti/launch.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

namespace tutti::bench {
namespace {

int fail(int exit_code, const std::string& text) {
  std::fprintf(stderr, "tutti-perf: %s\n", text.c_str());
  return exit_code;
}

/// Of the processors that this process may use those first that are the first of their core.
std::vector<int> processors() {
  cpu_set_t usable;
  std::vector<int> firsts;
  std::vector<int> others;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return firsts;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &usable)) continue;
    int first = cpu;
    std::ifstream(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu)) >> first;
    const bool is_first = first == cpu || first < 0 || first >= CPU_SETSIZE || !CPU_ISSET(first, &usable);
    (is_first ? firsts : others).push_back(cpu);
  }
  firsts.insert(firsts.end(), others.begin(), others.end());
  return firsts;
}

/// The calling thread. Where there are enough processors each rank gets one, as mpirun has it: the system often leaves two on one, where
/// short calls take 20 times as long. False: the rank goes where the system puts it.
bool bind(const Options& options, int rank, int ranks) {
  if (!options.bind || options.on_gpu || options.stream) return false;  // streams have threads of their own
  const std::vector<int> all = processors();
  if (static_cast<std::size_t>(ranks) > all.size()) return false;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(all[static_cast<std::size_t>(rank)], &own);
  return sched_setaffinity(0, sizeof(own), &own) == 0;
}

/// Empty, or why the ranks of this host cannot have their buffers: the kernel would kill one of them, or other programs. A GPU tells itself.
std::string memory_lack(const Options& options, int ranks, int ranks_here) {
  if (options.explain || options.on_gpu) return "";
  constexpr double kGigabyte = 1 << 30;
  const double needed = 2.0 * static_cast<double>(options.buffer_bytes(ranks)) * ranks_here;
  const auto available = static_cast<double>(transport::memory_available_bytes());
  if (needed <= available) return "";
  return fmt::format(
      "the buffers of {} rank{} take {:.1f} GiB, and {:.1f} GiB of memory are available; choose a smaller -e",
      ranks_here, ranks_here == 1 ? "" : "s", needed / kGigabyte, available / kGigabyte);
}

int process_body(const tuttiLaunchInfo_t* info, const ncclUniqueId* id, void* context) {
  const Options& options = *static_cast<const Options*>(context);
  const bool bound = bind(options, info->rank, info->size);
  const Place place{info->rank, info->size, *id, bound ? "processes, a processor each" : "processes", info->rank};
  return end_output("tutti-perf", run_rank(options, place));
}

int run_processes(const Options& options, int ranks) {
  tuttiLaunchOutcome_t outcome{};
  const Status status =
      nccl(tuttiLaunchLocal(ranks, process_body, const_cast<Options*>(&options), &outcome), "starting the ranks");
  if (!status.ok()) return fail(1, status.error().message);
  if (outcome.signal == SIGPIPE) return end_without_reader();
  if (outcome.signal != 0) {
    const int code = fail(1, fmt::format("rank {} was ended by signal {} ({})", outcome.failed_rank, outcome.signal,
                                         strsignal(outcome.signal)));
    return asks_to_end(outcome.signal) ? end_asked(outcome.signal) : code;
  }
  return outcome.exit_code;
}

int run_threads(const Options& options, int ranks) {
  ncclUniqueId id;
  const Status status = nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  if (!status.ok()) return fail(1, status.error().message);
  KeptBuffers kept;
  return run_as_threads("tutti-perf", ranks, [&](int rank) {
    const bool bound = bind(options, rank, ranks);
    return run_rank(options, {rank, ranks, id, bound ? "threads, a processor each" : "threads", rank, &kept});
  });
}

int run_launched(const Options& options, const tuttiLaunchInfo_t& info) {
  int with_mpi = options.network == "mpi" ? 1 : 0;
  if (!with_mpi) {
    const Status asked = nccl(tuttiLaunchWantsMpi(&info, &with_mpi), "choosing the network");
    if (!asked.ok()) return fail(1, asked.error().message);
  }
  if (with_mpi) {
    const Status begun = nccl(tuttiLaunchInitMpi(), "starting MPI");
    if (!begun.ok()) return fail(1, fmt::format("rank {}: {}", info.rank, begun.error().message));
  }
  Place place{info.rank, info.size, {}, info.launcher, std::max(info.local_rank, 0)};
  const Status status =
      nccl(tuttiLaunchUniqueId(&info, &place.id), fmt::format("meeting the other ranks of {}", info.launcher));
  if (!status.ok()) return fail(1, fmt::format("rank {}: {}", info.rank, status.error().message));
  const int code = run_rank(options, place);
  if (with_mpi) {
    const Status ended = nccl(tuttiLaunchFinalizeMpi(), "ending MPI");
    if (!ended.ok()) return fail(1, fmt::format("rank {}: {}", info.rank, ended.error().message));
  }
  return code;
}

}  // namespace

int launch(const Options& options) {
  // Before the library reads it.
  if (!options.network.empty()) setenv("TUTTI_NET", options.network.c_str(), 1);
  tuttiLaunchInfo_t info;
  const Status status = nccl(tuttiLaunchDetect(&info), "finding the rank");
  if (!status.ok()) return fail(2, status.error().message);
  // A job of one process may start ranks of its own.
  const bool launched = info.size > 1;
  const bool alone = std::strcmp(info.launcher, TUTTI_LAUNCHER_NONE) == 0;
  int most = std::max(2, static_cast<int>(processors().size()));
  if (options.on_gpu && !launched && !options.ranks) {
    const Result<int> gpus = Gpu::count_apart();
    if (!gpus.ok()) return fail(1, gpus.error().message);
    most = gpus.value() * options.ranks_per_gpu;
  }
  // What --ranks-per-gpu asks for is allowed.
  if (options.ranks_per_gpu > 1) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  const int ranks = launched ? info.size : options.ranks.value_or(alone ? most : 1);
  const auto usage = [&](const std::string& text) { return info.rank == 0 ? fail(2, text) : 2; };
  if (launched && options.ranks.value_or(ranks) != ranks) {
    const std::string wanted = options.plan ? fmt::format("--plan {} is for {}", options.plan->name, *options.ranks)
                                            : fmt::format("--ranks says {}; leave it out", *options.ranks);
    return usage(fmt::format("{} started {} ranks, {}", info.launcher, ranks, wanted));
  }
  if (!launched && !alone && !options.ranks)
    std::fprintf(stderr, "tutti-perf: %s started one process: one rank; --ranks N starts more\n", info.launcher);
  if (!launched && options.network == "mpi") return usage("--net mpi is for ranks that mpirun or srun starts");
  if (launched && options.threads)
    return usage(fmt::format("{} started the ranks as processes; leave --threads out", info.launcher));
  if (options.root >= ranks)
    return usage(fmt::format("-r {}: there are {} ranks, roots go from 0 to {}", options.root, ranks, ranks - 1));
  if (const std::string lack = memory_lack(options, ranks, launched ? std::max(info.local_size, 1) : ranks);
      !lack.empty())
    return info.local_rank > 0 ? 1 : fail(1, lack);
  // The one that writes: other ranks may not see the folder.
  const auto files = {std::pair("--json", options.json_file), std::pair("--plot", options.plot_file),
                      std::pair("--tune", options.tune_file)};
  for (const auto& [option, file] : files) {
    if (info.rank > 0 || file.empty() || file == "-") continue;
    if (const std::string why = why_unwritable(file); !why.empty())
      return fail(1, fmt::format("{} {}: {}", option, file, why));
  }
  if (launched) return run_launched(options, info);
  return options.threads ? run_threads(options, ranks) : run_processes(options, ranks);
}

}  // namespace tutti::bench
