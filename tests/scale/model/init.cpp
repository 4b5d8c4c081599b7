#include "init.h"

#include "comm/bootstrap.h"
#include "comm/bootstrap_tree.h"
#include "comm/control.h"
#include "comm/mesh.h"
#include "comm/root_client.h"
#include "comm/unique_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace tutti::scale {
namespace {

using Clock = std::chrono::steady_clock;

/// Memory of a rank on a host of 8, once initialised, as scale-tests finds it among 8 to 256 ranks: within a tenth.
constexpr double kOwnKib = 90;
constexpr double kNetworkKib = 150;
constexpr double kFarRankKib = 14;  ///< for each rank of another host

double us_since(Clock::time_point began) {
  return std::chrono::duration<double, std::micro>(Clock::now() - began).count();
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "scale-model: %s\n", why.c_str());
  std::exit(1);
}

/// All ranks' bootstrap as threads of this process.
double bootstrap_us(int ranks) {
  const auto id = comm::make_unique_id();
  if (!id.ok()) give_up(id.error().message);
  const auto began = Clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      comm::BootstrapArgs args;
      args.ids = {id.value()};
      args.ranks = ranks;
      args.rank = rank;
      args.timeout_s = 60;
      const auto result = comm::bootstrap(args);
      if (!result.ok()) give_up(result.error().message);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return us_since(began);
}

std::vector<comm::Peer> peers_of(int hosts, int ranks_per_host) {
  std::vector<comm::Peer> peers;
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    comm::Peer peer = comm::self_facts(rank);
    peer.host = fmt::format("dgx-{:05} 7c5e3a64-8f1e-4a53-9c0e-000000000000", rank / ranks_per_host);
    peers.push_back(std::move(peer));
  }
  return peers;
}

comm::RootClient join(const comm::UniqueId& id, const comm::Patience& patience, int rank) {
  auto root = comm::RootClient::enter(id, patience, 2, comm::self_facts(rank));
  if (!root.ok()) give_up(root.error().message);
  const auto table = root.value().expect(comm::FrameType::kTable);
  if (!table.ok()) give_up(table.error().message);
  return std::move(root).value();
}

/// Two ranks over loopback, connection after connection.
double connection_us() {
  constexpr int kTimes = 100;
  const auto id = comm::make_unique_id();
  if (!id.ok()) give_up(id.error().message);
  std::vector<comm::MeshListener> listeners;
  std::vector<comm::RankEndpoint> endpoints;
  for (int rank = 0; rank < 2; ++rank) {
    auto listener = comm::open_mesh_listener();
    if (!listener.ok()) give_up(listener.error().message);
    endpoints.push_back(listener.value().endpoint);
    listeners.push_back(std::move(listener).value());
  }
  double us = 0;
  std::barrier<> both(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const comm::Patience patience(60, nullptr);
      comm::RootClient root = join(id.value(), patience, rank);
      comm::Mesh mesh(rank, 2, {}, listeners[static_cast<std::size_t>(rank)].listener);
      std::vector<comm::Ties> ties(2);
      ties[static_cast<std::size_t>(1 - rank)].watch = true;
      const auto began = Clock::now();
      for (int time = 0; time < kTimes; ++time) {
        const auto sockets = comm::connect_ties(mesh, rank, endpoints, ties, patience, root);
        if (!sockets.ok()) give_up(sockets.error().message);
      }
      if (rank == 0) us = us_since(began) / kTimes;
      both.arrive_and_wait();  // who leaves the root ends the other's part
    });
  }
  for (std::thread& thread : threads) thread.join();
  return us;
}

/// As of a rank on a host with eight interfaces and eight ranks.
comm::RankEndpoint endpoint_of(std::size_t rank) {
  comm::RankEndpoint endpoint;
  endpoint.port = static_cast<std::uint16_t>(33000 + 7 * rank % 27000);
  for (std::size_t i = 0; i < 8; ++i) {
    comm::IpAddress& address = endpoint.addresses.emplace_back();
    address.bytes = {10, static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(rank / 2048),
                     static_cast<std::uint8_t>(rank / 8)};
  }
  return endpoint;
}

/// Of the bootstrap's tree, below the root's own ranks.
int levels_of(int ranks) {
  int levels = 0;
  for (int at = ranks - 1; comm::parent_of(at) != comm::kBelowRoot; ++levels) at = comm::parent_of(at);
  return levels;
}

}  // namespace

InitCosts measure_init_costs() {
  constexpr int kRanks = 256;
  InitCosts costs;
  costs.join_us = bootstrap_us(kRanks) / kRanks;
  for (int again = 0; again < 2; ++again) costs.join_us = std::min(costs.join_us, bootstrap_us(kRanks) / kRanks);
  costs.connection_us = connection_us();
  const std::vector<comm::Peer> peers = peers_of(512, 8);
  const auto began = Clock::now();
  const comm::Bytes table = comm::encode(peers);
  const auto read = comm::decode_table(table);
  if (!read) give_up("a table that was written cannot be read");
  costs.entry_us = us_since(began) / static_cast<double>(peers.size());
  std::vector<comm::Bytes> endpoints;
  for (std::size_t rank = 0; rank < peers.size(); ++rank) endpoints.push_back(comm::encode(endpoint_of(rank)));
  costs.entry_bytes = (table.size() + comm::encode(endpoints).size()) / peers.size();
  costs.place_bytes = comm::encode(comm::TreePlace{0, 0, endpoint_of(0)}).size();
  return costs;
}

InitModel model_init(const InitCosts& costs, int hosts, int ranks_per_host) {
  const int ranks = hosts * ranks_per_host;
  InitModel model;
  for (const comm::Ties& with : comm::ties_of(0, peers_of(hosts, ranks_per_host), false)) {
    if (hosts > 1) model.connections += with.data + with.watch;
  }
  const double n = ranks;
  const double table_bytes = n * static_cast<double>(costs.entry_bytes);
  model.passed_bytes = ranks > comm::kRootChildren ? comm::kRankChildren * table_bytes : 0;
  model.root_bytes = std::min(ranks, comm::kRootChildren) * table_bytes + n * static_cast<double>(costs.place_bytes);
  model.memory_bytes = 1024 * (kOwnKib + (hosts > 1 ? kNetworkKib + kFarRankKib * (n - ranks_per_host) : 0));
  model.address_bytes = static_cast<double>(comm::Control::bytes_on_host(ranks, ranks_per_host));
  // Of a connection each side does half.
  const double us = n * (costs.join_us + costs.entry_us) + model.connections * costs.connection_us / 2;
  const int levels = levels_of(ranks);
  const double down_us = levels * (costs.connection_us + model.passed_bytes / (kNetworkGbps * 1e3));
  model.seconds = (us + down_us) / 1e6 + model.root_bytes / (kNetworkGbps * 1e9);
  return model;
}

}  // namespace tutti::scale
