#include "planner/machine_plan.h"

#include "algorithm/algorithm.h"
#include "planner/hierarchical_candidates.h"
#include "planner/machine_candidates.h"
#include "planner/many_ranks.h"
#include "planner/routes.h"
#include "topology/rings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

namespace tutti::planner {

namespace {

bool is_flat(const topology::Network& network) { return network.compute.size() <= kPlannedRanksMax; }

constexpr double kNear = 0.999;

/// What runs one unit, or one exchange, after another: where its messages go through slots, each round waits for the one
/// before.
bool waits_between_rounds(const MachineCandidate& candidate, const MachineQuestion& question) {
  return candidate.algorithm == "tree" ||
         (!question.direct && (candidate.algorithm == "twoshot" || candidate.algorithm == "oneshot" ||
                               candidate.algorithm == "hierarchical"));
}

/// The best first, by what they count as. Of those within kNear of it, what does not wait between rounds is better, then what takes
/// fewer hops, as the difference is lost in practice; of equals, what is no packed tree, as these fill and drain.
void choose(std::vector<MachineCandidate>& candidates) {
  std::ranges::stable_sort(candidates, std::ranges::greater(), &MachineCandidate::gbps);
  const double enough =
      kNear * std::ranges::max_element(candidates, {}, &MachineCandidate::counted_gbps)->counted_gbps();
  const auto key = [&](const MachineCandidate& c) {
    return std::tuple(c.counted_gbps() < enough, c.waits, c.hops, c.lanes,
                      c.trees.size() + c.pairs.size() + c.rooted.size());
  };
  const auto soonest = std::ranges::min_element(candidates, {}, key);
  std::rotate(candidates.begin(), soonest, soonest + 1);
}

/// Whether the groups have every rank once.
bool are_hosts_of(const std::vector<std::vector<int>>& hosts, std::size_t ranks) {
  std::vector<char> seen(ranks, 0);
  std::size_t count = 0;
  for (const std::vector<int>& host : hosts) {
    for (const int rank : host) {
      if (rank < 0 || static_cast<std::size_t>(rank) >= ranks || std::exchange(seen[static_cast<std::size_t>(rank)], 1))
        return false;
      ++count;
    }
    if (host.empty()) return false;
  }
  return count == ranks;
}

Status refuse(const topology::Network& network, const MachineQuestion& question) {
  const auto ranks = network.compute.size();
  const Collective collective = question.collective;
  if (collective != Collective::kAllReduce && collective != Collective::kAllGather &&
      collective != Collective::kReduceScatter) {
    return error(Code::kInvalidArgument,
                 fmt::format("no plan is made for {}: all_reduce, all_gather or reduce_scatter", name_of(collective)));
  }
  if (ranks == 0) return error(Code::kInvalidArgument, "there is nothing to plan for: no rank");
  if (!question.hosts.empty() && !are_hosts_of(question.hosts, ranks))
    return error(Code::kInvalidArgument, fmt::format("the hosts given do not have each of {} ranks once", ranks));
  const bool flat = is_flat(network);
  if (!flat && (ranks > kHostedRanksMax || question.hosts.size() < 2))
    return error(Code::kInvalidArgument,
                 fmt::format("{} ranks: plans are made for at most {} on a host and {} on several; --gpus or --ranks "
                             "chooses some",
                             ranks, kPlannedRanksMax, kHostedRanksMax));
  const int nodes_max = flat ? kPlannedNodesMax : kHostedNodesMax;
  const std::size_t arcs_max = flat ? kPlannedArcsMax : kHostedArcsMax;
  if (network.nodes > nodes_max || network.arcs.size() > arcs_max) {
    return error(Code::kInvalidArgument,
                 fmt::format("{} nodes and {} links between the ranks: plans are made for at most {} and {}",
                             network.nodes, network.arcs.size(), nodes_max, arcs_max));
  }
  if (const auto [from, to] = ranks_apart(network); from >= 0)
    return error(Code::kInvalidArgument, fmt::format("rank {} cannot reach rank {}: no links lead there", from, to));
  return {};
}

MachineCandidate alone(Collective collective) {
  const schedule::Request request{collective, 1, 0, 0};
  MachineCandidate candidate;
  candidate.algorithm = "oneshot";
  candidate.schedule = algorithm::make_schedule(*algorithm::find(candidate.algorithm, request), request);
  return candidate;
}

}  // namespace

Certificate certify(const topology::Network& network, const MachineQuestion& question) {
  const Collective collective = question.collective;
  if (!is_flat(network)) return certify_by_hosts(network, question.hosts, collective);
  Certificate certificate;
  topology::Rational rate;
  if (collective == Collective::kAllReduce) {
    certificate.partition = topology::all_reduce_bound(network);
    certificate.unlimited = certificate.partition.unlimited;
    rate = certificate.partition.rate;
  } else {
    certificate.cut = collective == Collective::kAllGather ? topology::all_gather_bound(network)
                                                           : topology::reduce_scatter_bound(network);
    certificate.unlimited = certificate.cut.unlimited;
    rate = certificate.cut.rate;
  }
  certificate.gbps = rate.to_double() / topology::kGigabyte;
  return certificate;
}

std::string MachineCandidate::label() const {
  if (hierarchy.groups.empty()) return std::string(algorithm);
  const bool some = !hierarchy.carriers.empty();
  return fmt::format("{} ({}{})", algorithm, hierarchy.across, some ? ", nearest ranks" : "");
}

int MachineCandidate::units_most() const {
  if (!pairs.empty()) return algorithm::units_for(pairs);
  if (!rooted.empty()) return algorithm::units_for(rooted);
  if (!trees.empty()) return algorithm::units_for(trees);
  return 0;
}

const MachineCandidate* MachinePlan::find(std::string_view algorithm) const {
  const auto found = std::ranges::find(candidates, algorithm, &MachineCandidate::algorithm);
  return found == candidates.end() ? nullptr : &*found;
}

std::pair<int, int> ranks_apart(const topology::Network& network) {
  if (network.compute.empty()) return {-1, -1};
  const int first = network.compute.front();
  for (const bool forward : {true, false}) {
    std::vector<std::vector<int>> next(static_cast<std::size_t>(network.nodes));
    for (const topology::Arc& arc : network.arcs)
      next[static_cast<std::size_t>(forward ? arc.from : arc.to)].push_back(forward ? arc.to : arc.from);
    std::vector<char> reached(static_cast<std::size_t>(network.nodes), 0);
    std::vector<int> queue{first};
    reached[static_cast<std::size_t>(first)] = 1;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (const int to : next[static_cast<std::size_t>(queue[i])]) {
        if (reached[static_cast<std::size_t>(to)] != 0) continue;
        reached[static_cast<std::size_t>(to)] = 1;
        queue.push_back(to);
      }
    }
    for (const int rank : network.compute) {
      if (reached[static_cast<std::size_t>(rank)] != 0) continue;
      return forward ? std::pair(first, rank) : std::pair(rank, first);
    }
  }
  return {-1, -1};
}

