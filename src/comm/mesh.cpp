#include "comm/mesh.h"

#include "base/log.h"
#include "base/random.h"

#include <fmt/format.h>

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

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
/// Up to so many ranks all watch each other.
constexpr std::size_t kWatchAllMax = 16;

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
  if (!reader.complete() || purpose > static_cast<std::uint8_t>(data_socket(kSocketsMax - 1))) return std::nullopt;
  return attach;
}

/// This rank's way to another.
struct Outgoing {
  enum class State { kIdle, kConnecting, kGreeted, kProved, kDone };
  std::size_t meeting = 0;
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

/// Somebody who is proved to be a rank, and came early.
struct Early {
  Attach attach;
  Connection connection;
};

/// Those as many ranks ahead or behind, in a ring of all, as a power of two says. Who hears of a failure passes it on. Ranks that are cut
/// off from each other by deaths have a dead one among those that they watch, whichever died: so all hear of one.
bool watch_each_other(std::size_t a, std::size_t b, std::size_t ranks) {
  const std::size_t apart = a > b ? a - b : b - a;
  return ranks <= kWatchAllMax || std::has_single_bit(apart) || std::has_single_bit(ranks - apart);
}

}  // namespace

class Mesh::Meetings {
 public:
  Meetings(int rank, int ranks, const Secret& secret, const TcpListener& listener)
      : rank_(rank), ranks_(ranks), secret_(secret), listener_(listener.socket.get()) {}

  Result<std::vector<Connection>> run(const std::vector<Meeting>& wanted, const Patience& patience, RootClient& root) {
    begin(wanted);
    const auto until = Clock::now() + kReachTime;
    while (missing_ > 0) {
      if (auto failure = root.failure_now()) return std::move(*failure);
      if (patience.now() == Patience::Outcome::kCancelled) {
        return error(Code::kInvalidUsage, "the communicator was aborted while it was being initialised");
      }
      if (patience.now() != Patience::Outcome::kReady || Clock::now() >= until) return not_reached();
      poll_once();
    }
    std::vector<Connection> connections;
    for (std::optional<Connection>& one : made_) connections.push_back(std::move(*one));
    return connections;
  }

