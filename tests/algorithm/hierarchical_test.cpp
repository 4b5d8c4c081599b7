#include "algorithm/hierarchical.h"
#include "algorithm/algorithm.h"
#include "schedule/text.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace tutti;
using algorithm::Hierarchy;
using schedule::Request;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kHostsMost = 3;
#else
constexpr int kHostsMost = 4;
#endif

constexpr Collective kServed[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                  Collective::kBroadcast, Collective::kReduce,        Collective::kAllToAll,
                                  Collective::kGather,    Collective::kScatter};

using Groups = std::vector<std::vector<int>>;

/// Hosts of these sizes, ranks in order.
Groups groups_of(const std::vector<int>& sizes) {
  Groups groups;
  int rank = 0;
  for (const int size : sizes) {
    groups.emplace_back();
    for (int place = 0; place < size; ++place) groups.back().push_back(rank++);
  }
  return groups;
}

int ranks_of(const Groups& groups) {
  int ranks = 0;
  for (const auto& group : groups) ranks += static_cast<int>(group.size());
  return ranks;
}

std::string text_of(const Groups& groups) {
  std::string text;
  for (const auto& group : groups) {
    text += "{ ";
    for (const int rank : group) text += std::to_string(rank) + " ";
    text += "}";
  }
  return text;
}

/// How often the verifier was asked.
int proofs = 0;

void prove(const Request& request, const Hierarchy& hierarchy, std::initializer_list<int> slots = {2, 4}) {
  const schedule::Schedule made = algorithm::hierarchical(request, hierarchy);
  const Request hosts{request.collective, static_cast<int>(hierarchy.groups.size()), 0, 0};
  const algorithm::Algorithm* row = algorithm::find(hierarchy.across, hosts);
  REQUIRE(row != nullptr);
  for (const int count : slots) {
    for (const bool in_place : {false, true}) {
      for (const bool direct : {false, true}) {
        if (direct && in_place && request.collective == Collective::kAllToAll) continue;
        const Status status = verify(made, {count, in_place, direct, false, row->wide_wire});
        ++proofs;
        if (status.ok()) continue;
        INFO(name_of(request.collective) << " across " << hierarchy.across << ", root " << request.root << ", hosts "
                                         << text_of(hierarchy.groups) << ", carriers " << text_of(hierarchy.carriers)
                                         << ", " << hierarchy.chunks << " chunks, " << count << " slots, in place "
                                         << in_place << ", direct " << direct);
        INFO(status.error().message);
        if (request.ranks < 7) INFO(to_text(made));
        REQUIRE(status.ok());
      }
    }
  }
}

/// Every collective, root and pattern.
void prove_all(Hierarchy hierarchy, std::initializer_list<int> slots = {2, 4}) {
  const int ranks = ranks_of(hierarchy.groups);
  for (const Collective collective : kServed) {
    for (const std::string_view across : algorithm::across_patterns(collective)) {
      hierarchy.across = across;
      for (int root = 0; root < (is_rooted(collective) ? ranks : 1); ++root)
        prove({collective, ranks, root, 0}, hierarchy, slots);
    }
  }
}

/// Calls visit for every list of up to `hosts` sizes from 1 to `most`.
template <class Visitor>
void for_each_sizes(int hosts, int most, const Visitor& visit, std::vector<int> sizes = {}) {
  if (!sizes.empty()) visit(sizes);
  if (static_cast<int>(sizes.size()) == hosts) return;
  for (int size = 1; size <= most; ++size) {
    std::vector<int> more = sizes;
    more.push_back(size);
    for_each_sizes(hosts, most, visit, std::move(more));
  }
}

