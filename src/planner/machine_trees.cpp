#include "planner/machine_trees.h"

#include "algorithm/planned_trees.h"
#include "planner/between_hosts.h"
#include "planner/machine_links.h"
#include "planner/machine_plan.h"
#include "topology/gpu_distance.h"
#include "topology/rings.h"
#include "topology/view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace tutti::planner {
namespace {

/// By rank, the place of the compute node that is its; empty: some rank has none of its own.
template <class IsIts>
std::vector<int> distinct_places(const topology::Graph& graph, const topology::ComputeNodes& compute, std::size_t ranks,
                                 const IsIts& is_its) {
  std::vector<int> places;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto found =
        std::ranges::find_if(compute.nodes, [&](int node) { return is_its(rank, graph.node(node).facts); });
    const int place = static_cast<int>(found - compute.nodes.begin());
    if (found == compute.nodes.end() || std::ranges::find(places, place) != places.end()) return {};
    places.push_back(place);
  }
  return places;
}

/// By rank, the place of the GPU with its bus id; empty: the graph does not have all of them.
std::vector<int> gpu_places(const topology::Graph& graph, const topology::ComputeNodes& compute,
                            const RankPlaces& ranks) {
  return distinct_places(graph, compute, ranks.gpus.size(), [&](std::size_t rank, const topology::Facts& facts) {
    return !facts.bus_id.empty() && facts.bus_id == bus_id_of(ranks.gpus[rank]);
  });
}

/// By rank, its place among the machine's compute nodes; by number where the graph does not tell: a schedule is right for any.
Result<std::vector<int>> places_of(const topology::Graph& graph, const RankPlaces& ranks) {
  const topology::ComputeNodes compute = topology::compute_nodes(graph);
  const std::size_t count = ranks.numas.size();
  std::vector<int> places;
  if (!ranks.gpus.empty()) {
    places = gpu_places(graph, compute, ranks);
  } else if (compute.kind == topology::ComputeKind::kNuma) {
    places = distinct_places(graph, compute, count, [&](std::size_t rank, const topology::Facts& facts) {
      return ranks.numas[rank] >= 0 && facts.numa == ranks.numas[rank];
    });
  }
  if (!places.empty()) return places;
  if (compute.nodes.size() != count || (!ranks.gpus.empty() && compute.kind != topology::ComputeKind::kGpu)) {
    return error(Code::kInvalidArgument,
                 fmt::format("the machine has {} {}s, but there are {} ranks{}", compute.nodes.size(),
                             topology::name_of(compute.kind), count, ranks.gpus.empty() ? "" : " on GPUs"));
  }
  places.resize(count);
  std::iota(places.begin(), places.end(), 0);
  return places;
}

/// A rank has a tree to or from each rank in each lane: fewer lanes where ranks are many, so that programs stay short.
int lanes_for(Collective collective, int ranks, int lanes_most) {
  constexpr int kTreesMost = 8192;
  constexpr int kLeastLanes = 2;
  if (collective == Collective::kAllReduce) return lanes_most;
  return std::min(lanes_most, std::max(kLeastLanes, kTreesMost / (ranks * ranks)));
}

/// A view has ranks in the order of their places.
class Renaming {
 public:
  explicit Renaming(const std::vector<int>& places) : rank_of_(places.size()) {
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      const auto before = std::ranges::count_if(places, [&](int place) { return place < places[rank]; });
      rank_of_[static_cast<std::size_t>(before)] = static_cast<int>(rank);
    }
  }

  algorithm::Parents renamed(const algorithm::Parents& parents) const {
    algorithm::Parents made(parents.size(), algorithm::kNoParent);
    for (std::size_t i = 0; i < parents.size(); ++i) {
      if (parents[i] != algorithm::kNoParent)
        made[static_cast<std::size_t>(rank_of_[i])] = rank_of_[static_cast<std::size_t>(parents[i])];
    }
    return made;
  }
  algorithm::RootedTrees renamed(const algorithm::RootedTrees& trees) const {
    algorithm::RootedTrees made(trees.size());
    for (std::size_t root = 0; root < trees.size(); ++root)
      made[static_cast<std::size_t>(rank_of_[root])] = renamed(trees[root]);
    return made;
  }
  algorithm::PlannedTrees renamed(Collective collective, const MachineCandidate& candidate) const {
    algorithm::PlannedTrees made{collective, {}, {}, {}};
    for (const algorithm::Parents& parents : candidate.trees) made.lanes.push_back(renamed(parents));
    for (const algorithm::TreePair& pair : candidate.pairs)
      made.pairs.push_back({renamed(pair.up), renamed(pair.down)});
    for (const algorithm::RootedTrees& rooted : candidate.rooted) made.rooted.push_back(renamed(rooted));
    return made;
  }

  int rank_of(int rank_of_view) const { return rank_of_[static_cast<std::size_t>(rank_of_view)]; }

 private:
  std::vector<int> rank_of_;  ///< by rank of the view
};

}  // namespace

