#include "comm/mesh.h"

#include "base/config.h"
#include "base/log.h"
#include "base/random.h"

#include <fmt/format.h>

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// For one address to answer; for a stranger to prove itself; for a network that is down to come back.
constexpr auto kAttemptTime = std::chrono::milliseconds(2500);
constexpr auto kHandshakeTime = std::chrono::seconds(10);
constexpr auto kReachTime = std::chrono::seconds(30);
constexpr auto kRetryTime = std::chrono::milliseconds(100);
constexpr int kLookMs = 25;
constexpr std::size_t kStrangersMax = 256;
constexpr std::size_t kAddressesMax = 8;
/// Up to so many ranks all watch each other.
constexpr std::size_t kWatchAllMax = 16;

enum class Purpose : std::uint8_t { kData, kWatch };

struct Attach {
  std::int32_t from = 0;
  std::int32_t to = 0;
  Purpose purpose = Purpose::kData;
};

Bytes encode(const Attach& attach) {
  return WireWriter().number(attach.from).number(attach.to).number(static_cast<std::uint8_t>(attach.purpose)).take();
}

std::optional<Attach> decode_attach(std::span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  Attach attach;
  attach.from = reader.number<std::int32_t>();
  attach.to = reader.number<std::int32_t>();
  const auto purpose = reader.number<std::uint8_t>();
  attach.purpose = static_cast<Purpose>(purpose);
  if (!reader.complete() || purpose > 1) return std::nullopt;
  return attach;
}

/// This rank's way to another.
struct Outgoing {
  enum class State { kIdle, kConnecting, kGreeted, kProved, kDone };
  int peer = 0;
  Purpose purpose = Purpose::kData;
  State state = State::kIdle;
  std::size_t candidate = 0;
  Clock::time_point due = {};  ///< idle: not before; else: to be given up
  std::optional<Connection> connection;
  Greeting greeting = {};
  std::vector<std::string> why;  ///< by candidate: what went wrong last
};

/// Somebody who has connected.
struct Incoming {
  Connection connection;
  Clock::time_point since;
  std::string from;
  bool challenged = false;
  bool over = false;
  Greeting greeting = {};
  Challenge challenge = {};
};

class Mesh {
 public:
  Mesh(const MeshArgs& args, const TcpListener& listener) : args_(args), listener_(listener.socket.get()) {
    sockets_.resize(args_.endpoints.size());
    for (int peer = 0; peer < args_.rank; ++peer) {
      for (const Purpose purpose : {Purpose::kData, Purpose::kWatch}) {
        if (!is_wanted(peer, purpose)) continue;
        Outgoing& way = outgoing_.emplace_back();
        way.peer = peer;
        way.purpose = purpose;
        way.why.resize(args_.endpoints[peer].addresses.size());
      }
    }
    for (const Ties& with : args_.ties) missing_ += std::size_t{with.data} + std::size_t{with.watch};
  }

  Result<std::vector<PeerSockets>> run(const Patience& patience, RootClient& root) {
    const auto until = Clock::now() + kReachTime;
    while (missing_ > 0) {
      if (auto failure = root.failure_now()) return std::move(*failure);
      if (patience.now() == Patience::Outcome::kCancelled) {
        return error(Code::kInvalidUsage, "the communicator was aborted while it was being initialised");
      }
      if (patience.now() != Patience::Outcome::kReady || Clock::now() >= until) return not_reached();
      poll_once();
    }
    return std::move(sockets_);
  }

 private:
  void poll_once() {
    const auto now = Clock::now();
    for (Outgoing& way : outgoing_) {
      if (way.state == Outgoing::State::kIdle && now >= way.due) start(way);
    }
    std::vector<pollfd> watched;
    watched.push_back({listener_, POLLIN, 0});
    for (const auto& guest : incoming_) watched.push_back({guest->connection.fd(), POLLIN, 0});
    for (const Outgoing& way : outgoing_) {
      const bool connecting = way.state == Outgoing::State::kConnecting;
      watched.push_back({way.connection ? way.connection->fd() : -1, short(connecting ? POLLOUT : POLLIN), 0});
    }
    if (poll(watched.data(), watched.size(), kLookMs) < 0 && errno != EINTR) poll(nullptr, 0, 1);
    const std::size_t guests = incoming_.size();
    for (std::size_t i = 0; i < guests; ++i) {
      if (watched[1 + i].revents != 0) serve(*incoming_[i]);
    }
    for (std::size_t i = 0; i < outgoing_.size(); ++i) {
      if (watched[1 + guests + i].revents != 0) advance(outgoing_[i]);
    }
    if (watched[0].revents != 0) accept_all();
    drop_late();
  }

