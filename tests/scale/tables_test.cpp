// 1024 ranks of 128 hosts, threads of one process, that speak the real bootstrap's protocol with its root and with each other until each has
// the tables of all: everything that comes before ranks connect for calls. Prints what they take, and bounds it.
#include "comm/bootstrap.h"
#include "comm/bootstrap_root.h"
#include "comm/bootstrap_tree.h"
#include "comm/rank_endpoint.h"
#include "comm/root_client.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace tutti;
using namespace tutti::comm;

namespace {

constexpr int kRanks = 1024;
constexpr int kRanksPerHost = 8;
constexpr double kSecondsMax = 60;
/// Two tables of 1024 entries as they came and as they are read, and a thread's part of the heap.
constexpr double kKiBPerRankMax = 700;

std::string host_of(int rank) { return fmt::format("host-{}", rank / kRanksPerHost); }

double allocated_kib() {
  const struct mallinfo2 now = mallinfo2();
  return static_cast<double>(now.uordblks + now.hblkhd) / 1024;
}

/// Both ends of each connection are this process's. False where it may not have so many.
bool allow_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max >= 8 * kRanks;
}

/// What a rank of many has in the end.
struct Found {
  std::string wrong = "did not end";
  std::vector<Peer> peers;
  std::vector<RankEndpoint> endpoints;
  std::size_t connections = 0;  ///< with other ranks or the root, on the way
};

std::string check(const Found& found) {
  if (found.peers.size() != kRanks || found.endpoints.size() != kRanks) return "tables of another length";
  for (int rank = 0; rank < kRanks; ++rank) {
    const Peer& peer = found.peers[static_cast<std::size_t>(rank)];
    if (peer.rank != rank || peer.host != host_of(rank)) return fmt::format("entry {} is another rank's", rank);
    if (found.endpoints[static_cast<std::size_t>(rank)].port == 0) return fmt::format("rank {} has no port", rank);
  }
  return "";
}

Status live(const UniqueId& id, int rank, Found& found) {
  const Patience patience(kSecondsMax, nullptr);
  Peer self = self_facts(rank);
  self.host = host_of(rank);
  TUTTI_TRY_ASSIGN(RootClient root, RootClient::enter(id, patience, kRanks, self));
  TUTTI_TRY_ASSIGN(const Bytes all_there, root.expect(FrameType::kListen));
  found.connections = root.connections();
  TUTTI_TRY_ASSIGN(const MeshListener listening, open_mesh_listener());
  TUTTI_TRY(root.send(FrameType::kEndpoint, encode(listening.endpoint)));
  TUTTI_TRY_ASSIGN(const Bytes table, root.expect(FrameType::kTable));
  TUTTI_TRY_ASSIGN(const Bytes endpoints, root.expect(FrameType::kEndpoints));
  TUTTI_TRY(root.finish_passing_on());
  found.peers = decode_table(table).value_or(std::vector<Peer>());
  found.endpoints = decode_endpoints(endpoints, kRanks).value_or(std::vector<RankEndpoint>());
  TUTTI_TRY(root.send(FrameType::kDone, {}));
  TUTTI_TRY_ASSIGN(const Bytes complete, root.expect(FrameType::kComplete));
  return {};
}

}  // namespace

TEST_CASE("1024 ranks of 128 hosts get the tables of all from the real root, down the tree", "[tables]") {
  if (!allow_descriptors()) {
    WARN("skipped: this process may have fewer than " << 8 * kRanks << " descriptors (ulimit -Hn)");
    return;
  }
  UniqueId id;
  const std::string name = fmt::format("{}tutti-scale-{}", kUnixPrefix, getpid());
  std::memcpy(id.address, name.c_str(), name.size() + 1);
  std::vector<PrivateDescriptor> listeners;
  auto listener = listen_unix(name);
  REQUIRE(listener.ok());
  listeners.push_back(std::move(listener).value());
  BootstrapRoot root(std::move(listeners), secret_of(id));
  std::vector<Found> found(kRanks);
  std::vector<std::thread> threads;
  const double before = allocated_kib();
  const auto began = std::chrono::steady_clock::now();
  threads.emplace_back([&] { root.run(); });
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Found& mine = found[static_cast<std::size_t>(rank)];
      const Status status = live(id, rank, mine);
      mine.wrong = status.ok() ? check(mine) : status.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const double kib = (allocated_kib() - before) / kRanks;
  std::size_t connections = 0;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    INFO("rank " << rank);
    const Found& one = found[rank];
    CHECK(one.wrong == "");
    connections = std::max(connections, one.connections);
  }
  std::printf(
      "%d ranks of %d hosts: tables after %.2f s, %.0f KiB per rank; at most %zu connections of a rank, %zu of the "
      "root\n",
      kRanks, kRanks / kRanksPerHost, seconds, kib, connections, root.most_connections());
  CHECK(seconds <= kSecondsMax);
  CHECK(kib <= kKiBPerRankMax);
  CHECK(connections <= kRankChildren + 1);
  CHECK(root.most_connections() <= BootstrapRoot::kConnectionsMax);
}
