// The tree by which the root's tables reach ranks on several hosts: its shape, what the root sends, and what happens to those below a rank
// that dies.
#include "comm/table_tree.h"

#include "comm/connection.h"
#include "comm/unique_id.h"
#include "rank_runs.h"

#include <fmt/format.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace rank_runs;
using namespace tutti::comm;
using Catch::Contains;
using tutti::Code;

namespace {

/// Rank r is on host `host_of(r)`.
std::vector<Peer> peers_on(int ranks, const std::function<int(int)>& host_of) {
  std::vector<Peer> peers(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    peer = self_facts(rank);
    peer.host = fmt::format("host-{}", host_of(rank));
  }
  return peers;
}

/// Ranks on the way from the root to this one, itself included.
int depth_of(const std::vector<TableNode>& tree, int rank) {
  int depth = 1;
  for (int at = rank; tree[static_cast<std::size_t>(at)].parent != TableNode::kRoot; ++depth) {
    if (depth > 100) return depth;
    at = tree[static_cast<std::size_t>(at)].parent;
  }
  return depth;
}

/// Empty, or what is wrong with the tree.
std::string check_tree(const std::vector<Peer>& peers, int depth_max) {
  const std::vector<TableNode> tree = table_tree(peers);
  int tops = 0;
  for (int rank = 0; rank < static_cast<int>(peers.size()); ++rank) {
    const TableNode& node = tree[static_cast<std::size_t>(rank)];
    tops += node.parent == TableNode::kRoot ? 1 : 0;
    if (depth_of(tree, rank) > depth_max) return fmt::format("rank {} is {} deep", rank, depth_of(tree, rank));
    if (node.children.size() > 2 * kTableChildren) return fmt::format("rank {} has many children", rank);
    for (const int child : node.children) {
      if (tree[static_cast<std::size_t>(child)].parent != rank) return fmt::format("rank {} has two parents", child);
    }
    if (node.parent == TableNode::kRoot) continue;
    const auto& siblings = tree[static_cast<std::size_t>(node.parent)].children;
    if (std::ranges::count(siblings, rank) != 1) return fmt::format("rank {} is no child of its parent", rank);
  }
  return tops <= kTableChildren ? "" : fmt::format("the root has {} children", tops);
}

/// A rank that speaks with the root by hand, from whatever host.
struct HandMade {
  RootClient root;
  TablePlace place;
};

HandMade join_as(const UniqueId& id, const Patience& patience, const Peer& self, int ranks) {
  auto root = RootClient::join(id, patience, FrameType::kHello, encode(Hello{ranks, self}));
  REQUIRE(root.ok());
  return {std::move(root).value(), {}};
}

RankEndpoint endpoint_of(int rank) {
  RankEndpoint endpoint;
  endpoint.port = static_cast<std::uint16_t>(2000 + rank);
  endpoint.addresses.resize(2);
  return endpoint;
}

/// Three ranks, of which rank 1 is real and has the hand-made rank 0 of its host above it. `misbehave`: what rank 0 does when rank 1 has come
/// for the tables. What rank 1 says.
std::string below(const std::function<void(HandMade&, Connection)>& misbehave) {
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const Patience patience(10, nullptr);
  Outcome outcome;
  std::thread real([&] { outcome = run_rank(id.value(), 1, 3); });
  Peer elsewhere = self_facts(2);
  elsewhere.host = "elsewhere";
  HandMade parent = join_as(id.value(), patience, self_facts(0), 3);
  HandMade other = join_as(id.value(), patience, elsewhere, 3);
  auto listening = open_mesh_listener();
  REQUIRE(listening.ok());
  REQUIRE(parent.root.expect(FrameType::kListen).ok());
  REQUIRE(other.root.expect(FrameType::kListen).ok());
  REQUIRE(parent.root.send(FrameType::kEndpoint, encode(listening.value().endpoint)).ok());
  REQUIRE(other.root.send(FrameType::kEndpoint, encode(listening.value().endpoint)).ok());
  Mesh mesh(0, 3, secret_of(id.value()), listening.value().listener);
  auto met = mesh.meet({{1, Purpose::kTables, nullptr}}, patience, parent.root);
  const std::string problem = met.ok() ? "" : met.error().message;
  if (met.ok()) misbehave(parent, std::move(met.value().front()));
  real.join();
  INFO(problem << "; rank 1: " << outcome.message);
  REQUIRE(met.ok());
  CHECK_FALSE(outcome.ok);
  CHECK(outcome.seconds < 5);
  return outcome.message;
}

}  // namespace

