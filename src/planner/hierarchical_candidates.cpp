#include "planner/hierarchical_candidates.h"

#include "algorithm/hierarchical.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

namespace tutti::planner {

namespace {

using algorithm::Hierarchy;

int doublings(std::size_t count) {
  int rounds = 0;
  for (std::size_t reached = 1; reached < count; reached *= 2) ++rounds;
  return rounds;
}

/// Messages after one another between hosts.
int hops_between(const Hierarchy& hierarchy, Collective collective) {
  const std::size_t hosts = hierarchy.groups.size();
  const int ways = collective == Collective::kAllReduce ? 2 : 1;
  if (hierarchy.across == "ring") return ways * static_cast<int>(hosts - 1);
  if (hierarchy.across == "twoshot" || hierarchy.across == "oneshot") return ways;
  const bool uneven = hierarchy.across == "halving_doubling" && (hosts & (hosts - 1)) != 0;
  return ways * (doublings(hosts) + (uneven ? 1 : 0));
}

Proposal hierarchical(const MachineQuestion& question, int ranks, Hierarchy hierarchy) {
  Proposal proposal;
  MachineCandidate& candidate = proposal.candidate;
  candidate.algorithm = "hierarchical";  // as in algorithm::planned_algorithms()
  candidate.hierarchy = std::move(hierarchy);
  const schedule::Request request{question.collective, ranks, 0, 0};
  if (ranks <= kPlannedRanksMax) {
    candidate.schedule = algorithm::hierarchical(request, candidate.hierarchy);
  } else {
    candidate.schedule = {"hierarchical", request, algorithm::hierarchical_shape(request, candidate.hierarchy), {}};
  }
  candidate.lanes = static_cast<int>(candidate.schedule.shape.lanes);
  candidate.hops_across = hops_between(candidate.hierarchy, question.collective);
  const bool has_inside = std::ranges::any_of(candidate.hierarchy.groups, [](const auto& g) { return g.size() > 1; });
  candidate.hops = candidate.hops_across + (!has_inside ? 0 : question.collective == Collective::kAllReduce ? 2 : 1);
  return proposal;
}

/// All pairs are many messages, and to know the order of doublings takes all hosts' steps: too much among more hosts.
std::size_t hosts_max(std::string_view across, Collective collective) {
  if (across == "twoshot" || across == "oneshot") return 32;
  if (across == "halving_doubling" && collective != Collective::kAllReduce) return 256;
  return kHostedRanksMax;
}

/// By node: hops to the nearest rank of a host that is not this one.
std::vector<int> hops_away(const topology::Network& network, const std::vector<int>& host_of, int host) {
  std::vector<std::vector<int>> entering(static_cast<std::size_t>(network.nodes));
  for (const topology::Arc& arc : network.arcs) entering[static_cast<std::size_t>(arc.to)].push_back(arc.from);
  std::vector<int> hops(static_cast<std::size_t>(network.nodes), std::numeric_limits<int>::max());
  std::vector<int> queue;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    if (host_of[rank] == host) continue;
    hops[rank] = 0;
    queue.push_back(static_cast<int>(rank));
  }
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const auto node = static_cast<std::size_t>(queue[i]);
    const bool is_rank = node < host_of.size();
    if (is_rank && host_of[node] == host) continue;  // nothing passes through a rank
    for (const int from : entering[node]) {
      if (hops[static_cast<std::size_t>(from)] != std::numeric_limits<int>::max()) continue;
      hops[static_cast<std::size_t>(from)] = hops[node] + 1;
      queue.push_back(from);
    }
  }
  return hops;
}

/// By host the ranks that are nearest to other hosts, as those beside a NIC are; nothing if all are equally near.
std::vector<std::vector<int>> nearest_carriers(const topology::Network& network, const MachineQuestion& question,
                                               const std::vector<int>& host_of) {
  // One search for each host: of more hosts than this the first one's shape stands for the others'.
  constexpr std::size_t kHostsMax = 64;
  if (question.hosts.size() > kHostsMax) return {};
  std::vector<std::vector<int>> carriers;
  bool some = false;
  for (std::size_t host = 0; host < question.hosts.size(); ++host) {
    const std::vector<int> hops = hops_away(network, host_of, static_cast<int>(host));
    const auto away = [&](int rank) { return hops[static_cast<std::size_t>(rank)]; };
    const std::vector<int>& group = question.hosts[host];
    const int least = away(*std::ranges::min_element(group, {}, away));
    carriers.emplace_back();
    std::ranges::copy_if(group, std::back_inserter(carriers.back()), [&](int rank) { return away(rank) == least; });
    some = some || carriers.back().size() < group.size();
  }
  return some ? carriers : std::vector<std::vector<int>>{};
}

}  // namespace

std::vector<Proposal> propose_hierarchical(const topology::Network& network, const MachineQuestion& question) {
  if (question.hosts.size() < 2) return {};
  const int ranks = static_cast<int>(network.compute.size());
  const std::vector<std::vector<int>> nearest = nearest_carriers(network, question, host_of_ranks(question, ranks));
  std::vector<Proposal> proposals;
  for (const std::string_view across : algorithm::across_patterns(question.collective)) {
    if (question.hosts.size() > hosts_max(across, question.collective)) continue;
    proposals.push_back(hierarchical(question, ranks, {question.hosts, {}, across, 1}));
    if (!nearest.empty()) proposals.push_back(hierarchical(question, ranks, {question.hosts, nearest, across, 1}));
  }
  return proposals;
}

std::optional<SteadyState> hierarchical_state(const MachineCandidate& candidate, Routes& routes) {
  const schedule::Request& request = candidate.schedule.request;
  Traffic traffic(request.ranks);
  algorithm::hierarchical_each(request, candidate.hierarchy,
                               [&](int rank, const schedule::RankProgram& program) { traffic.add(rank, program); });
  return traffic.steady_state(candidate.schedule.shape, routes);
}

}  // namespace tutti::planner