/// Blocks' worth that leaves each host and each rank for other hosts.
struct Leaving {
  std::vector<double> hosts, ranks;
  std::set<std::pair<int, int>> pairs;  ///< of ranks on different hosts that talk
};
Leaving leaving(const schedule::Schedule& made, const Groups& groups) {
  std::vector<std::size_t> host_of(made.ranks.size());
  for (std::size_t host = 0; host < groups.size(); ++host) {
    for (const int rank : groups[host]) host_of[static_cast<std::size_t>(rank)] = host;
  }
  Leaving all{std::vector<double>(groups.size()), std::vector<double>(made.ranks.size()), {}};
  const double unit = 1.0 / (made.shape.units * made.shape.lanes);
  for (std::size_t rank = 0; rank < made.ranks.size(); ++rank) {
    for (const schedule::LaneProgram& lane : made.ranks[rank].lanes) {
      for (const schedule::Step& step : lane.steps) {
        for (const schedule::Endpoint& sink : lane.sinks(step)) {
          if (sink.place != schedule::Place::kPeer || host_of[sink.peer] == host_of[rank]) continue;
          all.hosts[host_of[rank]] += unit * sink.width;
          all.ranks[rank] += unit * sink.width;
          all.pairs.emplace(static_cast<int>(rank), static_cast<int>(sink.peer));
        }
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("hierarchical plans are right for all small hosts, even and uneven, every root and pattern", "[exhaustive]") {
  proofs = 0;
  for_each_sizes(kHostsMost, 3, [](const std::vector<int>& sizes) { prove_all({.groups = groups_of(sizes)}); });
  CHECK(proofs > 5000);
}

TEST_CASE("the table's rows over hosts are right, and there for hosts only", "[exhaustive]") {
  int rows = 0;
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    if (!row.over_hosts) continue;
    ++rows;
    for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1},
                                          {0, 1, 1},
                                          {0, 1},
                                          {0, 1, 2, 3, 4},
                                          {0, 1, 0, 1, 2, 2, 2},
                                          {0, 1, 1, 1, 1, 2, 3, 3},
                                          {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
                                          {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
      const int ranks = static_cast<int>(hosts.size());
      for (const Collective collective : kServed) {
        for (int root = 0; root < (is_rooted(collective) ? ranks : 1); ++root) {
          const Request request{collective, ranks, root, 0, &hosts};
          if (!row.supports(request)) continue;
          const schedule::Schedule made = make_schedule(row, request);
          for (const bool in_place : {false, true}) {
            const Status status = verify(made, {4, in_place, false, false, row.wide_wire});
            INFO(row.name << " " << name_of(collective) << " of " << ranks << " ranks, root " << root);
            INFO((status.ok() ? "" : status.error().message));
            REQUIRE(status.ok());
          }
        }
      }
    }
    const std::vector<int> alone{0, 1, 2}, together{0, 0, 0};
    for (const Collective collective : kServed) {
      CHECK(!row.supports({collective, 3, 0, 0}));
      // Of hosts with one rank each there is a row for what waits for the network.
      const bool is_ring = collective == Collective::kAllReduce || collective == Collective::kAllGather ||
                           collective == Collective::kReduceScatter;
      CHECK(row.supports({collective, 3, 0, 0, &alone}) == (row.name == "hosts_ring_deep" && is_ring));
      CHECK(!row.supports({collective, 3, 0, 0, &together}));
    }
  }
  CHECK(rows == 9);
}

TEST_CASE("ranks in any order, some carriers, several chunks", "[exhaustive]") {
  const unsigned seed = 21;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<int> sizes(1 + below(kHostsMost + 2));
    for (int& size : sizes) size = 1 + static_cast<int>(below(4));
    Hierarchy hierarchy{.groups = groups_of(sizes)};
    std::vector<int> order(static_cast<std::size_t>(ranks_of(hierarchy.groups)));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    for (auto& group : hierarchy.groups) {
      for (int& rank : group) rank = order[static_cast<std::size_t>(rank)];
    }
    if (trial % 3 != 0) {
      hierarchy.carriers = hierarchy.groups;
      for (auto& carriers : hierarchy.carriers) {
        std::ranges::shuffle(carriers, random);
        carriers.resize(1 + below(carriers.size()));
      }
    }
    hierarchy.chunks = 1 + static_cast<int>(below(5));
    prove_all(hierarchy);
  }
}

TEST_CASE("chunks abreast are right with a slot more than there are, and stuck with fewer", "[exhaustive]") {
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{2, 2}, {1, 1}, {1, 1, 1}, {3, 1, 2}, {2, 3}}) {
    for (const int chunks : {1, 2, 3, 7}) {
      Hierarchy hierarchy{.groups = groups_of(sizes)};
      hierarchy.chunks = chunks;
      hierarchy.abreast = true;
      for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather})
        prove({collective, ranks_of(hierarchy.groups), 0, 0}, hierarchy, {chunks + 1, chunks + 2});
    }
  }
  Hierarchy hierarchy{.groups = groups_of({2, 2})};
  hierarchy.chunks = 3;
  hierarchy.abreast = true;
  const schedule::Schedule made = algorithm::hierarchical({Collective::kAllReduce, 4, 0, 0}, hierarchy);
  CHECK(!verify(made, {2, false, false, false, true}).ok());
}

