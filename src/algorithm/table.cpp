// The table of algorithms. To add one: a file with its function, the function's name below, its rows, a line in
// meson.build. The tests run every row for every rank count up to 32, every root, in place and out of place.
#include "algorithm/hierarchical.h"
#include "algorithm/pattern.h"

#include <algorithm>
#include <iterator>

namespace tutti::algorithm {

using schedule::Shape;

Build binomial, chain, halving_doubling, grouped, oneshot, p2p, pairwise, ring, tree, twoshot;

Shape unit_per_column(const Request& request);  // of grouped

namespace {

template <Collective... kServed>
bool serves(const Request& request) {
  const auto is_rank = [&](int number) { return 0 <= number && number < request.ranks; };
  return ((request.collective == kServed) || ...) && is_rank(request.root) && is_rank(request.rank);
}

/// With a group for each rank, or without any.
bool in_groups(const Request& request) {
  if (request.collective != Collective::kAllReduce) return false;
  return request.groups == nullptr || request.groups->size() == index(request.ranks);
}

/// The collective's own blocks (a rooted one's at the root), nothing cut.
Shape whole(const Request& request) {
  Shape shape;
  shape.input_blocks = std::max(input_blocks(request, request.root), input_blocks(request, request.rank));
  shape.output_blocks = std::max(output_blocks(request, request.root), output_blocks(request, request.rank));
  return shape;
}

Shape unit_per_rank(const Request& request) {
  Shape shape = whole(request);
  shape.units = index(request.ranks);
  return shape;
}

Shape unit_per_player(const Request& request) {
  Shape shape = whole(request);
  shape.units = index(power_of_two_below(request.ranks));
  return shape;
}

Shape scratch_per_rank(const Request& request) {
  Shape shape = whole(request);
  shape.scratch_blocks = request.ranks > 2 ? index(request.ranks) : 0;
  return shape;
}

Shape two_trees(const Request& request) {
  Shape shape = whole(request);
  shape.lanes = request.ranks > 1 ? 2 : 1;
  return shape;
}

/// Hosts of which one at least has several ranks: what would go across is met inside first.
template <Collective... kServed>
bool over_hosts(const Request& request) {
  if (!serves<kServed...>(request) || request.groups == nullptr) return false;
  if (request.groups->size() != index(request.ranks)) return false;
  const int last = *std::ranges::max_element(*request.groups);
  return last > 0 && last + 1 < request.ranks;
}

/// The schedule that was made for the machine, or nullptr.
template <const char* kName>
const schedule::Schedule* planned_for(const Request& request) {
  if (request.planned == nullptr) return nullptr;
  const auto is_for_it = [&](const schedule::Schedule& made) {
    return made.algorithm == kName && made.request.collective == request.collective &&
           made.request.ranks == request.ranks;
  };
  const auto made = std::ranges::find_if(*request.planned, is_for_it);
  return made == request.planned->end() ? nullptr : &*made;
}
template <const char* kName, Collective kServed>
bool is_planned(const Request& request) {
  return serves<kServed>(request) && planned_for<kName>(request) != nullptr;
}
template <const char* kName>
Shape planned_shape(const Request& request) {
  return planned_for<kName>(request)->shape;
}
template <const char* kName>
schedule::RankProgram planned(const Request& request, int rank) {
  return planned_for<kName>(request)->ranks[index(rank)];
}

// Template arguments need names of their own: what is planned, and what goes across hosts.
constexpr char kTrees[] = "packed_trees", kPairs[] = "packed_pairs";
constexpr char kRing[] = "ring", kTree[] = "tree", kTwoshot[] = "twoshot", kOneshot[] = "oneshot",
               kDoubling[] = "halving_doubling", kBinomial[] = "binomial", kPairwise[] = "pairwise";

template <const char* kAcross>
Shape hosts_shape(const Request& request) {
  return hierarchical_shape(request, hierarchy_of(request, kAcross));
}
template <const char* kAcross>
schedule::RankProgram hosts(const Request& request, int rank) {
  return hierarchical(request, hierarchy_of(request, kAcross), rank);
}

/// Of hosts, however many ranks they have: what goes across waits for the network.
template <Collective... kServed>
bool between_hosts(const Request& request) {
  if (!serves<kServed...>(request) || request.groups == nullptr) return false;
  return request.groups->size() == index(request.ranks) && *std::ranges::max_element(*request.groups) > 0;
}
/// What the slots of a communicator of any size are enough for.
constexpr int kChunksAbreast = 3;
Hierarchy ring_abreast(const Request& request) {
  Hierarchy hierarchy = hierarchy_of(request, kRing);
  hierarchy.chunks = kChunksAbreast;
  hierarchy.abreast = true;
  return hierarchy;
}
Shape abreast_shape(const Request& request) { return hierarchical_shape(request, ring_abreast(request)); }
schedule::RankProgram abreast(const Request& request, int rank) {
  return hierarchical(request, ring_abreast(request), rank);
}

using enum Collective;

// clang-format off
constexpr Algorithm kTable[] = {
  {.name = "ring", .summary = "units travel round the ring of ranks, summed on the way, then once more as results",
   .supports = serves<kAllReduce>, .shape = unit_per_rank, .build = ring,
   .direct = true, .direct_in_place = true, .wide_wire = true},
  {.name = "ring", .summary = "blocks travel round the ring of ranks, summed on the way",
   .supports = serves<kReduceScatter>, .shape = whole, .build = ring, .wide_wire = true},
  {.name = "ring", .summary = "blocks travel round the ring of ranks",
   .supports = serves<kAllGather>, .shape = whole, .build = ring, .direct = true, .direct_in_place = true},
  {.name = "ring", .summary = "the ring broken at the root: a chain down from it",
   .supports = serves<kBroadcast>, .shape = whole, .build = chain, .direct = true, .direct_in_place = true},
  {.name = "ring", .summary = "the ring broken at the root: a chain that sums on the way to it",
   .supports = serves<kReduce>, .shape = whole, .build = chain, .wide_wire = true},

  {.name = "tree", .summary = "double binary tree: sums go up two trees, half of the data each, results down",
   .supports = serves<kAllReduce>, .shape = two_trees, .build = tree,
   .direct = true, .direct_in_place = true, .wide_wire = true},
  {.name = "tree", .summary = "double binary tree below the root, half of the data down each",
   .supports = serves<kBroadcast>, .shape = two_trees, .build = tree, .direct = true, .direct_in_place = true},
  {.name = "tree", .summary = "double binary tree below the root, half of the data summed up each",
   .supports = serves<kReduce>, .shape = two_trees, .build = tree, .wide_wire = true},

  {.name = "oneshot", .summary = "every rank sends all it has to every rank, which sums in rank order",
   .supports = serves<kAllReduce>, .shape = whole, .build = oneshot,
   .direct = true, .reproducible = true, .wide_wire = true},
  {.name = "oneshot", .summary = "every rank sends each block to its rank, which sums in rank order",
   .supports = serves<kReduceScatter>, .shape = whole, .build = oneshot,
   .direct = true, .direct_in_place = true, .reproducible = true, .wide_wire = true},
  {.name = "oneshot", .summary = "every rank sends to the root, which sums in rank order",
   .supports = serves<kReduce>, .shape = whole, .build = oneshot,
   .direct = true, .direct_in_place = true, .reproducible = true, .wide_wire = true},
  {.name = "oneshot", .summary = "every block goes straight from the rank that has it to the ranks that want it",
   .supports = serves<kAllGather, kBroadcast, kGather, kScatter>, .shape = whole, .build = oneshot,
   .direct = true, .direct_in_place = true},
  {.name = "oneshot", .summary = "every rank sends each block to its rank, all at once",
   .supports = serves<kAllToAll>, .shape = whole, .build = oneshot, .direct = true},

  {.name = "twoshot", .summary = "each rank sums its unit in rank order and sends the result to all",
   .supports = serves<kAllReduce>, .shape = unit_per_rank, .build = twoshot,
   .direct = true, .direct_in_place = true, .reproducible = true, .wide_wire = true},
  {.name = "twoshot", .summary = "each rank sums its unit in rank order and sends the result to the root",
   .supports = serves<kReduce>, .shape = unit_per_rank, .build = twoshot,
   .direct = true, .direct_in_place = true, .reproducible = true, .wide_wire = true},
  {.name = "twoshot", .summary = "the root gives each rank its unit, which passes it to all the others",
   .supports = serves<kBroadcast>, .shape = unit_per_rank, .build = twoshot, .direct = true, .direct_in_place = true},

  {.name = "halving_doubling", .summary = "pairs exchange halves of halves while summing, then the results back",
   .supports = serves<kAllReduce>, .shape = unit_per_player, .build = halving_doubling},
  {.name = "halving_doubling", .summary = "recursive halving: pairs exchange halves of halves while summing",
   .supports = serves<kReduceScatter>, .shape = scratch_per_rank, .build = halving_doubling},
  {.name = "halving_doubling", .summary = "recursive doubling: pairs exchange all they have so far",
   .supports = serves<kAllGather>, .shape = whole, .build = halving_doubling,
   .direct = true, .direct_in_place = true},

  {.name = "grouped", .summary = "sums inside groups of near ranks, then between the groups, results back the same way",
   .supports = in_groups, .shape = unit_per_column, .build = grouped,
   .direct = true, .direct_in_place = true, .wide_wire = true, .in_groups = true},

  {.name = "hosts_ring", .summary = "each host's ranks share a part each; a ring across the hosts on each part, results inside",
   .supports = over_hosts<kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce>, .shape = hosts_shape<kRing>, .build = hosts<kRing>,
   .wide_wire = true, .over_hosts = true},
  {.name = "hosts_ring_deep", .summary = "a ring across the hosts on each part, three pieces of it abreast, so that the network need not wait",
   .supports = between_hosts<kAllReduce, kReduceScatter, kAllGather>, .shape = abreast_shape, .build = abreast,
   .wide_wire = true, .over_hosts = true},
  {.name = "hosts_tree", .summary = "each host's ranks share a part each; a double binary tree across the hosts, results inside",
   .supports = over_hosts<kAllReduce, kBroadcast, kReduce>, .shape = hosts_shape<kTree>, .build = hosts<kTree>,
   .wide_wire = true, .over_hosts = true},
  {.name = "hosts_twoshot", .summary = "each host's ranks share a part each; of it each host sums a unit and sends it to all, results inside",
   .supports = over_hosts<kAllReduce>, .shape = hosts_shape<kTwoshot>, .build = hosts<kTwoshot>,
   .wide_wire = true, .over_hosts = true},
  {.name = "hosts_oneshot", .summary = "each host's ranks share a part each; every host sends to every host, results inside",
   .supports = over_hosts<kReduceScatter, kAllGather, kBroadcast, kReduce>, .shape = hosts_shape<kOneshot>, .build = hosts<kOneshot>,
   .wide_wire = true, .over_hosts = true},
  {.name = "hosts_oneshot", .summary = "each block crosses once, from or to the rank of its place on the root's host, which hands it on",
   .supports = over_hosts<kGather, kScatter>, .shape = hosts_shape<kOneshot>, .build = hosts<kOneshot>, .over_hosts = true},
  {.name = "hosts_doubling", .summary = "each host's ranks share a part each; pairs of hosts exchange all they have so far, results inside",
   .supports = over_hosts<kAllReduce, kReduceScatter, kAllGather>, .shape = hosts_shape<kDoubling>, .build = hosts<kDoubling>,
   .over_hosts = true},
  {.name = "hosts_binomial", .summary = "each host's ranks share a part each; a binomial tree across the hosts, results inside",
   .supports = over_hosts<kBroadcast, kReduce>, .shape = hosts_shape<kBinomial>, .build = hosts<kBinomial>,
   .wide_wire = true, .over_hosts = true},
  {.name = "hosts_pairwise", .summary = "blocks go to the rank of the receiver's place on the own host, and from there across",
   .supports = over_hosts<kAllToAll>, .shape = hosts_shape<kPairwise>, .build = hosts<kPairwise>, .over_hosts = true},

  {.name = "packed_trees", .summary = "trees that together use what the machine's links have: sums go up them, results down",
   .supports = is_planned<kTrees, kAllReduce>, .shape = planned_shape<kTrees>, .build = planned<kTrees>,
   .direct = true, .direct_in_place = true, .wide_wire = true, .planned = true},
  {.name = "packed_trees", .summary = "trees from every rank that together use what the machine's links have",
   .supports = is_planned<kTrees, kAllGather>, .shape = planned_shape<kTrees>, .build = planned<kTrees>,
   .direct = true, .direct_in_place = true, .planned = true},
  {.name = "packed_trees", .summary = "trees to every rank that together use what the machine's links have, sums on the way",
   .supports = is_planned<kTrees, kReduceScatter>, .shape = planned_shape<kTrees>, .build = planned<kTrees>,
   .wide_wire = true, .planned = true},
  {.name = "packed_pairs", .summary = "packed trees where links differ in their two directions: sums up one tree, results down another",
   .supports = is_planned<kPairs, kAllReduce>, .shape = planned_shape<kPairs>, .build = planned<kPairs>,
   .direct = true, .direct_in_place = true, .wide_wire = true, .planned = true},

  {.name = "pairwise", .summary = "exchange rounds: to the rank k ahead, from the rank k behind",
   .supports = serves<kAllToAll>, .shape = whole, .build = pairwise, .direct = true},

  {.name = "chain", .summary = "a line of ranks from the root on, each passes to the next",
   .supports = serves<kBroadcast>, .shape = whole, .build = chain, .direct = true, .direct_in_place = true},
  {.name = "chain", .summary = "a line of ranks to the root, each adds its own and passes on",
   .supports = serves<kReduce>, .shape = whole, .build = chain, .wide_wire = true},

  {.name = "binomial", .summary = "binomial tree from the root",
   .supports = serves<kBroadcast>, .shape = whole, .build = binomial, .direct = true, .direct_in_place = true},
  {.name = "binomial", .summary = "binomial tree to or from the root",
   .supports = serves<kReduce, kGather, kScatter>, .shape = whole, .build = binomial, .wide_wire = true},

  {.name = "p2p", .summary = "one message from the sender to the receiver",
   .supports = serves<kSend, kReceive>, .shape = whole, .build = p2p, .direct = true, .direct_in_place = true},
};

constexpr PlannedAlgorithm kPlanned[] = {
  {.name = "hierarchical", .summary = "sums inside each host, a pattern of this table across hosts on each rail, results inside"},
};
// clang-format on

}  // namespace

std::span<const Algorithm> algorithms() { return kTable; }
std::span<const PlannedAlgorithm> planned_algorithms() { return kPlanned; }

const Algorithm* find(std::string_view name, const Request& request) {
  const auto serves_it = [&](const Algorithm& row) { return row.name == name && row.supports(request); };
  const auto* row = std::find_if(std::begin(kTable), std::end(kTable), serves_it);
  return row == std::end(kTable) ? nullptr : row;
}

schedule::Schedule make_schedule(const Algorithm& algorithm, const Request& request) {
  schedule::Schedule made{std::string(algorithm.name), request, algorithm.shape(request), {}};
  made.request.groups = nullptr;
  made.request.planned = nullptr;
  made.ranks.reserve(static_cast<std::size_t>(request.ranks));
  for (int rank = 0; rank < request.ranks; ++rank) made.ranks.push_back(algorithm.build(request, rank));
  return made;
}

}  // namespace tutti::algorithm
