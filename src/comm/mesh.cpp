#include "comm/mesh.h"

#include "comm/carriers.h"
#include "comm/meetings.h"
#include "comm/root_address.h"
#include "comm/watch_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <utility>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Mesh::Mesh(int rank, int ranks, const Secret& secret, const TcpListener& listener,
           std::chrono::duration<double> reach_time)
    : rank_(rank),
      reach_time_(reach_time),
      meetings_(std::make_unique<Meetings>(rank, ranks, secret, listener.socket)) {}
Mesh::~Mesh() = default;

Result<std::vector<Connection>> Mesh::meet(const std::vector<Meeting>& wanted, const Patience& patience,
                                           RootClient& root) {
  std::map<Meetings::Key, std::size_t> missing;
  std::set<Meetings::Key> come;
  std::vector<std::optional<Connection>> made(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    missing[{wanted[i].peer, wanted[i].purpose}] = i;
    if (wanted[i].there == nullptr) come.insert({wanted[i].peer, wanted[i].purpose});
  }
  meetings_->begin({.expects = [&](const Meetings::Key& key) { return come.contains(key); },
                    .on_made =
                        [&](const Meetings::Key& key, Connection connection) {
                          made[missing.at(key)] = std::move(connection);
                          missing.erase(key);
                          come.erase(key);
                        }});
  for (const Meeting& meeting : wanted) {
    if (meeting.there != nullptr) meetings_->seek({meeting.peer, meeting.purpose}, *meeting.there);
  }
  const auto until = Clock::now() + reach_time_;
  while (!missing.empty()) {
    if (auto failure = root.failure_now()) return std::move(*failure);
    if (patience.now() == Patience::Outcome::kCancelled) return why_cancelled(patience);
    const bool is_over = patience.now() != Patience::Outcome::kReady || Clock::now() >= until;
    if (auto starved = meetings_->starved(is_over ? Clock::duration(0) : Meetings::kDescriptorPatience))
      return *std::move(starved);
    if (is_over) {
      if (auto failure = meetings_->not_reached()) return std::move(*failure);
      std::set<int> who;
      for (const auto& [key, place] : missing) who.insert(key.first);
      return error(Code::kRemote, fmt::format("rank {} was not reached by rank {}", rank_, fmt::join(who, ", ")));
    }
    std::vector<pollfd> watched;
    meetings_->add_to(watched);
    root.add_to(watched);
    if (poll(watched.data(), watched.size(), static_cast<int>(Meetings::kLookTime.count())) < 0 && errno != EINTR)
      poll(nullptr, 0, 1);
    meetings_->serve(watched);
  }
  meetings_->begin({});  // whoever comes now waits for the next call
  std::vector<Connection> connections;
  for (std::optional<Connection>& one : made) connections.push_back(std::move(*one));
  return connections;
}

std::vector<Ties> ties_of(int rank, const std::vector<Peer>& peers, bool over_mpi) {
  const auto me = static_cast<std::size_t>(rank);
  const schedule::Groups host_of = hosts_of(peers);
  const HostRanks hosts = ranks_of_hosts(host_of);
  const LineRoutes routes = first_routes(hosts);
  const int own = host_of[me];
  const auto is_next = [&](int a, int b) { return (a + 1) % static_cast<int>(hosts.size()) == b; };
  std::vector<Ties> ties(peers.size());
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    if (peer == me) continue;
    const int other = host_of[peer];
    ties[peer].watch = watch_each_other(me, peer, peers.size());
    if (over_mpi || other == own) continue;
    const int there = static_cast<int>(peer);
    const bool carry =
        carrier(hosts, own, other) == rank && carrier(hosts, other, own) == there && routes.are_next(own, other);
    const bool measure = (is_next(own, other) || is_next(other, own)) &&
                         hosts[static_cast<std::size_t>(own)].front() == rank &&
                         hosts[static_cast<std::size_t>(other)].front() == there;
    ties[peer].data = carry || measure;
  }
  return ties;
}

Result<std::vector<PeerSockets>> connect_ties(Mesh& mesh, int rank, const std::vector<RankEndpoint>& endpoints,
                                              const std::vector<Ties>& ties, const Patience& patience,
                                              RootClient& root) {
  std::vector<Meeting> wanted;
  for (int peer = 0; peer < static_cast<int>(ties.size()); ++peer) {
    const RankEndpoint* const there = peer < rank ? &endpoints[peer] : nullptr;
    const std::size_t sockets = std::min(endpoints[peer].sockets, endpoints[rank].sockets);
    for (std::size_t number = 0; ties[peer].data && number < sockets; ++number)
      wanted.push_back({peer, data_socket(number), there});
    if (ties[peer].watch) wanted.push_back({peer, Purpose::kWatch, there});
  }
  TUTTI_TRY_ASSIGN(auto made, mesh.meet(wanted, patience, root));
  std::vector<PeerSockets> sockets(ties.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    PeerSockets& with = sockets[static_cast<std::size_t>(wanted[i].peer)];
    PrivateDescriptor socket = made[i].release();
    if (wanted[i].purpose == Purpose::kWatch) {
      with.watch = std::move(socket);
    } else {
      with.data.push_back(std::move(socket));  // in order: so they are wanted
    }
  }
  return sockets;
}

}  // namespace tutti::comm
