#include "comm/meetings.h"

#include "base/log.h"
#include "base/random.h"
#include "comm/rank_endpoint.h"
#include "comm/tcp_socket.h"

#include <fmt/format.h>

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <span>

namespace tutti::comm {
namespace {

/// For one address to answer; for a stranger to prove itself.
constexpr auto kAttemptTime = std::chrono::milliseconds(2500);
constexpr auto kHandshakeTime = std::chrono::seconds(10);
/// While places have run out. A slow rank that is dropped connects again. It greets as soon as it is connected.
constexpr auto kHandshakeTimeWhenFull = std::chrono::milliseconds(200);
constexpr auto kGreetingTimeWhenFull = std::chrono::milliseconds(20);
constexpr auto kRetryTime = std::chrono::milliseconds(100);

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

}  // namespace

Meetings::Meetings(int rank, int ranks, const Secret& secret, const PrivateDescriptor& listener)
    : rank_(rank), ranks_(ranks), secret_(secret), listener_(listener.get()) {}

std::size_t Meetings::strangers_max() {
  constexpr rlim_t kLeast = 16;
  constexpr rlim_t kMost = 256;
  constexpr rlim_t kShare = 16;
  rlimit limit = {};
  const rlim_t own = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / kShare : kLeast;
  return std::clamp(own, kLeast, kMost);
}

std::chrono::duration<double> Meetings::reach_time(double heartbeat_timeout_s, double timeout_s) {
  constexpr std::chrono::duration<double> kForever = std::chrono::hours(24 * 365);
  const std::chrono::duration<double> longest = heartbeat_timeout_s == 0 ? kForever : kReachTime;
  constexpr double kShare = 0.8;
  return timeout_s > 0 ? std::min(longest, std::chrono::duration<double>(kShare * timeout_s)) : longest;
}

void Meetings::begin(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  outgoing_.clear();
  std::vector<Early> waiting;
  waiting.swap(early_);
  for (Early& early : waiting) {
    // One that has given up meanwhile comes again.
    if (early.connection.fill() == Connection::Input::kClosed) continue;
    incoming_.push_back(std::make_unique<Incoming>(Incoming{std::move(early.connection), Clock::now(), ""}));
    incoming_.back()->key = early.key;
    welcome(*incoming_.back());
  }
}

void Meetings::seek(const Key& key, const ListenPlace& there) {
  Outgoing& way = *outgoing_.emplace_back(std::make_unique<Outgoing>());
  way.key = key;
  way.there = &there;
  way.why.resize(there.ways());
  way.refused.resize(there.ways());
  way.order.resize(there.ways());
  std::iota(way.order.begin(), way.order.end(), 0);
  if (!there.unix_name.empty()) return;
  // An address that has answered is no better than those abreast of it that were not tried: only silence counts.
  const std::size_t abreast = std::min<std::size_t>(there.abreast, way.order.size());
  const std::size_t first = abreast < 2 ? 0 : number_of(key.second).value_or(0) % abreast;
  const auto begin = way.order.begin();
  std::rotate(begin, begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(abreast));
  std::ranges::stable_partition(
      way.order, [&](std::size_t one) { return std::ranges::find(mute_, there.addresses[one]) == mute_.end(); });
}

void Meetings::note(const IpAddress& address, bool answers) {
  std::erase(mute_, address);
  if (!answers) mute_.push_back(address);
}

void Meetings::settle(int peer) {
  for (const auto& guest : incoming_) {
    if (guest->state == Incoming::State::kAttached && guest->key.first == peer) confirm(*guest);
  }
}

void Meetings::turn_away_all() {
  outgoing_.clear();
  std::erase_if(incoming_, [](const auto& guest) { return guest->state != Incoming::State::kAttached; });
}

void Meetings::forget(int peer) {
  std::erase_if(outgoing_, [&](const auto& way) { return way->key.first == peer; });
  std::erase_if(incoming_, [&](const auto& guest) { return guest->key.first == peer; });
}

void Meetings::forget(const Key& key) {
  std::erase_if(outgoing_, [&](const auto& way) { return way->key == key; });
  std::erase_if(incoming_, [&](const auto& guest) { return guest->key == key; });
}

Meetings::Attempts Meetings::attempts(const Key& key) const {
  for (const auto& way : outgoing_) {
    if (way->key != key) continue;
    const bool refused = !way->refused.empty() && std::ranges::all_of(way->refused, [](bool one) { return one; });
    return {way->rounds, refused, way->silent};
  }
  return {};
}

void Meetings::add_to(std::vector<pollfd>& watched) {
  const auto now = Clock::now();
  for (const auto& way : outgoing_) {
    // The other side's attempt may be about to end well.
    if (way->state == Outgoing::State::kIdle && now >= way->due && attached(way->key) == nullptr) start(*way);
  }
  const bool takes_more = incoming_.size() < places_ && now >= accepts_again_;
  watched.push_back({takes_more ? listener_ : -1, POLLIN, 0});
  for (const auto& guest : incoming_) watched.push_back({guest->connection.fd(), POLLIN, 0});
  for (const auto& way : outgoing_) {
    const bool connecting = way->state == Outgoing::State::kConnecting;
    watched.push_back({way->connection ? way->connection->fd() : -1, short(connecting ? POLLOUT : POLLIN), 0});
  }
  polled_guests_ = incoming_.size();
  polled_ways_ = outgoing_.size();
}

void Meetings::serve(std::span<const pollfd> polled) {
  for (std::size_t i = 0; i < polled_guests_; ++i) {
    if (polled[1 + i].revents != 0) serve(*incoming_[i]);
  }
  for (std::size_t i = 0; i < polled_ways_; ++i) {
    // One that a guest has made needless meanwhile has no connection.
    if (polled[1 + polled_guests_ + i].revents != 0 && outgoing_[i]->connection) advance(*outgoing_[i]);
  }
  if (polled[0].revents != 0) accept_all();
  // Nobody waits.
  if (polled[0].revents == 0 && polled[0].fd >= 0) starved_listener_.reset();
  drop_late();
}

Meetings::Outgoing* Meetings::way_to(const Key& key) {
  const auto found = std::ranges::find_if(outgoing_, [&](const auto& way) { return way->key == key; });
  return found == outgoing_.end() ? nullptr : found->get();
}

Meetings::Incoming* Meetings::attached(const Key& key) {
  const auto found = std::ranges::find_if(
      incoming_, [&](const auto& guest) { return guest->state == Incoming::State::kAttached && guest->key == key; });
  return found == incoming_.end() ? nullptr : found->get();
}

// Who connects.

void Meetings::start(Outgoing& way) {
  if (way.there->ways() == 0) return fail(way, "it has told no address");
  PrivateDescriptor socket = way.there->connect(way.candidate());
  const int failure = errno;
  if (!socket) {
    note_lack(starved_ways_, failure);
    return fail(way, connect_problem(failure), failure_of(failure));
  }
  starved_ways_.reset();
  way.connection.emplace(std::move(socket), Connection::kStrangerPayloadMax);
  way.state = Outgoing::State::kConnecting;
  way.due = Clock::now() + kAttemptTime;
}

Meetings::Failure Meetings::failure_of(int connect_errno) {
  switch (connect_errno) {
    case ECONNREFUSED: return Failure::kRefused;
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ETIMEDOUT: return Failure::kSilence;
    default: return Failure::kOther;
  }
}

/// The other side may have taken it in already: who closes a connection without a word is a stranger there.
void Meetings::Outgoing::let_go() {
  if (connection && state == State::kConnecting) {
    connection->queue(FrameType::kGreeting, tutti::comm::encode(Greeting{kProtocolVersion, {}}));
    (void)connection->flush();
  }
  connection.reset();
}

/// The next address, after a pause when all had their turn.
void Meetings::fail(Outgoing& way, const std::string& why, Failure failure) {
  if (way.turn < way.order.size()) {
    way.why[way.candidate()] = why;
    way.refused[way.candidate()] = failure == Failure::kRefused;
    // Who refuses is there, and who has greeted in vain, or was proved, has met a rank that is stopped or gone.
    using State = Outgoing::State;
    const bool unheard = failure == Failure::kSilence && (way.state == State::kIdle || way.state == State::kConnecting);
    const bool strange =
        failure == Failure::kOther && (way.state == State::kConnecting || way.state == State::kGreeted);
    const bool mute = unheard || strange;
    if (mute && way.there->unix_name.empty()) note(way.there->addresses[way.candidate()], false);
  }
  way.silent = way.silent && failure == Failure::kSilence;
  way.let_go();
  way.state = Outgoing::State::kIdle;
  way.due = Clock::now();
  if (++way.turn >= way.order.size()) {
    way.turn = 0;
    ++way.rounds;
    way.due += kRetryTime;
  }
}

void Meetings::advance(Outgoing& way) {
  if (way.state == Outgoing::State::kConnecting) return greet(way);
  const Connection::Input input = way.connection->fill();
  for (;;) {
    auto frame = way.connection->next();
    if (!frame.ok()) return fail(way, "it sent " + frame.error().message);
    if (!frame.value()) break;
    way.silent = false;
    if (way.state == Outgoing::State::kGreeted && frame.value()->type == FrameType::kChallenge) {
      if (!prove(way, frame.value()->payload)) return fail(way, "somebody else answers there");
    } else if (way.state == Outgoing::State::kProved && frame.value()->type == FrameType::kAttached) {
      if (!finish(way)) fail(way, "it closed the connection");
      return;
    } else {
      return fail(way, "it sent a wrong frame");
    }
  }
  if (input == Connection::Input::kClosed) fail(way, "it closed the connection");
}

void Meetings::greet(Outgoing& way) {
  if (const int failure = connect_result(way.connection->fd()); failure != 0)
    return fail(way, connect_problem(failure), failure_of(failure));
  send_at_once(way.connection->fd());
  way.greeting.version = kProtocolVersion;
  if (!fill_random(way.greeting.nonce.data(), way.greeting.nonce.size()).ok()) return fail(way, "no random bytes");
  way.connection->queue(FrameType::kGreeting, tutti::comm::encode(way.greeting));
  if (!way.connection->flush()) return fail(way, "it closed the connection");
  way.state = Outgoing::State::kGreeted;
  way.due = Clock::now() + kHandshakeTime;
}

bool Meetings::prove(Outgoing& way, const Bytes& payload) {
  const auto challenge = decode_challenge(payload);
  if (!challenge || !same_digest(challenge->proof, root_proof(secret_, way.greeting, *challenge))) return false;
  const Bytes body = encode(Attach{rank_, way.key.first, way.key.second});
  WireWriter proved;
  proved.raw(rank_proof(secret_, way.greeting, *challenge, FrameType::kAttach, body)).raw(body);
  way.connection->queue(FrameType::kAttach, proved.take());
  way.state = Outgoing::State::kProved;
  return way.connection->flush();
}

/// False: the other side is gone, and has kept nothing.
bool Meetings::finish(Outgoing& way) {
  way.connection->queue(FrameType::kAttached, {});
  // So few bytes find room in a socket by which little was sent.
  if (!way.connection->flush() || way.connection->wants_to_write()) return false;
  Connection made = std::move(*way.connection);
  way.connection.reset();
  if (way.there->unix_name.empty()) note(way.there->addresses[way.candidate()], true);
  way.due = Clock::time_point::max();  // drop_late() takes it away
  const Key key = way.key;
  hand_over(key, std::move(made));
  return true;
}

// Who listens.

void Meetings::accept_all() {
  while (incoming_.size() < places_) {
    PrivateDescriptor socket = accept_connection(listener_);
    if (!socket) return pause_accepting(errno);
    starved_listener_.reset();
    send_at_once(socket.get());
    std::string from = peer_address(socket.get());
    incoming_.push_back(std::make_unique<Incoming>(
        Incoming{Connection(std::move(socket), Connection::kStrangerPayloadMax), Clock::now(), std::move(from)}));
  }
}

/// Who could not be taken in stays in the queue, and the listener readable.
void Meetings::pause_accepting(int why) {
  if (why == EAGAIN || why == EWOULDBLOCK || why == ECONNABORTED || why == EINTR) return;
  note_lack(starved_listener_, why);
  accepts_again_ = Clock::now() + kRetryTime;
  if (!pause_told_) {
    log_warn(
        "no connection of another rank can be taken in: {}; where that says too many open files, raise the limit "
        "(ulimit -n)",
        strerror(why));
  }
  pause_told_ = true;
}

void Meetings::note_lack(std::optional<Starvation>& starvation, int why) {
  if (lacks_descriptor(why) && !starvation) starvation = {Clock::now(), why};
}

std::optional<Error> Meetings::starved(Clock::duration so_long) const {
  const std::optional<Starvation>& one = starved_listener_ ? starved_listener_ : starved_ways_;
  if (!one || Clock::now() - one->since < so_long) return std::nullopt;
  return error(Code::kSystem, fmt::format("rank {} can make no connection with others: {}; where that says too many "
                                          "open files, raise the limit (ulimit -n)",
                                          rank_, strerror(one->why)));
}

void Meetings::serve(Incoming& guest) {
  if (guest.state == Incoming::State::kOver) return;
  if (guest.state == Incoming::State::kAttached) return confirm(guest);
  const Connection::Input input = guest.connection.fill();
  while (guest.state == Incoming::State::kNew || guest.state == Incoming::State::kChallenged) {
    auto frame = guest.connection.next();
    if (!frame.ok()) return refuse(guest, "it sent " + frame.error().message);
    if (!frame.value()) break;
    if (guest.state == Incoming::State::kNew && frame.value()->type == FrameType::kGreeting) {
      challenge(guest, frame.value()->payload);
    } else if (guest.state == Incoming::State::kChallenged && frame.value()->type == FrameType::kAttach) {
      return admit(guest, frame.value()->payload);
    } else {
      return refuse(guest, "it sent a wrong frame");
    }
  }
  if (input != Connection::Input::kClosed || guest.state == Incoming::State::kOver) return;
  if (guest.state == Incoming::State::kNew) return refuse(guest, guest.connection.end_before_frame());
  if (guest.greeting.version != kProtocolVersion) {
    return refuse(guest, fmt::format("it speaks version {} of the bootstrap, and has gone", guest.greeting.version));
  }
  // A rank that has gone another way in the meantime, for the most part.
  guest.state = Incoming::State::kOver;
}

void Meetings::challenge(Incoming& guest, const Bytes& payload) {
  const auto greeting = decode_greeting(payload);
  if (!greeting) return refuse(guest, "its greeting is malformed");
  guest.greeting = *greeting;
  guest.challenge.version = kProtocolVersion;
  if (!fill_random(guest.challenge.nonce.data(), guest.challenge.nonce.size()).ok()) {
    return refuse(guest, "no random bytes for its challenge");
  }
  guest.challenge.proof = root_proof(secret_, guest.greeting, guest.challenge);
  guest.connection.queue(FrameType::kChallenge, tutti::comm::encode(guest.challenge));
  guest.state = guest.connection.flush() ? Incoming::State::kChallenged : Incoming::State::kOver;
}

void Meetings::admit(Incoming& guest, const Bytes& payload) {
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
  guest.key = {attach->from, attach->purpose};
  welcome(guest);
}

/// A rank that came: now, or when it is its turn. A second one comes from a rank that has given up on the first.
void Meetings::welcome(Incoming& guest) {
  guest.state = Incoming::State::kOver;
  if (Incoming* const before = attached(guest.key)) confirm(*before);
  if (!callbacks_.expects || !callbacks_.expects(guest.key)) {
    std::erase_if(early_, [&](const Early& other) { return other.key == guest.key; });
    if (keeps_early_) early_.push_back({guest.key, std::move(guest.connection)});
    return;
  }
  if (Incoming* const before = attached(guest.key)) before->state = Incoming::State::kOver;
  if (Outgoing* const own = way_to(guest.key)) {
    if (own->state == Outgoing::State::kProved && rank_ > guest.key.first) return;
    own->let_go();
    own->state = Outgoing::State::kIdle;
    own->due = Clock::now();  // as soon as the guest is no more
  }
  guest.connection.queue(FrameType::kAttached, {});
  if (!guest.connection.flush() || guest.connection.wants_to_write()) return;
  guest.state = Incoming::State::kAttached;
}

/// Whether the other side has kept the connection: not a byte beyond what says so is read here.
void Meetings::confirm(Incoming& guest) {
  const Connection::Input input = guest.connection.fill(Connection::kHeaderBytes);
  auto frame = guest.connection.next();
  if (frame.ok() && !frame.value() && input == Connection::Input::kOpen) return;
  guest.state = Incoming::State::kOver;
  if (!frame.ok() || !frame.value() || frame.value()->type != FrameType::kAttached) return;
  if (Outgoing* const own = way_to(guest.key)) {
    own->let_go();
    own->due = Clock::time_point::max();
  }
  if (const auto address = peer_ip(guest.connection.fd())) note(*address, true);
  if (callbacks_.expects && callbacks_.expects(guest.key)) hand_over(guest.key, std::move(guest.connection));
}

void Meetings::refuse(Incoming& guest, const std::string& why) {
  guest.state = Incoming::State::kOver;
  if (!refusal_told_) log_warn("bootstrap: a connection of {} was refused: {}", guest.from, why);
  refusal_told_ = true;
}

// Both.

/// How data is paced is settled by who carries it (bridge.h).
void Meetings::hand_over(const Key& key, Connection made) {
  if (!number_of(key.second)) pace_by_system(made.fd());
  callbacks_.on_made(key, std::move(made));
}

void Meetings::drop_late() {
  const auto now = Clock::now();
  const bool has_room = incoming_.size() < places_ && !starved_listener_;
  for (const auto& guest : incoming_) {
    const bool is_new = guest->state == Incoming::State::kNew;
    if (!is_new && guest->state != Incoming::State::kChallenged) continue;
    const Clock::duration when_full = is_new ? kGreetingTimeWhenFull : kHandshakeTimeWhenFull;
    if (now - guest->since <= (has_room ? kHandshakeTime : when_full)) continue;
    if (is_new) serve(*guest);  // it may have greeted since it was polled
    if (!is_new || guest->state == Incoming::State::kNew) refuse(*guest, "it did not finish the handshake");
  }
  std::erase_if(incoming_, [](const auto& guest) { return guest->state == Incoming::State::kOver; });
  std::erase_if(outgoing_, [](const auto& way) { return way->due == Clock::time_point::max(); });
  const auto is_idle = [](const auto& way) { return way->state == Outgoing::State::kIdle; };
  if (std::ranges::none_of(outgoing_, is_idle)) starved_ways_.reset();
  for (const auto& way : outgoing_) {
    if (way->state != Outgoing::State::kIdle && now >= way->due) fail(*way, "no answer", Failure::kSilence);
  }
}

std::optional<Error> Meetings::not_reached(std::optional<int> peer) const {
  for (const auto& way : outgoing_) {
    if (way->due == Clock::time_point::max() || (peer && way->key.first != *peer)) continue;
    std::string tried;
    for (std::size_t i = 0; i < way->why.size(); ++i) {
      tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", way->there->text(i),
                           way->why[i].empty() ? "no answer" : way->why[i]);
    }
    const std::optional<Error> own = starved({});
    return error(Code::kRemote, fmt::format("rank {} cannot reach rank {}; tried {}. {}", rank_, way->key.first,
                                            tried.empty() ? "nothing" : tried,
                                            own ? own->message : "NCCL_SOCKET_IFNAME chooses the interfaces"));
  }
  return std::nullopt;
}

}  // namespace tutti::comm