  // The higher rank's side.

  void start(Outgoing& way) {
    const RankEndpoint& there = args_.endpoints[way.peer];
    if (there.addresses.empty()) return fail(way, "it has told no address");
    PrivateDescriptor socket = connect_tcp(there.addresses[way.candidate], there.port);
    if (!socket) return fail(way, strerror(errno));
    way.connection.emplace(std::move(socket), Connection::kStrangerPayloadMax);
    way.state = Outgoing::State::kConnecting;
    way.due = Clock::now() + kAttemptTime;
  }

  /// The next address, after a pause when all had their turn.
  void fail(Outgoing& way, const std::string& why) {
    if (way.candidate < way.why.size()) way.why[way.candidate] = why;
    way.connection.reset();
    way.state = Outgoing::State::kIdle;
    way.due = Clock::now();
    if (++way.candidate >= way.why.size()) {
      way.candidate = 0;
      way.due += kRetryTime;
    }
  }

  void advance(Outgoing& way) {
    if (way.state == Outgoing::State::kConnecting) return greet(way);
    const Connection::Input input = way.connection->fill();
    for (;;) {
      auto frame = way.connection->next();
      if (!frame.ok()) return fail(way, "it sent " + frame.error().message);
      if (!frame.value()) break;
      if (way.state == Outgoing::State::kGreeted && frame.value()->type == FrameType::kChallenge) {
        if (!prove(way, frame.value()->payload)) return fail(way, "somebody else answers there");
      } else if (way.state == Outgoing::State::kProved && frame.value()->type == FrameType::kAttached) {
        return finish(way);
      } else {
        return fail(way, "it sent a wrong frame");
      }
    }
    if (input == Connection::Input::kClosed) fail(way, "it closed the connection");
  }

  void greet(Outgoing& way) {
    if (const int failure = connect_result(way.connection->fd()); failure != 0) return fail(way, strerror(failure));
    send_at_once(way.connection->fd());
    way.greeting.version = kProtocolVersion;
    if (!fill_random(way.greeting.nonce.data(), way.greeting.nonce.size()).ok()) return fail(way, "no random bytes");
    way.connection->queue(FrameType::kGreeting, tutti::comm::encode(way.greeting));
    if (!way.connection->flush()) return fail(way, "it closed the connection");
    way.state = Outgoing::State::kGreeted;
    way.due = Clock::now() + kHandshakeTime;
  }

  bool prove(Outgoing& way, const Bytes& payload) {
    const auto challenge = decode_challenge(payload);
    if (!challenge || !same_digest(challenge->proof, root_proof(args_.secret, way.greeting, *challenge))) return false;
    const Bytes body = encode(Attach{args_.rank, way.peer, way.purpose});
    WireWriter proved;
    proved.raw(rank_proof(args_.secret, way.greeting, *challenge, FrameType::kAttach, body)).raw(body);
    way.connection->queue(FrameType::kAttach, proved.take());
    way.state = Outgoing::State::kProved;
    return way.connection->flush();
  }

  void finish(Outgoing& way) {
    way.state = Outgoing::State::kDone;
    keep(way.peer, way.purpose, *way.connection);
    way.connection.reset();
  }

  // The lower rank's side.

  void accept_all() {
    while (incoming_.size() < kStrangersMax) {
      PrivateDescriptor socket = accept_tcp(listener_);
      if (!socket) return;
      send_at_once(socket.get());
      std::string from = peer_address(socket.get());
      incoming_.push_back(std::make_unique<Incoming>(
          Incoming{Connection(std::move(socket), Connection::kStrangerPayloadMax), Clock::now(), std::move(from)}));
    }
  }

