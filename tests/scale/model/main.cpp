// What the library comes to with many ranks, on paper: predicted times of all-reduces on pods, what a rank's own plan takes, and what
// making a communicator takes. docs/scale.md has its output, the assumptions and what follows.
#include "base/standard_output.h"
#include "init.h"
#include "pods.h"

#include "planner/plan.h"

#include <fmt/format.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace tutti::scale {
namespace {

constexpr char kUsage[] =
    "usage: scale-model [all|predict|latency|plan|init] [HOSTS_MAX]\n"
    "Tables over numbers of ranks, on hosts of 8 GPUs each, of docs/scale.md:\n"
    "  predict   what an all-reduce takes at several sizes, by the fastest algorithm\n"
    "  latency   what one of 8 bytes takes by rings and trees\n"
    "  plan      processor time and memory in which a rank makes its own plan; measured\n"
    "  init      what making a communicator takes, from single steps that are measured\n"
    "  all       these four (default)\n"
    "HOSTS_MAX   rows of no more hosts than that, 1 to 16384 (default: 16384; of plan 2048)\n";

constexpr std::uint64_t kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi;
constexpr std::uint64_t kSizes[] = {8, 64 * kKi, kMi, 16 * kMi, 256 * kMi, kGi};
constexpr const char* kRows[] = {"oneshot",    "twoshot",    "ring",           "tree",
                                 "hosts_ring", "hosts_tree", "hosts_doubling", "hosts_twoshot"};
/// Steps of the longest schedule that is simulated.
constexpr std::uint64_t kWorkMax = 100'000;
constexpr int kHosts[] = {1, 2, 4, 8, 32, 128, 512, 2048, 16384};
/// Beyond, the library itself ends (docs/scale.md): a rank's plan may take longer there, and is made when it is asked for only.
constexpr int kHostsServed = 2048;

std::string size_text(std::uint64_t bytes) {
  if (bytes >= kGi) return fmt::format("{} GiB", bytes / kGi);
  if (bytes >= kMi) return fmt::format("{} MiB", bytes / kMi);
  return bytes >= kKi ? fmt::format("{} KiB", bytes / kKi) : fmt::format("{} B", bytes);
}

std::string time_text(const Prediction& p) {
  const char* const mark = p.is_continued ? "~" : "";
  if (p.us >= 1e6) return fmt::format("{}{:.2f} s", mark, p.us / 1e6);
  if (p.us >= 1e4) return fmt::format("{}{:.1f} ms", mark, p.us / 1e3);
  return fmt::format("{}{:.0f} us", mark, p.us);
}

struct Best {
  std::string algorithm;
  Prediction prediction;
};

/// The fastest of all rows; nothing where there is none.
std::optional<Best> best_of(std::vector<PodRuns>& runs, int hosts, std::uint64_t bytes) {
  std::optional<Best> best;
  for (PodRuns& row : runs) {
    const auto found = row.predict(hosts, bytes);
    if (found && (!best || found->us < best->prediction.us)) best = Best{row.algorithm(), *found};
  }
  return best;
}

void print_predictions(int hosts_max) {
  std::vector<PodRuns> runs;
  for (const char* const row : kRows) runs.emplace_back(Pod{}, row, kWorkMax);
  std::string head = "|   ranks |";
  for (const std::uint64_t bytes : kSizes) head += fmt::format(" {:>25} |", size_text(bytes));
  std::printf("%s\n", head.c_str());
  for (const int hosts : kHosts) {
    if (hosts > hosts_max) break;
    std::string line = fmt::format("| {:>7} |", hosts * Pod{}.gpus);
    for (const std::uint64_t bytes : kSizes) {
      const auto best = best_of(runs, hosts, bytes);
      line += fmt::format(" {:>25} |", best ? time_text(best->prediction) + " " + best->algorithm : "-");
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}

/// Eight bytes: only messages' delays count.
void print_latencies(int hosts_max) {
  PodRuns ring(Pod{}, "ring", kWorkMax), tree(Pod{}, "tree", kWorkMax), hosts_ring(Pod{}, "hosts_ring", kWorkMax),
      hosts_tree(Pod{}, "hosts_tree", kWorkMax);
  std::printf("|   ranks |         ring |         tree |   hosts_ring |   hosts_tree |\n");
  for (const int hosts : kHosts) {
    if (hosts > hosts_max) break;
    std::string line = fmt::format("| {:>7} |", hosts * Pod{}.gpus);
    for (PodRuns* const row : {&ring, &tree, &hosts_ring, &hosts_tree}) {
      const auto found = row->predict(hosts, 8);
      line += fmt::format(" {:>12} |", found ? time_text(*found) : "-");
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}

/// As of a communicator on host memory over TCP.
planner::Rules rules_over(int hosts) {
  planner::Rules rules = planner::make_rules("", false).value();
  rules.slots = {4, 8 << 10};
  rules.groups = hosts_of(hosts, Pod{}.gpus);
  rules.network = {15, 0, 1.5};
  return rules;
}

/// What it takes a rank to plan its own part, from the choice on.
struct Planning {
  double seconds = 0;  ///< of a processor: other programs take none of it
  double mib = 0;
  char algorithm[32] = {};
};

double processor_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Planning plan_own_part(int hosts, std::uint64_t bytes) {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const planner::Rules rules = rules_over(hosts);
  const int ranks = hosts * Pod{}.gpus;
  const planner::Question q{{Collective::kAllReduce, ranks, 0, 0}, bytes / 4, 4, planner::Access::kSlots, false};
  const auto found = planner::candidates(q, rules);
  if (!found.ok()) return {};
  const planner::Plan plan = planner::make_plan(q, rules, found.value().front(), ranks / 2 + 1);
  Planning planning;
  getrusage(RUSAGE_SELF, &after);
  planning.seconds = processor_seconds(after) - processor_seconds(before);
  planning.mib = static_cast<double>(after.ru_maxrss - before.ru_maxrss) / 1024;
  std::snprintf(planning.algorithm, sizeof planning.algorithm, "%s", std::string(plan.algorithm->name).c_str());
  return planning;
}

/// In a process of its own, whose memory has seen no other.
Planning plan_apart(int hosts, std::uint64_t bytes) {
  int ends[2];
  Planning planning;
  if (pipe(ends) != 0) return planning;
  const pid_t child = fork();
  if (child == 0) {
    planning = plan_own_part(hosts, bytes);
    _exit(write(ends[1], &planning, sizeof planning) == sizeof planning ? 0 : 1);
  }
  close(ends[1]);
  if (child < 0 || read(ends[0], &planning, sizeof planning) != sizeof planning) planning = {};
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  return planning;
}

/// False if some plan takes a second of a processor or 95 MiB; of numbers of ranks that the library does not serve, 30 s or 450 MiB.
bool print_plans(int hosts_max) {
  bool good = true;
  std::printf("|   ranks |     size |      algorithm | seconds |   MiB |\n");
  for (const int hosts : kHosts) {
    if (hosts > hosts_max) break;
    for (const std::uint64_t bytes : {std::uint64_t{8}, kMi, kGi}) {
      const Planning p = plan_apart(hosts, bytes);
      const bool is_served = hosts <= kHostsServed;
      good = good && p.algorithm[0] != 0 && p.seconds < (is_served ? 1 : 30) && p.mib < (is_served ? 95 : 450);
      std::printf("| %7d | %8s | %14s | %7.3f | %5.1f |\n", hosts * Pod{}.gpus, size_text(bytes).c_str(), p.algorithm,
                  p.seconds, p.mib);
    }
  }
  return good;
}

void print_init(int hosts_max) {
  const InitCosts costs = measure_init_costs();
  std::printf(
      "a rank meets the root: %.0f us; a connection between two ranks: %.0f us of both; a rank's entry in a table: "
      "%.2f us and %zu bytes\n",
      costs.join_us, costs.connection_us, costs.entry_us, costs.entry_bytes);
  std::printf(
      "|   ranks | connections |  root sends | a rank passes on | memory of a rank | address space |   init |\n");
  for (const int hosts : kHosts) {
    if (hosts > hosts_max) break;
    const InitModel m = model_init(costs, hosts, Pod{}.gpus);
    std::printf("| %7d | %11d | %8.1f MB | %13.1f MB | %12.1f MiB | %9.2f GiB | %6.2f s |\n", hosts * Pod{}.gpus,
                m.connections, m.root_bytes / 1e6, m.passed_bytes / 1e6, m.memory_bytes / static_cast<double>(kMi),
                m.address_bytes / static_cast<double>(kGi), m.seconds);
  }
}

/// 0: no number of hosts that there are rows for.
int hosts_of_text(const std::string& text) {
  int hosts = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), hosts);
  const bool good = problem == std::errc() && end == text.data() + text.size() && hosts <= std::ranges::max(kHosts);
  return good ? hosts : 0;
}

int run(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "all";
  if (argc == 2 && (part == "--help" || part == "-h")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const int hosts_max = argc > 2 ? hosts_of_text(argv[2]) : std::ranges::max(kHosts);
  const bool known = part == "all" || part == "predict" || part == "latency" || part == "plan" || part == "init";
  if (!known || argc > 3 || hosts_max < 1) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  // First: what has been freed before would be taken again unseen.
  const bool good = (part != "all" && part != "plan") || print_plans(argc > 2 ? hosts_max : kHostsServed);
  if (part == "all" || part == "predict") print_predictions(hosts_max);
  if (part == "all" || part == "latency") print_latencies(hosts_max);
  if (part == "all" || part == "init") print_init(hosts_max);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tutti::scale

int main(int argc, char** argv) { return tutti::end_output("scale-model", tutti::scale::run(argc, argv)); }
