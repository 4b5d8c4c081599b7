#include "comm/watch_graph.h"

#include <catch2/catch.hpp>

using namespace tutti::comm;

TEST_CASE("how a rank ended is news where all that was known is that it cannot be reached", "[watch]") {
  for (const PeerLife end : {PeerLife::kEnded, PeerLife::kSilent, PeerLife::kLeft}) {
    WatchGraph graph(0, 20);
    CHECK(graph.note({7, PeerLife::kUnreached}));
    CHECK(graph.note({7, end, 3}));
    CHECK_FALSE(graph.note({7, PeerLife::kUnreached}));
    CHECK_FALSE(graph.note({7, PeerLife::kLeft, 4}));
    REQUIRE(graph.gone().size() == 1);
    CHECK(graph.gone()[0].life == end);
    CHECK(graph.gone()[0].last_call == 3);
  }
}
