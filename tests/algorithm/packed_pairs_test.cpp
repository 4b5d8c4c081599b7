#include "algorithm/packed_pairs.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <random>

using namespace tutti;
using algorithm::Parents;
using algorithm::TreePair;

namespace {

/// Every rank but the root hangs below one that came before it in a random order; sometimes all in a line.
Parents random_tree(int ranks, int root, std::mt19937_64& random) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  std::swap(order.front(), *std::ranges::find(order, root));
  Parents parents(order.size(), algorithm::kNoParent);
  const bool line = random() % 3 == 0;
  for (std::size_t i = 1; i < order.size(); ++i)
    parents[static_cast<std::size_t>(order[i])] = order[line ? i - 1 : random() % i];
  return parents;
}

}  // namespace

TEST_CASE("all-reduce through random pairs of trees is right, whatever their shapes, lanes and units") {
  const unsigned seed = 31;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int ranks = 1; ranks <= 14; ++ranks) {
    for (const int units : {1, 2, 5, 40}) {
      for (int trial = 0; trial < 4; ++trial) {
        std::vector<TreePair> lanes;
        for (int lane = 0; lane < 1 + static_cast<int>(random() % 3); ++lane) {
          const int root = static_cast<int>(random() % static_cast<unsigned>(ranks));
          lanes.push_back({random_tree(ranks, root, random), random_tree(ranks, root, random)});
        }
        const schedule::Schedule made = algorithm::packed_pairs(lanes, units);
        CHECK(made.shape.lanes == lanes.size());
        for (const int slots : {2, 4, 8}) {
          for (const bool in_place : {false, true}) {
            for (const bool direct : {false, true}) {
              const Status status = verify(made, {slots, in_place, direct, false, true});
              INFO(ranks << " ranks, " << units << " units, " << slots << " slots, in place " << in_place << ", direct "
                         << direct);
              INFO((status.ok() ? "" : status.error().message));
              REQUIRE(status.ok());
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the same tree both ways is packed trees' own program, one unit ahead for each hop up and down") {
  const Parents tree = {1, algorithm::kNoParent, 1, 2};
  schedule::Schedule pairs = algorithm::packed_pairs({{tree, tree}}, 7);
  pairs.algorithm = "packed_trees";
  CHECK(pairs == algorithm::packed_trees({tree}, 7, 2));
}