  void serve(Incoming& guest) {
    const Connection::Input input = guest.connection.fill();
    while (!guest.over) {
      auto frame = guest.connection.next();
      if (!frame.ok()) return refuse(guest, "it sent " + frame.error().message);
      if (!frame.value()) break;
      if (!guest.challenged && frame.value()->type == FrameType::kGreeting) {
        challenge(guest, frame.value()->payload);
      } else if (guest.challenged && frame.value()->type == FrameType::kAttach) {
        return admit(guest, frame.value()->payload);
      } else {
        return refuse(guest, "it sent a wrong frame");
      }
    }
    if (input == Connection::Input::kClosed) guest.over = true;
  }

  void challenge(Incoming& guest, const Bytes& payload) {
    const auto greeting = decode_greeting(payload);
    if (!greeting) return refuse(guest, "its greeting is malformed");
    guest.greeting = *greeting;
    guest.challenge.version = kProtocolVersion;
    if (!fill_random(guest.challenge.nonce.data(), guest.challenge.nonce.size()).ok()) {
      return refuse(guest, "no random bytes for its challenge");
    }
    guest.challenge.proof = root_proof(args_.secret, guest.greeting, guest.challenge);
    guest.connection.queue(FrameType::kChallenge, tutti::comm::encode(guest.challenge));
    guest.challenged = true;
    if (!guest.connection.flush()) guest.over = true;
  }

  void admit(Incoming& guest, const Bytes& payload) {
    Digest proof = {};
    if (payload.size() < proof.size()) return refuse(guest, "its proof is malformed");
    std::copy_n(payload.begin(), proof.size(), proof.begin());
    const auto body = std::span(payload).subspan(proof.size());
    if (!same_digest(proof, rank_proof(args_.secret, guest.greeting, guest.challenge, FrameType::kAttach, body))) {
      return refuse(guest, "it does not know the secret of the unique id");
    }
    const auto attach = decode_attach(body);
    const int ranks = static_cast<int>(args_.endpoints.size());
    if (!attach || attach->to != args_.rank || attach->from <= args_.rank || attach->from >= ranks ||
        !is_wanted(attach->from, attach->purpose)) {
      return refuse(guest, "it is not a rank that connects to this one");
    }
    guest.connection.queue(FrameType::kAttached, {});
    guest.over = true;
    if (guest.connection.flush() && !guest.connection.wants_to_write()) {
      keep(attach->from, attach->purpose, guest.connection);
    }
  }

  void refuse(Incoming& guest, const std::string& why) {
    guest.over = true;
    if (!refusal_told_) log_warn("bootstrap: a connection of {} was refused: {}", guest.from, why);
    refusal_told_ = true;
  }

  // Both.

  bool is_wanted(int peer, Purpose purpose) const {
    const Ties& with = args_.ties[static_cast<std::size_t>(peer)];
    return purpose == Purpose::kData ? with.data : with.watch;
  }

  void keep(int peer, Purpose purpose, Connection& connection) {
    PrivateDescriptor& place = purpose == Purpose::kData ? sockets_[peer].data : sockets_[peer].watch;
    if (!place) --missing_;
    place = connection.release();  // a second one comes from a rank that has given up on the first
  }

  void drop_late() {
    const auto now = Clock::now();
    std::erase_if(incoming_, [&](const auto& guest) { return guest->over || now - guest->since > kHandshakeTime; });
    for (Outgoing& way : outgoing_) {
      const bool waits = way.state != Outgoing::State::kIdle && way.state != Outgoing::State::kDone;
      if (waits && now >= way.due) fail(way, "no answer");
    }
  }