TEST_CASE("hierarchical plans are right for larger hosts and more of them", "[samples]") {
  const std::vector<std::vector<int>> samples = {
      {7, 8},
      {1, 16},
      {16, 1},
      {8, 8, 8, 8},
      {4, 8, 4},
      {5, 7, 3, 6},
      {2, 2, 2, 2, 2, 2, 2, 2, 2},
      std::vector<int>(17, 1),
      {3, 1, 4, 1, 5, 9, 2, 6},
  };
  for (const std::vector<int>& sizes : samples) {
    Hierarchy hierarchy{.groups = groups_of(sizes)};
    const int ranks = ranks_of(hierarchy.groups);
    for (const Collective collective : kServed) {
      for (const std::string_view across : algorithm::across_patterns(collective)) {
        hierarchy.across = across;
        for (const int root : {0, ranks / 2, ranks - 1}) {
          if (root == 0 || is_rooted(collective)) prove({collective, ranks, root, 0}, hierarchy, {2, 8});
        }
      }
    }
  }
}

TEST_CASE("as little leaves a host as can, on every rail its part") {
  const Groups even = groups_of({4, 4, 4});
  const Hierarchy ring{.groups = even};
  const Leaving all_reduce = leaving(algorithm::hierarchical({Collective::kAllReduce, 12, 0, 0}, ring), even);
  for (const double host : all_reduce.hosts) CHECK(host == Approx(2.0 * 2 / 3));
  for (const double rank : all_reduce.ranks) CHECK(rank == Approx(2.0 * 2 / 3 / 4));
  for (const auto& [from, to] : all_reduce.pairs) CHECK(from % 4 == to % 4);
  const Leaving gather = leaving(algorithm::hierarchical({Collective::kAllGather, 12, 0, 0}, ring), even);
  for (const double host : gather.hosts) CHECK(host == Approx(8));
  for (const double rank : gather.ranks) CHECK(rank == Approx(2));
  const Leaving scatter = leaving(algorithm::hierarchical({Collective::kReduceScatter, 12, 0, 0}, ring), even);
  for (const double host : scatter.hosts) CHECK(host == Approx(8));

  // Two hosts of two: each byte crosses once in each direction.
  const Groups two = groups_of({2, 2});
  for (const std::string_view across : algorithm::across_patterns(Collective::kAllReduce)) {
    const Leaving crossed = leaving(
        algorithm::hierarchical({Collective::kAllReduce, 4, 0, 0}, {.groups = two, .carriers = {}, .across = across}),
        two);
    for (const double host : crossed.hosts) CHECK(host == Approx(1));
  }

  // And by hosts_doubling in one message of each rank.
  const schedule::Schedule pairs = algorithm::hierarchical(
      {Collective::kAllReduce, 4, 0, 0}, {.groups = two, .carriers = {}, .across = "halving_doubling"});
  for (int rank = 0; rank < 4; ++rank) {
    int crossing = 0;
    for (const schedule::Endpoint& e : pairs.ranks[static_cast<std::size_t>(rank)].lanes[0].endpoints)
      crossing += e.place == schedule::Place::kPeer && static_cast<int>(e.peer) / 2 != rank / 2;
    CHECK(crossing == 2);  // out, and in
  }

  // Uneven: a host's ranks share what leaves it equally.
  const Groups uneven = groups_of({7, 8});
  const Leaving shared =
      leaving(algorithm::hierarchical({Collective::kAllReduce, 15, 0, 0}, {.groups = uneven}), uneven);
  for (int rank = 0; rank < 15; ++rank)
    CHECK(shared.ranks[static_cast<std::size_t>(rank)] == Approx(1.0 / (rank < 7 ? 7 : 8)));
  const Leaving uneven_gather =
      leaving(algorithm::hierarchical({Collective::kAllGather, 15, 0, 0}, {.groups = uneven}), uneven);
  CHECK(uneven_gather.hosts[0] == Approx(7));
  CHECK(uneven_gather.hosts[1] == Approx(8));
}

TEST_CASE("all-to-all by rails: between hosts ranks of equal places only") {
  const Groups groups = groups_of({4, 4, 4});
  const schedule::Schedule made = algorithm::hierarchical({Collective::kAllToAll, 12, 0, 0},
                                                          {.groups = groups, .carriers = {}, .across = "pairwise"});
  const Leaving crossed = leaving(made, groups);
  for (const auto& [from, to] : crossed.pairs) CHECK(from % 4 == to % 4);
  for (const double rank : crossed.ranks) CHECK(rank == Approx(8));
}

