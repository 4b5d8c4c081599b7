#include "planner/machine_trees.h"

#include "algorithm/planned_trees.h"
#include "planner/machine_links.h"
#include "planner/machine_plan.h"
#include "topology/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace tutti::planner {
namespace {

/// By rank, its place among the machine's compute nodes.
Result<std::vector<int>> places_of(const topology::Graph& graph, const std::vector<int>& numas) {
  const topology::ComputeNodes compute = topology::compute_nodes(graph);
  std::vector<int> places;
  for (const int numa : numas) {
    const auto sits_there = [&](int node) { return graph.node(node).facts.numa == numa; };
    const auto found = std::ranges::find_if(compute.nodes, sits_there);
    const int place = static_cast<int>(found - compute.nodes.begin());
    if (numa < 0 || compute.kind != topology::ComputeKind::kNuma || found == compute.nodes.end() ||
        std::ranges::find(places, place) != places.end())
      break;
    places.push_back(place);
  }
  if (places.size() == numas.size()) return places;
  if (compute.nodes.size() != numas.size()) {
    return error(Code::kInvalidArgument,
                 fmt::format("the machine has {} {}s, but there are {} ranks", compute.nodes.size(),
                             topology::name_of(compute.kind), numas.size()));
  }
  places.resize(numas.size());
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

 private:
  std::vector<int> rank_of_;  ///< by rank of the view
};

}  // namespace

static_assert(algorithm::kTreeLanesMax == kLanesWanted, "communicators run what tutti-topo shows");

Result<std::string> machine_trees(const topology::Graph& graph, const std::vector<int>& numas, int lanes_most) {
  if (graph.hosts().size() != 1) return error(Code::kInvalidArgument, "the machine is several hosts");
  if (numas.size() > algorithm::kTreeRanksMax)
    return error(Code::kInvalidArgument,
                 fmt::format("{} ranks: trees are planned for at most {}", numas.size(), algorithm::kTreeRanksMax));
  TUTTI_TRY_ASSIGN(const std::vector<int> places, places_of(graph, numas));
  TUTTI_TRY_ASSIGN(const topology::View view, topology::view_of(graph, {.chosen = places, .all_links = false}));
  const bool direct = may_be_direct(link_table(graph, view));
  const Renaming renaming(places);
  std::string text;
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    const int lanes = lanes_for(collective, static_cast<int>(numas.size()), lanes_most);
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

}  // namespace tutti::planner