  Error not_reached() const {
    for (const Outgoing& way : outgoing_) {
      if (way.state == Outgoing::State::kDone) continue;
      const RankEndpoint& there = args_.endpoints[way.peer];
      std::string tried;
      for (std::size_t i = 0; i < way.why.size(); ++i) {
        tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", there.addresses[i].text(there.port),
                             way.why[i].empty() ? "no answer" : way.why[i]);
      }
      return error(Code::kRemote, fmt::format("rank {} cannot reach rank {}; tried {}. NCCL_SOCKET_IFNAME chooses the "
                                              "interfaces",
                                              args_.rank, way.peer, tried.empty() ? "nothing" : tried));
    }
    std::string who;
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      const Ties& with = args_.ties[peer];
      const bool there = (sockets_[peer].data || !with.data) && (sockets_[peer].watch || !with.watch);
      if (!there) who += fmt::format("{}{}", who.empty() ? "" : ", ", peer);
    }
    return error(Code::kRemote, fmt::format("rank {} was not reached by rank {}", args_.rank, who));
  }

  const MeshArgs& args_;
  const int listener_;
  std::vector<PeerSockets> sockets_;
  std::vector<Outgoing> outgoing_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::size_t missing_ = 0;
  bool refusal_told_ = false;
};

/// Those as many ranks ahead or behind, in a ring of all, as a power of two says. Who hears of a failure passes it on. Ranks that are cut
/// off from each other by deaths have a dead one among those that they watch, whichever died: so all hear of one.
bool watch_each_other(std::size_t a, std::size_t b, std::size_t ranks) {
  const std::size_t apart = a > b ? a - b : b - a;
  return ranks <= kWatchAllMax || std::has_single_bit(apart) || std::has_single_bit(ranks - apart);
}

}  // namespace

std::vector<Ties> ties_of(int rank, const std::vector<Peer>& peers, bool over_mpi) {
  const auto me = static_cast<std::size_t>(rank);
  std::vector<Ties> ties(peers.size());
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    if (peer == me) continue;
    ties[peer].data = !over_mpi && peers[peer].host != peers[me].host;
    ties[peer].watch = over_mpi || watch_each_other(me, peer, peers.size());
  }
  return ties;
}

Bytes encode(const RankEndpoint& endpoint) {
  WireWriter writer;
  writer.number(endpoint.port).number(static_cast<std::uint8_t>(endpoint.addresses.size()));
  for (const IpAddress& address : endpoint.addresses) write_address(writer, address);
  const Bytes offer = encode(endpoint.mpi);
  return writer.number(static_cast<std::uint32_t>(offer.size())).raw(offer).take();
}

std::optional<RankEndpoint> decode_endpoint(std::span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  RankEndpoint endpoint;
  endpoint.port = reader.number<std::uint16_t>();
  const auto count = reader.number<std::uint8_t>();
  for (int i = 0; i < count; ++i) {
    const auto address = read_address(reader);
    if (!address) return std::nullopt;
    endpoint.addresses.push_back(*address);
  }
  const auto offer = decode_offer(reader.raw(reader.number<std::uint32_t>()));
  if (!offer) return std::nullopt;
  endpoint.mpi = *offer;
  if (!reader.complete()) return std::nullopt;
  return endpoint;
}

std::optional<std::vector<RankEndpoint>> decode_endpoints(const Bytes& bytes, int ranks) {
  const auto list = decode_list(bytes, ranks);
  if (!list) return std::nullopt;
  std::vector<RankEndpoint> all;
  for (const Bytes& one : *list) {
    auto endpoint = decode_endpoint(one);
    if (!endpoint) return std::nullopt;
    all.push_back(std::move(*endpoint));
  }
  return all;
}

Result<MeshListener> open_mesh_listener() {
  MeshListener made;
  TUTTI_TRY_ASSIGN(const auto chosen, choose_interfaces(list_interfaces(), root_variables().socket_interfaces));
  if (chosen.empty()) {
    return error(Code::kSystem, "the ranks are on several hosts, and no network interface of this one is up");
  }
  TUTTI_TRY_ASSIGN(made.listener, listen_tcp());
  made.endpoint.port = made.listener.port;
  for (const Interface& interface : chosen) {
    if (made.endpoint.addresses.size() < kAddressesMax) made.endpoint.addresses.push_back(interface.address);
  }
  made.endpoint.mpi = own_offer();
  log_info("bootstrap: other hosts reach this rank at {} (port {})", describe(chosen), made.listener.port);
  return made;
}

Result<std::vector<PeerSockets>> connect_mesh(const MeshArgs& args, const TcpListener& listener,
                                              const Patience& patience, RootClient& root) {
  return Mesh(args, listener).run(patience, root);
}

}  // namespace tutti::comm