static_assert(algorithm::kTreeLanesMax == kLanesWanted, "communicators run what tutti-topo shows");

Result<std::string> machine_trees(const topology::Graph& graph, const RankPlaces& ranks, int lanes_most) {
  const std::size_t count = ranks.numas.size();
  if (graph.hosts().size() != 1) return error(Code::kInvalidArgument, "the machine is several hosts");
  if (count > algorithm::kTreeRanksMax)
    return error(Code::kInvalidArgument,
                 fmt::format("{} ranks: trees are planned for at most {}", count, algorithm::kTreeRanksMax));
  TUTTI_TRY_ASSIGN(const std::vector<int> places, places_of(graph, ranks));
  TUTTI_TRY_ASSIGN(const topology::View view, topology::view_of(graph, {.chosen = places, .all_links = false}));
  const bool direct = may_be_direct(link_table(graph, view));
  const Renaming renaming(places);
  std::string text;
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    const int lanes = lanes_for(collective, static_cast<int>(count), lanes_most);
    TUTTI_TRY_ASSIGN(
        const MachinePlan plan,
        plan_machine(view.network, {.collective = collective, .lanes_max = lanes, .hosts = {}, .direct = direct}));
    for (const char* const algorithm : {"packed_trees", "packed_pairs"}) {
      const MachineCandidate* candidate = plan.find(algorithm);
      if (candidate != nullptr) text += algorithm::to_text(renaming.renamed(collective, *candidate));
    }
  }
  return text;
}

Result<bool> gpus_apart(const topology::Graph& graph, const RankPlaces& ranks) {
  if (graph.hosts().size() != 1) return error(Code::kInvalidArgument, "the machine is several hosts");
  TUTTI_TRY_ASSIGN(const std::vector<int> places, places_of(graph, ranks));
  TUTTI_TRY_ASSIGN(const topology::View view, topology::view_of(graph, {.chosen = places, .all_links = false}));
  const int count = view.ranks();
  std::vector<std::vector<int>> next(static_cast<std::size_t>(count));  // by rank, where its arcs lead
  for (const topology::Arc& arc : view.network.arcs) {
    if (arc.from < count) next[static_cast<std::size_t>(arc.from)].push_back(arc.to);
  }
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < a; ++b) {
      const auto& from = next[static_cast<std::size_t>(a)];
      const auto& to = next[static_cast<std::size_t>(b)];
      const auto joins = [&](int node) {
        return node == b || (node >= count && std::ranges::find(to, node) != to.end());
      };
      if (std::ranges::none_of(from, joins)) return true;
    }
  }
  return false;
}

Result<std::vector<int>> gpu_ring(const topology::Graph& graph, const RankPlaces& ranks) {
  constexpr std::size_t kRanksMost = 16;
  if (graph.hosts().size() != 1) return error(Code::kInvalidArgument, "the machine is several hosts");
  if (ranks.numas.size() > kRanksMost) return error(Code::kInvalidArgument, "a ring is sought for at most 16 ranks");
  TUTTI_TRY_ASSIGN(const std::vector<int> places, places_of(graph, ranks));
  TUTTI_TRY_ASSIGN(const topology::View view, topology::view_of(graph, {.chosen = places, .all_links = false}));
  const topology::RingPacking packing = topology::pack_rings(view.network);
  const auto best = std::ranges::max_element(packing.rings, {}, &topology::Ring::rate);
  if (best == packing.rings.end()) return std::vector<int>();
  const Renaming renaming(places);
  std::vector<int> order;
  for (const int node : best->order) order.push_back(renaming.rank_of(node));
  std::ranges::rotate(order, std::ranges::find(order, 0));
  return order;
}

Result<std::vector<GpuDistance>> gpu_distances(const topology::Graph& graph, const RankPlaces& ranks) {
  if (graph.hosts().size() != 1) return error(Code::kInvalidArgument, "the machine is several hosts");
  const topology::ComputeNodes compute = topology::compute_nodes(graph);
  const std::vector<int> places = gpu_places(graph, compute, ranks);
  if (places.empty()) {
    return error(Code::kInvalidArgument,
                 fmt::format("the machine's graph does not have all of the GPUs {}", fmt::join(ranks.gpus, ", ")));
  }
  const std::vector<int>& nodes = compute.nodes;
  std::vector<GpuDistance> all;
  for (const int a : places) {
    for (const int b : places) {
      all.push_back(
          topology::gpu_distance(graph, nodes[static_cast<std::size_t>(a)], nodes[static_cast<std::size_t>(b)]));
    }
  }
  return all;
}

}  // namespace tutti::planner
