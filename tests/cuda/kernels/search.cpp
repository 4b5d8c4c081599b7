// Looks for what is wrong with the kernels: cases that between them need every barrier and every order, over seeds. Ends at the first
// problem. For mutants_test.py; float32 only, so that a mutant is compiled fast.
#include "kernel_case.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

namespace tutti::cuda {
namespace {

KernelCase make(KernelKind kind, Collective collective, int ranks, std::uint64_t count) {
  KernelCase c;
  c.kind = kind;
  c.collective = collective;
  c.ranks = ranks;
  c.root = 1;
  c.count = count;
  c.blocks = 2;
  c.threads = 64;
  c.calls = 3;
  return c;
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> all;
  const auto add = [&](KernelCase c, bool fused = false, bool two_shot = false, bool in_place = false) {
    c.fused = fused;
    c.two_shot = two_shot;
    c.in_place = in_place;
    all.push_back(c);
  };
  using enum Collective;
  for (const Collective collective : {kAllReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll}) {
    add(make(KernelKind::kFold, collective, 3, 5003), true);
    add(make(KernelKind::kFold, collective, 3, 1403));
    add(make(KernelKind::kLines, collective, 3, 301));
  }
  for (const Collective collective : {kAllReduce, kAllGather, kAllToAll}) {
    KernelCase members = make(KernelKind::kFold, collective, 3, 1403);
    for (members.gpus = 1; members.gpus <= 2; ++members.gpus) add(members);
  }
  add(make(KernelKind::kFold, kAllReduce, 3, 9001), false, false, true);
  KernelCase skewed = make(KernelKind::kFold, kAllReduce, 3, 5005);
  skewed.skew = 4;
  add(skewed, true);
  add(make(KernelKind::kLines, kAllReduce, 3, 901), false, true);
  add(make(KernelKind::kLines, kAllReduce, 3, 301), true);
  add(make(KernelKind::kLines, kAllReduce, 9, 97), false, true, true);
  for (const char* const algorithm : {"oneshot", "twoshot"}) {
    for (const bool fused : {false, true}) {
      KernelCase lanes = make(KernelKind::kLanes, kAllReduce, 3, 700);
      lanes.algorithm = algorithm;
      lanes.rows = 2;
      add(lanes, fused);
      lanes.direct = true;
      if (lanes.algorithm == "twoshot") add(lanes, fused);
    }
  }
  return all;
}

std::string search_special(std::uint64_t seed) {
  for (const KernelKind kind : {KernelKind::kFold, KernelKind::kLines}) {
    KernelCase odd = make(kind, Collective::kAllReduce, 3, 301);
    odd.calls = 1;
    odd.odd_rank = 1;
    odd.abort_at = 400;
    const Outcome outcome = run_case(odd, seed);
    if (!outcome.problem.empty()) return outcome.problem;
    if (outcome.output_written) return "output was written by a call that differs";
    if (outcome.failures[1].failure != Failure::kMismatch) return "a call that differs was not noticed";
  }
  KernelCase member = make(KernelKind::kFold, Collective::kAllReduce, 3, 301);
  member.gpus = 1;
  member.calls = 1;
  member.odd_rank = 1;
  const Outcome led = run_case(member, seed);
  if (!led.problem.empty()) return led.problem;
  if (led.output_written || led.failures[0].failure != Failure::kMismatch)
    return "a member's call that differs was not noticed";
  KernelCase ring = make(KernelKind::kLanes, Collective::kAllGather, 4, 301);
  ring.announces = true;
  ring.knows_neighbours = true;
  if (const std::string problem = run_case(ring, seed).problem; !problem.empty()) return problem;
  ring.calls = 1;
  ring.odd_rank = 1;
  ring.abort_at = 400;
  if (run_case(ring, seed).failures[1].failure != Failure::kMismatch) return "a call that differs was not noticed";
  for (const KernelKind kind : {KernelKind::kFold, KernelKind::kLines}) {
    KernelCase odd = make(kind, Collective::kAllReduce, 3, 301);
    odd.calls = 1;
    odd.odd_rank = 1;
    odd.odd_kind = kind == KernelKind::kFold ? KernelKind::kLines : KernelKind::kFold;
    const Outcome outcome = run_case(odd, seed);
    if (!outcome.problem.empty()) return outcome.problem;
    if (outcome.output_written) return "output was written by a call of another kind";
  }
  KernelCase silent = make(KernelKind::kLines, Collective::kAllReduce, 2, 31);
  silent.calls = 1;
  silent.silent_rank = 1;
  silent.abort_at = 20;
  const Outcome ended = run_case(silent, seed);
  if (!ended.problem.empty()) return ended.problem;
  KernelCase ahead = make(KernelKind::kLanes, Collective::kBroadcast, 2, 50);
  ahead.algorithm = "binomial";
  ahead.root = 0;
  ahead.announces = true;
  ahead.overtaken_rank = 1;
  if (const std::string problem = run_case(ahead, seed).problem; !problem.empty()) return problem;
  for (const Collective collective : {Collective::kBroadcast, Collective::kAllReduce}) {
    KernelCase old = make(KernelKind::kLines, collective, 3, 302);
    old.two_shot = collective == Collective::kAllReduce;
    old.calls = 4;
    old.first_sequence = (std::uint64_t{1} << 31) - 3;
    const Outcome outcome = run_case(old, seed);
    if (!outcome.problem.empty()) return outcome.problem;
    if (outcome.oldest_flag < std::uint64_t{1} << 31) return "old flags are left";
  }
  return "";
}

std::string search(std::uint64_t seeds) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    for (const KernelCase& c : cases()) {
      const std::string problem = run_case(c, seed).problem;
      if (!problem.empty()) return fmt::format("seed {}: {}: {}", seed, text_of(c), problem);
    }
    const std::string problem = search_special(seed);
    if (!problem.empty()) return fmt::format("seed {}: {}", seed, problem);
  }
  return {};
}

}  // namespace
}  // namespace tutti::cuda

int main() {
  const std::string problem = tutti::cuda::search(8);
  std::printf("%s\n", problem.empty() ? "nothing found" : problem.c_str());
  return problem.empty() ? 0 : 1;
}