 private:
  void begin(const std::vector<Meeting>& wanted) {
    wanted_ = wanted;
    made_.clear();
    made_.resize(wanted.size());
    missing_ = wanted.size();
    outgoing_.clear();
    awaited_.clear();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].there == nullptr) {
        awaited_[{wanted[i].peer, wanted[i].purpose}] = i;
        continue;
      }
      Outgoing& way = outgoing_.emplace_back();
      way.meeting = i;
      way.why.resize(wanted[i].there->addresses.size());
    }
    std::vector<Early> waiting;
    waiting.swap(early_);
    for (Early& guest : waiting) {
      // One that has given up meanwhile comes again.
      if (guest.connection.fill() == Connection::Input::kOpen) welcome(guest.attach, guest.connection);
    }
  }

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
    const RankEndpoint& there = *wanted_[way.meeting].there;
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
    if (!challenge || !same_digest(challenge->proof, root_proof(secret_, way.greeting, *challenge))) return false;
    const Bytes body = encode(Attach{rank_, wanted_[way.meeting].peer, wanted_[way.meeting].purpose});
    WireWriter proved;
    proved.raw(rank_proof(secret_, way.greeting, *challenge, FrameType::kAttach, body)).raw(body);
    way.connection->queue(FrameType::kAttach, proved.take());
    way.state = Outgoing::State::kProved;
    return way.connection->flush();
  }

  void finish(Outgoing& way) {
    way.state = Outgoing::State::kDone;
    keep(way.meeting, *way.connection);
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
    guest.challenge.proof = root_proof(secret_, guest.greeting, guest.challenge);
    guest.connection.queue(FrameType::kChallenge, tutti::comm::encode(guest.challenge));
    guest.challenged = true;
    if (!guest.connection.flush()) guest.over = true;
  }

  void admit(Incoming& guest, const Bytes& payload) {
    Digest proof = {};
    if (payload.size() < proof.size()) return refuse(guest, "its proof is malformed");
    std::copy_n(payload.begin(), proof.size(), proof.begin());
    const auto body = std::span(payload).subspan(proof.size());
    if (!same_digest(proof, rank_proof(secret_, guest.greeting, guest.challenge, FrameType::kAttach, body))) {
      return refuse(guest, "it does not know the secret of the unique id");
    }
    const auto attach = decode_attach(body);
    const bool is_rank = attach && attach->to == rank_ && attach->from >= 0 && attach->from < ranks_;
    if (!is_rank || attach->from == rank_) return refuse(guest, "it is not a rank that connects to this one");
    guest.over = true;
    welcome(*attach, guest.connection);
  }

  /// A rank that came: now, or when it is its turn. A second one comes from a rank that has given up on the first.
  void welcome(const Attach& guest, Connection& connection) {
    const auto awaited = awaited_.find({guest.from, guest.purpose});
    if (awaited == awaited_.end()) {
      std::erase_if(early_, [&](const Early& other) {
        return other.attach.from == guest.from && other.attach.purpose == guest.purpose;
      });
      early_.push_back({guest, std::move(connection)});
      return;
    }
    connection.queue(FrameType::kAttached, {});
    if (connection.flush() && !connection.wants_to_write()) keep(awaited->second, connection);
  }

  void refuse(Incoming& guest, const std::string& why) {
    guest.over = true;
    if (!refusal_told_) log_warn("bootstrap: a connection of {} was refused: {}", guest.from, why);
    refusal_told_ = true;
  }

  // Both.

  void keep(std::size_t meeting, Connection& connection) {
    if (!made_[meeting]) --missing_;
    made_[meeting] = std::move(connection);
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
      const RankEndpoint& there = *wanted_[way.meeting].there;
      std::string tried;
      for (std::size_t i = 0; i < way.why.size(); ++i) {
        tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", there.addresses[i].text(there.port),
                             way.why[i].empty() ? "no answer" : way.why[i]);
      }
      return error(Code::kRemote, fmt::format("rank {} cannot reach rank {}; tried {}. NCCL_SOCKET_IFNAME chooses the "
                                              "interfaces",
                                              rank_, wanted_[way.meeting].peer, tried.empty() ? "nothing" : tried));
    }
    std::set<int> who;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (!made_[i]) who.insert(wanted_[i].peer);
    }
    return error(Code::kRemote, fmt::format("rank {} was not reached by rank {}", rank_, fmt::join(who, ", ")));
  }

  const int rank_;
  const int ranks_;
  const Secret secret_;
  const int listener_;
  std::vector<Meeting> wanted_;
  std::vector<std::optional<Connection>> made_;             ///< [wanted_]
  std::map<std::pair<int, Purpose>, std::size_t> awaited_;  ///< of wanted_: those who come
  std::vector<Outgoing> outgoing_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::vector<Early> early_;
  std::size_t missing_ = 0;
  bool refusal_told_ = false;
};

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

Mesh::Mesh(int rank, int ranks, const Secret& secret, const TcpListener& listener)
    : meetings_(std::make_unique<Meetings>(rank, ranks, secret, listener)) {}
Mesh::~Mesh() = default;

Result<std::vector<Connection>> Mesh::meet(const std::vector<Meeting>& wanted, const Patience& patience,
                                           RootClient& root) {
  return meetings_->run(wanted, patience, root);
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
    if (wanted[i].purpose == Purpose::kData) {
      with.data = std::move(socket);
    } else if (wanted[i].purpose == Purpose::kWatch) {
      with.watch = std::move(socket);
    } else {
      with.more.push_back(std::move(socket));  // in order: so they are wanted
    }
  }
  return sockets;
}

}  // namespace tutti::comm