namespace {

/// Adds the proposals with what they reach.
void evaluate(const topology::Network& network, std::vector<Proposal> proposals, MachinePlan& plan) {
  Routes routes(network);
  const int lanes_max = plan.question.lanes_max;
  for (Proposal& proposal : proposals) {
    if (lanes_max > 0 && proposal.candidate.lanes > lanes_max) {
      plan.left_out.push_back(fmt::format("{}: takes {} lanes", proposal.candidate.label(), proposal.candidate.lanes));
      continue;
    }
    // Each proposal's paths are its own.
    for (const auto& [lane, path] : proposal.paths) routes.add_path(lane, path);
    const bool hierarchical = !proposal.candidate.hierarchy.groups.empty();
    const auto state = hierarchical ? hierarchical_state(proposal.candidate, routes)
                                    : steady_state(proposal.candidate.schedule, routes);
    routes.forget_paths();
    if (!state) {
      plan.left_out.push_back(
          fmt::format("{}: some ranks reach each other through other ranks only", proposal.candidate.label()));
      continue;
    }
    MachineCandidate& candidate = proposal.candidate;
    candidate.gbps = state->gbps;
    candidate.ratio = candidate.gbps / plan.certificate.gbps;
    constexpr double kRounding = 1e-9;  // of sums in floating point: what reaches the bound reaches it
    if (std::abs(candidate.ratio - 1) < kRounding) candidate.ratio = 1;
    candidate.fullest = state->fullest;
    candidate.waits = waits_between_rounds(candidate, plan.question);
    candidate.paths = std::move(proposal.paths);
    plan.candidates.push_back(std::move(candidate));
  }
}

/// All-pairs exchanges that reach the bound are better than any tree; among many ranks trees take seconds to find.
bool needs_no_trees(const MachinePlan& plan) {
  constexpr int kManyRanks = 64;
  if (plan.ranks <= kManyRanks || !plan.question.direct) return false;
  return std::ranges::any_of(plan.candidates, [](const MachineCandidate& c) { return !c.waits && c.ratio >= kNear; });
}

/// Trees, and the rows of the table of algorithms.
void evaluate_flat(const topology::Network& network, MachinePlan& plan) {
  const auto before = static_cast<std::ptrdiff_t>(plan.candidates.size());
  evaluate(network, propose_rows(network, plan.question), plan);
  const auto rows_end = static_cast<std::ptrdiff_t>(plan.candidates.size());
  if (needs_no_trees(plan)) {
    plan.left_out.emplace_back("packed_trees: not looked for among so many ranks, as all pairs reach the bound");
    return;
  }
  evaluate(network, propose_trees(network, plan.question, plan.certificate.gbps * topology::kGigabyte), plan);
  // Of equals trees come first.
  const auto begin = plan.candidates.begin();
  std::rotate(begin + before, begin + rows_end, plan.candidates.end());
}

/// Rings take the most hops, and to find them the most time: they are only worth it where something is left to gain, among
/// many links not a few per cent.
bool near_the_bound(const MachinePlan& plan, const topology::Network& network) {
  constexpr int kFewRanks = 16;
  constexpr std::size_t kFewArcs = 200;
  const double near = plan.ranks > kFewRanks ? 0.9 : network.arcs.size() > kFewArcs ? 0.97 : kNear;
  return std::ranges::any_of(plan.candidates, [&](const MachineCandidate& c) { return !c.waits && c.ratio >= near; });
}

}  // namespace