TEST_CASE("gather and scatter by rails: a block crosses once, and the root's host's ranks share what does") {
  const Groups groups = groups_of({4, 4, 4});
  const int root = 5;
  const schedule::Schedule gather = algorithm::hierarchical({Collective::kGather, 12, root, 0},
                                                            {.groups = groups, .carriers = {}, .across = "oneshot"});
  const Leaving gathered = leaving(gather, groups);
  CHECK(gathered.hosts == std::vector<double>{4, 0, 4});
  for (const auto& [from, to] : gathered.pairs) CHECK((from % 4 == to % 4 && to / 4 == 1));
  const schedule::Schedule scatter = algorithm::hierarchical({Collective::kScatter, 12, root, 0},
                                                             {.groups = groups, .carriers = {}, .across = "oneshot"});
  const Leaving scattered = leaving(scatter, groups);
  CHECK(scattered.hosts == std::vector<double>{0, 8, 0});
  for (int rank = 0; rank < 12; ++rank)
    CHECK(scattered.ranks[static_cast<std::size_t>(rank)] == (rank / 4 == 1 ? 2 : 0));
  for (const auto& [from, to] : scattered.pairs) CHECK((from % 4 == to % 4 && from / 4 == 1));

  // A longer host's ranks share the root's, a shorter root's host takes several each.
  const Groups uneven = groups_of({2, 6});
  const Leaving into_two = leaving(
      algorithm::hierarchical({Collective::kGather, 8, 1, 0}, {.groups = uneven, .carriers = {}, .across = "oneshot"}),
      uneven);
  CHECK(into_two.pairs == std::set<std::pair<int, int>>{{2, 0}, {3, 0}, {4, 0}, {5, 1}, {6, 1}, {7, 1}});
  const Leaving out_of_six = leaving(
      algorithm::hierarchical({Collective::kScatter, 8, 7, 0}, {.groups = uneven, .carriers = {}, .across = "oneshot"}),
      uneven);
  CHECK(out_of_six.pairs == std::set<std::pair<int, int>>{{2, 0}, {5, 1}});

  // Carriers alone talk to other hosts.
  const Leaving carried =
      leaving(algorithm::hierarchical({Collective::kGather, 8, 0, 0},
                                      {.groups = uneven, .carriers = {{1}, {4}}, .across = "oneshot"}),
              uneven);
  CHECK(carried.pairs == std::set<std::pair<int, int>>{{4, 1}});
}

TEST_CASE("a rank's own program is the one that all ranks' schedule has") {
  const Hierarchy hierarchy{.groups = groups_of({3, 2, 4})};
  for (const Collective collective : kServed) {
    for (const std::string_view across : algorithm::across_patterns(collective)) {
      Hierarchy one = hierarchy;
      one.across = across;
      const Request request{collective, 9, is_rooted(collective) ? 4 : 0, 0};
      const schedule::Schedule made = algorithm::hierarchical(request, one);
      CHECK(made.shape == algorithm::hierarchical_shape(request, one));
      for (int rank = 0; rank < 9; ++rank)
        CHECK(made.ranks[static_cast<std::size_t>(rank)] == algorithm::hierarchical(request, one, rank));
    }
  }
}

TEST_CASE("the text of two hosts of two") {
  const schedule::Schedule made =
      algorithm::hierarchical({Collective::kAllReduce, 4, 0, 0}, {.groups = groups_of({2, 2})});
  const std::string text = to_text(made);
  CHECK(text.substr(0, text.find("rank 1")) ==
        "schedule hierarchical all_reduce ranks 4 units 4 lanes 1 input 1 output 1 scratch 0\n"
        "rank 0 lane 0\n"
        "  in[0.2] -> send 1 pull in[0.2]\n"
        "  in[0.0] + recv 1 pull in[0.0] -> send 2 partial\n"
        "  in[0.3] -> send 1 pull in[0.3]\n"
        "  recv 2 partial + in[0.1] + recv 1 pull in[0.1] -> out[0.1], send 2 push out[0.1], send 1 push out[0.1] "
        "finish\n"
        "  recv 1 push out[0.3] -> out[0.3]\n"
        "  recv 2 push out[0.0] -> out[0.0], send 1 push out[0.0]\n"
        "  recv 1 push out[0.2] -> out[0.2]\n");
  const Result<schedule::Schedule> read = schedule::parse(text);
  REQUIRE(read.ok());
  CHECK(read.value() == made);
}

// What is promised: a rank's own program in time that grows no faster than n log n, 1024 ranks well under a second.
TEST_CASE("one rank of a thousand has its program soon, of as many steps as there are ranks") {
  for (const Collective collective : kServed) {
    for (const std::string_view across : algorithm::across_patterns(collective)) {
      const Hierarchy hierarchy{.groups = groups_of(std::vector<int>(128, 8)), .carriers = {}, .across = across};
      INFO(name_of(collective) << " across " << across);
      const std::clock_t begin = std::clock();
      const schedule::RankProgram program = algorithm::hierarchical({collective, 1024, 0, 0}, hierarchy, 500);
      const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      std::size_t steps = 0;
      for (const schedule::LaneProgram& lane : program.lanes) steps += lane.steps.size();
      CHECK(steps < 3 * 1024);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
      CHECK(seconds < 0.25);
#else
      static_cast<void>(seconds);
#endif
    }
  }
}
