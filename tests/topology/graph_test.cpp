#include "topology/graph.h"
#include "topology/network.h"

#include <catch2/catch.hpp>

using namespace tutti::topology;
using Catch::Contains;

namespace {

GraphBuilder two_gpus() {
  GraphBuilder builder;
  const int host = builder.add_host("a");
  const int numa = builder.add_node(NodeKind::kNuma, host, kNone, "");
  for (int i = 0; i < 2; ++i) {
    const int gpu = builder.add_node(NodeKind::kGpu, host, numa, "");
    builder.connect(numa, gpu, LinkKind::kPci, 12 * kGigabyte, 16);
  }
  return builder;
}

}  // namespace

TEST_CASE("a graph has what was put into it") {
  GraphBuilder builder = two_gpus();
  builder.connect(1, 2, LinkKind::kNvLink, 20 * kGigabyte);
  builder.connect(1, 2, LinkKind::kNvLink, 20 * kGigabyte);
  const auto built = std::move(builder).finish();
  REQUIRE(built.ok());
  const Graph& graph = built.value();
  CHECK(graph.nodes_of(NodeKind::kGpu) == std::vector<int>{1, 2});
  CHECK(graph.find("gpu1") == 2);
  CHECK(graph.find("gpu2") == kNone);
  const Link* link = graph.find_link(2, 1, LinkKind::kNvLink);
  REQUIRE(link != nullptr);
  CHECK(link->count == 2);
  CHECK(link->bandwidth == 40 * kGigabyte);
  CHECK(graph.find_link(0, 1, LinkKind::kNvLink) == nullptr);
}

TEST_CASE("names stay unique, and say the host from the second on") {
  GraphBuilder builder;
  builder.add_host("a");
  builder.add_host("b");
  builder.add_node(NodeKind::kGpu, 0, kNone, "x");
  builder.add_node(NodeKind::kGpu, 0, kNone, "x");
  builder.add_node(NodeKind::kGpu, 1, kNone, "");
  const auto graph = std::move(builder).finish();
  REQUIRE(graph.ok());
  CHECK(graph.value().node(1).name == "x.2");
  CHECK(graph.value().node(2).name == "h1.gpu0");
}

TEST_CASE("what is no graph is refused with a reason") {
  const auto refusal = [](GraphBuilder builder) {
    const auto built = std::move(builder).finish();
    REQUIRE_FALSE(built.ok());
    CHECK(built.error().code == tutti::Code::kInvalidArgument);
    return built.error().message;
  };
  CHECK_THAT(refusal(GraphBuilder()), Contains("no node"));
  GraphBuilder itself = two_gpus();
  itself.connect(1, 1, LinkKind::kNvLink, kGigabyte);
  CHECK_THAT(refusal(itself), Contains("gpu0 to itself"));
  GraphBuilder empty = two_gpus();
  empty.connect(1, 2, LinkKind::kNvLink, 0);
  CHECK_THAT(refusal(empty), Contains("bandwidth 0"));
  GraphBuilder outside = two_gpus();
  outside.connect(1, 7, LinkKind::kNvLink, kGigabyte);
  CHECK_THAT(refusal(outside), Contains("node 7 of 3"));
  GraphBuilder circle = two_gpus();
  const int next = static_cast<int>(circle.so_far().nodes().size());
  circle.add_node(NodeKind::kPci, 0, next + 1, "");
  circle.add_node(NodeKind::kPci, 0, next, "");
  CHECK_THAT(refusal(circle), Contains("inside itself"));
  GraphBuilder abroad = two_gpus();
  abroad.add_node(NodeKind::kGpu, abroad.add_host("b"), 0, "");
  CHECK_THAT(refusal(abroad), Contains("another host"));
  GraphBuilder many;
  many.add_host("a");
  for (int i = 0; i <= kNodesMax; ++i) many.add_node(NodeKind::kGpu, 0, kNone, "");
  CHECK_THAT(refusal(many), Contains("more than 65536 nodes"));
}

TEST_CASE("bandwidths are whole kilobytes per second") {
  CHECK(from_gbps(20.6) == 20'600'000);
  CHECK(from_gbps(0.1875) == 187'500);
  CHECK(from_gbps(-1) == 0);
  CHECK(from_gbps(1e300) == 0);
  CHECK(gbps(from_gbps(40.1)) == Approx(40.1));
}

TEST_CASE("full duplex") {
  Network network{2, {0, 1}, {{0, 1, 5}, {1, 0, 5}}};
  CHECK(network.full_duplex());
  network.arcs[0].capacity = 6;
  CHECK_FALSE(network.full_duplex());
}