TEST_CASE("the tree of tables has all ranks, few children for each, and a depth that grows with the logarithm",
          "[tables]") {
  CHECK(check_tree(peers_on(2, [](int rank) { return rank; }), 1) == "");
  CHECK(check_tree(peers_on(15, [](int rank) { return rank < 7 ? 0 : 1; }), 3) == "");
  CHECK(check_tree(peers_on(17, [](int rank) { return rank < 16 ? 0 : 1; }), 4) == "");
  CHECK(check_tree(peers_on(7, [](int rank) { return rank % 3; }), 2) == "");
  CHECK(check_tree(peers_on(256, [](int rank) { return rank / 8; }), 5) == "");
  CHECK(check_tree(peers_on(1024, [](int rank) { return rank; }), 5) == "");
  CHECK(check_tree(peers_on(16384, [](int rank) { return rank / 8; }), 8) == "");
}

TEST_CASE("the root sends the tables to the first ranks of a few hosts, and the others their places", "[tables]") {
  const NothingLeft nothing_left;
  constexpr int kRanks = 40;
  const auto peers = peers_on(kRanks, [](int rank) { return rank / 2; });
  const auto tree = table_tree(peers);
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const Patience patience(10, nullptr);
  std::vector<HandMade> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.push_back(join_as(id.value(), patience, peers[static_cast<std::size_t>(rank)], kRanks));
  for (int rank = 0; rank < kRanks; ++rank) {
    RootClient& root = ranks[static_cast<std::size_t>(rank)].root;
    REQUIRE(root.expect(FrameType::kListen).ok());
    REQUIRE(root.send(FrameType::kEndpoint, encode(endpoint_of(rank))).ok());
  }
  int tables = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    INFO("rank " << rank);
    RootClient& root = ranks[static_cast<std::size_t>(rank)].root;
    const auto told = root.expect(FrameType::kPlace);
    REQUIRE(told.ok());
    CHECK(told.value().size() < 200);
    const auto place = decode_place(told.value(), rank, kRanks);
    REQUIRE(place);
    const TableNode& node = tree[static_cast<std::size_t>(rank)];
    CHECK(place->node.parent == node.parent);
    CHECK(place->node.children == node.children);
    REQUIRE(place->parent.has_value() == (node.parent != TableNode::kRoot));
    if (place->parent) {
      CHECK(place->parent->port == endpoint_of(node.parent).port);
      continue;
    }
    const auto table = root.expect(FrameType::kTable);
    REQUIRE(table.ok());
    CHECK(decode_table(table.value())->size() == kRanks);
    const auto endpoints = root.expect(FrameType::kEndpoints);
    REQUIRE(endpoints.ok());
    CHECK(decode_endpoints(endpoints.value(), kRanks)->back().port == endpoint_of(kRanks - 1).port);
    ++tables;
  }
  CHECK(tables == kTableChildren);
  for (HandMade& rank : ranks) REQUIRE(rank.root.send(FrameType::kDone, {}).ok());
  for (HandMade& rank : ranks) CHECK(rank.root.expect(FrameType::kComplete).ok());
}

TEST_CASE("why the bootstrap failed is heard behind what came before, also when the root has ended", "[tables]") {
  const NothingLeft nothing_left;
  const auto peers = peers_on(2, [](int rank) { return rank; });
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const Patience patience(10, nullptr);
  HandMade stays = join_as(id.value(), patience, peers[0], 2);
  {
    HandMade leaves = join_as(id.value(), patience, peers[1], 2);
    (void)leaves.root.leave(tutti::error(Code::kSystem, "it has had enough"));
    usleep(200000);  // the root tells and ends; rank 0 has not read that it should listen
  }
  const auto failure = stays.root.failure_now();
  REQUIRE(failure);
  CHECK_THAT(failure->message, Contains("rank 1") && Contains("it has had enough"));
}

