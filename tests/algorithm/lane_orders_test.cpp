#include "algorithm/lane_orders.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <random>

using namespace tutti;

TEST_CASE("rings in any orders are right") {
  const unsigned seed = 11;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    for (int ranks = 2; ranks <= 9; ++ranks) {
      const schedule::Request request{collective, ranks, 0, 0};
      const algorithm::Algorithm* ring = algorithm::find("ring", request);
      REQUIRE(ring != nullptr);
      std::vector<std::vector<int>> orders(3, std::vector<int>(static_cast<std::size_t>(ranks)));
      for (auto& order : orders) {
        std::iota(order.begin(), order.end(), 0);
        std::ranges::shuffle(order, random);
      }
      const schedule::Schedule made = algorithm::in_orders(*ring, request, orders);
      for (const bool in_place : {false, true}) {
        const bool direct = in_place ? ring->direct_in_place : ring->direct;
        const Status status = verify(made, {4, in_place, direct, false, ring->wide_wire});
        INFO((status.ok() ? "" : status.error().message));
        REQUIRE(status.ok());
      }
      // Each rank sends to the one after it in the lane's order, and to no other.
      for (std::size_t lane = 0; lane < orders.size(); ++lane) {
        const int next = orders[lane][1];
        const schedule::LaneProgram& program = made.ranks[static_cast<std::size_t>(orders[lane][0])].lanes[lane];
        for (const schedule::Step& step : program.steps) {
          for (const schedule::Endpoint& sink : program.sinks(step)) {
            if (sink.place == schedule::Place::kPeer) CHECK(static_cast<int>(sink.peer) == next);
          }
        }
      }
    }
  }
}

TEST_CASE("in the ranks' own order it is the row's own schedule") {
  const schedule::Request request{Collective::kAllGather, 5, 0, 0};
  const algorithm::Algorithm& ring = *algorithm::find("ring", request);
  CHECK(algorithm::in_orders(ring, request, {{0, 1, 2, 3, 4}}) == algorithm::make_schedule(ring, request));
}
