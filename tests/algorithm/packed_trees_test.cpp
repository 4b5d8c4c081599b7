#include "algorithm/packed_trees.h"
#include "algorithm/tree_turns.h"
#include "schedule/text.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>

using namespace tutti;
using algorithm::Parents;

namespace {

constexpr int kSlots[] = {4, 8};

void prove(const schedule::Schedule& made, bool wide_wire, int slots_least = 4) {
  for (const int slots : kSlots) {
    if (slots < slots_least) continue;
    for (const bool in_place : {false, true}) {
      for (const bool direct : {false, true}) {
        const Status status = verify(made, {slots, in_place, direct, false, wide_wire});
        INFO(slots << " slots, in place " << in_place << ", direct " << direct << "\n" << to_text(made));
        INFO((status.ok() ? "" : status.error().message));
        REQUIRE(status.ok());
      }
    }
  }
}

/// A tree of any shape: every rank but the root hangs below one that came before it in a random order.
Parents random_tree(int ranks, int root, std::mt19937_64& random) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  std::swap(order.front(), *std::ranges::find(order, root));
  Parents parents(order.size(), algorithm::kNoParent);
  const bool line = random() % 4 == 0;
  for (std::size_t i = 1; i < order.size(); ++i)
    parents[static_cast<std::size_t>(order[i])] = order[line ? i - 1 : random() % i];
  return parents;
}

int units_up_from(const schedule::LaneProgram& lane, std::uint32_t parent) {
  int before = 0;
  for (const schedule::Step& step : lane.steps) {
    for (const schedule::Endpoint& source : lane.sources(step)) {
      if (source.place == schedule::Place::kPeer && source.peer == parent) return before;
    }
    ++before;
  }
  return before;
}

}  // namespace

TEST_CASE("all-reduce through random trees is right, whatever their shapes, lanes and units") {
  const unsigned seed = 7;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int ranks = 2; ranks <= 12; ++ranks) {
    for (const int units : {1, 2, 5, 40}) {
      std::vector<Parents> lanes;
      for (int lane = 0; lane < 1 + static_cast<int>(random() % 3); ++lane)
        lanes.push_back(random_tree(ranks, static_cast<int>(random() % static_cast<unsigned>(ranks)), random));
      const schedule::Schedule made = algorithm::packed_trees(lanes, units);
      CHECK(made.shape.lanes == lanes.size());
      CHECK(made.shape.units == static_cast<std::uint32_t>(units));
      prove(made, true);
    }
  }
}

TEST_CASE("all-gather and reduce-scatter through random trees are right") {
  const unsigned seed = 8;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int ranks = 2; ranks <= 12; ++ranks) {
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<std::vector<Parents>> lanes(1 + random() % 3);
      for (auto& lane : lanes) {
        for (int root = 0; root < ranks; ++root) lane.push_back(random_tree(ranks, root, random));
      }
      for (const int slots : kSlots) {
        const int units = 1 + static_cast<int>(random() % 9);
        prove(algorithm::packed_out_trees(lanes, units, slots), false, slots);
        prove(algorithm::packed_in_trees(lanes, units, slots), true, slots);
      }
    }
  }
}

TEST_CASE("many ranks: as many slots as units ahead are enough, or as many as rooted trees were made for",
          "[samples]") {
  const unsigned seed = 9;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int ranks = 2; ranks <= 40; ++ranks) {
    std::vector<Parents> trees;
    for (int root = 0; root < ranks; ++root) trees.push_back(random_tree(ranks, root, random));
    for (const int ahead : {2, 3, 4, 8})
      CHECK(verify(algorithm::packed_trees(trees, 30, ahead), {.slots = ahead}).ok());
    CHECK(verify(algorithm::packed_trees(trees, 30), {.slots = algorithm::kAheadPerHop}).ok());
    CHECK(verify(algorithm::packed_trees(trees), {.slots = 1}).ok());
    for (const int slots : {1, 2, 4, 8}) {
      for (const schedule::Schedule& made : {algorithm::packed_out_trees({trees}, ranks < 10 ? 7 : 1, slots),
                                             algorithm::packed_in_trees({trees}, ranks < 10 ? 7 : 1, slots)}) {
        const Status status = verify(made, {.slots = slots});
        INFO(ranks << " ranks, " << slots << " slots: " << (status.ok() ? "" : status.error().message));
        CHECK(status.ok());
      }
    }
  }
}

TEST_CASE("units follow each other: a rank is ahead by so many for each hop to the root") {
  const Parents line = {algorithm::kNoParent, 0, 1, 2};
  const schedule::Schedule made = algorithm::packed_trees({line}, 20);
  CHECK(algorithm::depths_of(line) == std::vector<int>{0, 1, 2, 3});
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    // Up steps before the first that waits for the parent.
    CHECK(units_up_from(made.ranks[rank].lanes[0], rank - 1) == algorithm::kAheadPerHop * static_cast<int>(rank) + 1);
  }
  CHECK(algorithm::units_for({line}) == 3 * algorithm::kUnitsPerHop);
}

TEST_CASE("units follow each other through all trees of an all-gather") {
  // A line of four, in which every channel to the right carries the blocks of all ranks on its left.
  algorithm::RootedTrees trees;
  for (int root = 0; root < 4; ++root) {
    Parents parents(4, algorithm::kNoParent);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != root) parents[static_cast<std::size_t>(rank)] = rank < root ? rank + 1 : rank - 1;
    }
    trees.push_back(parents);
  }
  constexpr int kUnits = 20;
  const std::vector<std::vector<algorithm::Turn>> turns = algorithm::tree_turns(trees, kUnits, 8);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    REQUIRE(turns[rank].size() == 4 * kUnits);
    std::vector<int> next(4, 0);
    for (const algorithm::Turn& turn : turns[rank]) {
      CHECK(turn.unit == next[static_cast<std::size_t>(turn.root)]++);
      // Once it is under way no tree is further behind than its hops and a turn.
      for (int root = 0; root < 4; ++root) {
        const int hops = std::abs(root - static_cast<int>(rank));
        CHECK(next[static_cast<std::size_t>(root)] + hops + 1 >= turn.unit);
      }
    }
  }
}

TEST_CASE("the text of a small one") {
  const schedule::Schedule made = algorithm::packed_trees({{1, algorithm::kNoParent, 1}});
  CHECK(to_text(made) ==
        "schedule packed_trees all_reduce ranks 3 units 1 lanes 1 input 1 output 1 scratch 0\n"
        "rank 0 lane 0\n"
        "  in[0.0] -> send 1\n"
        "  recv 1 push out[0.0] -> out[0.0]\n"
        "rank 1 lane 0\n"
        "  in[0.0] + recv 0 + recv 2 -> out[0.0], send 0 push out[0.0], send 2 push out[0.0] finish\n"
        "rank 2 lane 0\n"
        "  in[0.0] -> send 1\n"
        "  recv 1 push out[0.0] -> out[0.0]\n");
  const Result<schedule::Schedule> read = schedule::parse(to_text(made));
  REQUIRE(read.ok());
  CHECK(read.value() == made);
}