TEST_CASE("places that are none are refused", "[tables]") {
  const Bytes parent = encode(endpoint_of(3));
  const auto decodes = [&](const TableNode& node, const Bytes& endpoint) {
    return decode_place(encode_place(node, endpoint), 1, 4).has_value();
  };
  CHECK(decodes({3, {0, 2}}, parent));
  CHECK(decodes({TableNode::kRoot, {}}, {}));
  CHECK_FALSE(decodes({3, {}}, {}));
  CHECK_FALSE(decodes({1, {}}, parent));
  CHECK_FALSE(decodes({4, {}}, parent));
  CHECK_FALSE(decodes({-2, {}}, parent));
  CHECK_FALSE(decodes({3, {1}}, parent));
  CHECK_FALSE(decodes({3, {0, 4}}, parent));
  Bytes cut = encode_place({3, {0, 2}}, parent);
  cut.pop_back();
  CHECK_FALSE(decode_place(cut, 1, 4));
}

TEST_CASE("a rank whose parent dies before it has passed the tables on hears who died", "[tables]") {
  const NothingLeft nothing_left;
  const std::string said = below([](HandMade& parent, Connection) { const HandMade dying = std::move(parent); });
  CHECK_THAT(said, Contains("rank 0 (process") && Contains("ended before all ranks were initialised"));
}

TEST_CASE("a rank whose parent passes on something else says so", "[tables]") {
  const NothingLeft nothing_left;
  const std::string frame = below([](HandMade&, Connection connection) {
    connection.queue(FrameType::kEndpoints, {1, 2, 3});
    REQUIRE(connection.flush());
  });
  CHECK_THAT(frame, Contains("rank 0 sent frame 12 where 4 was expected"));
  const std::string garbage =
      below([](HandMade&, Connection connection) { REQUIRE(write(connection.fd(), "GET / HTTP/1.1\r\n", 16) == 16); });
  CHECK_THAT(garbage, Contains("rank 0 sent bytes that are no bootstrap frame"));
  const std::string table = below([](HandMade&, Connection connection) {
    connection.queue(FrameType::kTable, {1, 2, 3});
    connection.queue(FrameType::kEndpoints, {});
    REQUIRE(connection.flush());
  });
  CHECK_THAT(table, Contains("the table of ranks in the bootstrap is malformed"));
}

TEST_CASE("a rank that comes before it is its turn is met later", "[tables]") {
  const NothingLeft nothing_left;
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const Patience patience(10, nullptr);
  std::vector<HandMade> ranks;
  std::vector<MeshListener> listeners;
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(join_as(id.value(), patience, self_facts(rank), 4));  // one rank does not come: the root stays
    auto listening = open_mesh_listener();
    REQUIRE(listening.ok());
    listeners.push_back(std::move(listening).value());
  }
  for (int rank = 0; rank < 3; ++rank)
    meshes.push_back(
        std::make_unique<Mesh>(rank, 4, secret_of(id.value()), listeners[static_cast<std::size_t>(rank)].listener));
  const auto meet = [&](int rank, const Meeting& with) {
    const auto r = static_cast<std::size_t>(rank);
    return meshes[r]->meet({with}, patience, ranks[r].root).ok();
  };
  const RankEndpoint* const there = &listeners[0].endpoint;
  std::atomic<bool> early{false};
  bool late = false;
  std::thread comes_early([&] { early = meet(1, {0, Purpose::kWatch, there}); });
  std::thread comes_late([&] {
    usleep(200000);
    late = meet(2, {0, Purpose::kTables, there});
  });
  CHECK(meet(0, {2, Purpose::kTables, nullptr}));
  CHECK_FALSE(early);
  CHECK(meet(0, {1, Purpose::kWatch, nullptr}));
  comes_early.join();
  comes_late.join();
  CHECK(early);
  CHECK(late);
  end_bootstrap(id.value());
}