Result<MachinePlan> plan_machine(const topology::Network& network, const MachineQuestion& question) {
  TUTTI_TRY(refuse(network, question));
  MachinePlan plan;
  plan.question = question;
  plan.ranks = static_cast<int>(network.compute.size());
  plan.certificate = certify(network, question);
  if (plan.ranks == 1) {
    plan.candidates.push_back(alone(question.collective));
    return plan;
  }
  evaluate(network, propose_hierarchical(network, question), plan);
  if (is_flat(network)) {
    evaluate_flat(network, plan);
    if (!near_the_bound(plan, network)) add_rings(plan, network);
  }
  if (plan.candidates.empty())
    return error(Code::kInvalidArgument,
                 fmt::format("no plan: the links differ in their two directions, and what they have both ways does not "
                             "join the ranks, as all algorithms here need; the bound is {:.4g} GB/s",
                             plan.certificate.gbps));
  choose(plan.candidates);
  return plan;
}

void add_rings(MachinePlan& plan, const topology::Network& network) {
  if (plan.ranks == 1 || plan.with_rings || !is_flat(network)) return;
  plan.with_rings = true;
  const topology::RingPacking packing = topology::pack_rings(network);
  const double loops = plan.question.collective == Collective::kAllReduce ? 1 : 2;
  plan.ring_gbps = packing.rate / topology::kGigabyte * loops;
  plan.ring_limit_gbps = std::min(packing.limit / topology::kGigabyte * loops, plan.certificate.gbps);
  if (packing.rings.empty()) {
    plan.left_out.emplace_back(plan.rings_are_best() ? "ring: no ring goes through all ranks"
                                                     : "ring: no ring through all ranks was found");
    return;
  }
  std::vector<Proposal> rings;
  rings.push_back(propose_rings(network, plan.question, packing));
  evaluate(network, std::move(rings), plan);
  if (plan.candidates.size() > 1)
    std::stable_sort(plan.candidates.begin() + 1, plan.candidates.end(),
                     [](const auto& a, const auto& b) { return a.gbps > b.gbps; });
}

void limit_by_memory(MachinePlan& plan, double gbps) {
  Certificate& certificate = plan.certificate;
  if (certificate.unlimited || certificate.gbps <= gbps) return;
  certificate.links_gbps = std::exchange(certificate.gbps, gbps);
  plan.ring_gbps = std::min(plan.ring_gbps, gbps);
  plan.ring_limit_gbps = std::min(plan.ring_limit_gbps, gbps);
  for (MachineCandidate& candidate : plan.candidates) {
    if (candidate.gbps > gbps) {
      candidate.gbps = gbps;
      candidate.fullest = -1;
    }
    candidate.ratio = candidate.gbps / gbps;
  }
}

schedule::Schedule full_schedule(const MachineCandidate& candidate, int units) {
  if (!candidate.hierarchy.groups.empty()) {
    algorithm::Hierarchy hierarchy = candidate.hierarchy;
    constexpr int kChunksPerHop = 16;
    if (hierarchy.across == "tree") hierarchy.chunks = units > 0 ? units : kChunksPerHop * candidate.hops_across;
    return algorithm::hierarchical(candidate.schedule.request, hierarchy);
  }
  if (!candidate.pairs.empty())
    return algorithm::packed_pairs(candidate.pairs, units > 0 ? units : algorithm::units_for(candidate.pairs));
  if (!candidate.rooted.empty()) {
    const int count = units > 0 ? units : algorithm::units_for(candidate.rooted);
    return candidate.schedule.request.collective == Collective::kAllGather
               ? algorithm::packed_out_trees(candidate.rooted, count, candidate.slots)
               : algorithm::packed_in_trees(candidate.rooted, count, candidate.slots);
  }
  if (candidate.trees.empty()) return candidate.schedule;
  return algorithm::packed_trees(candidate.trees, units > 0 ? units : algorithm::units_for(candidate.trees));
}

}  // namespace tutti::planner
