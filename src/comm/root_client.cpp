#include "comm/root_client.h"

#include "base/random.h"
#include "comm/meetings.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tutti::comm {
namespace {

using Outcome = Patience::Outcome;

/// While the root's queue is full, or other threads of this process hold the last descriptors for a moment.
constexpr int kRetryMs = 5;
constexpr auto kDescriptorPatience = std::chrono::seconds(5);
/// For one address; for the network to come back; between two rounds.
constexpr double kAttemptS = 2.5;
constexpr auto kNetworkPatience = std::chrono::seconds(20);
constexpr int kNetworkRetryMs = 100;
constexpr int kLookMs = 25;
/// For the root to say why all failed; and to find out who is missing, for which it calls the roll.
constexpr double kAnswerS = 1;
constexpr double kRollCallS = 2.5;
constexpr int kAttempts = 3;
/// For ranks below to take the tables, and at the end to take what came last.
constexpr auto kPassTime = std::chrono::seconds(60);
constexpr auto kLastWordTime = std::chrono::milliseconds(200);
/// For the root to tell why another rank has given up.
constexpr auto kReasonTime = std::chrono::seconds(5);

std::string unix_address_of(const UniqueId& id) {
  return std::string(id.address, strnlen(id.address, sizeof(id.address)));
}

Error cancelled() { return error(Code::kInvalidUsage, "the communicator was aborted while it was being initialised"); }

Error not_reached(const UniqueId& id, Outcome outcome, double timeout_s) {
  if (outcome == Outcome::kCancelled) return cancelled();
  return error(Code::kRemote,
               fmt::format("the process that made the unique id did not answer at {} for {} s: is it stopped?",
                           describe(id), timeout_s));
}

/// Answered where it is read, and nothing that a rank waits for.
bool is_for_the_tree(const Frame& frame) {
  return frame.type == FrameType::kRollCall || frame.type == FrameType::kSignOfLife;
}

Error gave_up(int rank, const Error& why) {
  return error(Code::kRemote, fmt::format("rank {} (process {}) gave up: {}", rank, getpid(), why.message));
}

Error nobody_listens(const UniqueId& id, const std::string& tried) {
  if (id.named) {
    return error(Code::kRemote,
                 fmt::format("rank 0 was not reached at {}, where it was to be: {}", describe(id), tried));
  }
  return error(Code::kRemote,
               fmt::format("nobody listens at {}: the process that made the unique id has ended or runs in "
                           "another network, or the id was used before (an id makes one communicator){}{}",
                           describe(id), tried.empty() ? "" : "; tried ", tried));
}

/// One attempt by each of the id's addresses. Empty, and `why` says of each what went wrong.
Result<PrivateDescriptor> connect_to_candidates(const UniqueId& id, const Patience& patience, std::string& why) {
  why.clear();
  for (const IpAddress& address : candidates_of(id)) {
    PrivateDescriptor socket = connect_tcp(address, id.port);
    int failure = socket ? 0 : errno;
    if (socket) {
      const Patience attempt(kAttemptS, nullptr);
      bool answered = false;
      while (!answered && attempt.now() == Outcome::kReady && patience.now() == Outcome::kReady) {
        pollfd watched = {socket.get(), POLLOUT, 0};
        answered = poll(&watched, 1, kLookMs) > 0;
      }
      if (patience.now() == Outcome::kCancelled) return cancelled();
      failure = answered ? connect_result(socket.get()) : ETIMEDOUT;
    }
    if (failure == 0) return socket;
    why += fmt::format("{}{}: {}", why.empty() ? "" : ", ", address.text(id.port), strerror(failure));
  }
  return PrivateDescriptor();
}

/// Where the id's maker was not met by the Unix socket: rank 0 of a named root may be late, networks may be down for a while.
Result<PrivateDescriptor> connect_by_tcp(const UniqueId& id, const Patience& patience) {
  const auto until = Patience::Clock::now() + kNetworkPatience;
  for (;;) {
    std::string why;
    TUTTI_TRY_ASSIGN(PrivateDescriptor socket, connect_to_candidates(id, patience, why));
    if (socket) {
      send_at_once(socket.get());
      return socket;
    }
    const bool refused = why.empty() || why.find(strerror(ECONNREFUSED)) != std::string::npos;
    if (!id.named && (refused || Patience::Clock::now() >= until)) return nobody_listens(id, why);
    const Outcome outcome = patience.nap(kNetworkRetryMs);
    if (outcome == Outcome::kTimedOut) return nobody_listens(id, why);
    if (outcome != Outcome::kReady) return cancelled();
  }
}

Result<PrivateDescriptor> connect_patiently(const UniqueId& id, const Patience& patience) {
  if (id.named) return connect_by_tcp(id, patience);
  const auto descriptors_until = Patience::Clock::now() + kDescriptorPatience;
  for (;;) {
    PrivateDescriptor socket = connect_unix(unix_address_of(id));
    if (socket) return socket;
    const bool no_descriptor = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (errno == ECONNREFUSED) return connect_by_tcp(id, patience);
    if (errno != EAGAIN && !(no_descriptor && Patience::Clock::now() < descriptors_until)) {
      return system_error(fmt::format("connect to {}{}", describe(id), no_descriptor ? " (raise ulimit -n)" : ""));
    }
    const Outcome outcome = patience.nap(kRetryMs);
    if (outcome != Outcome::kReady) return not_reached(id, outcome, patience.timeout_s());
  }
}

}  // namespace

Result<RootClient> RootClient::join(const UniqueId& id, const Patience& patience, FrameType type, const Body& body,
                                    int rank, double heartbeat_s) {
  for (;;) {
    TUTTI_TRY_ASSIGN(PrivateDescriptor socket, connect_patiently(id, patience));
    const std::int32_t root_pid = peer_process(socket.get());
    std::string root = root_pid > 0 ? fmt::format("process {}", root_pid)
                                    : fmt::format("the process at {}", peer_address(socket.get()));
    RootClient client(id, Connection(std::move(socket), Connection::kRootPayloadMax), patience);
    client.root_ = std::move(root);
    client.heartbeat_s_ = heartbeat_s;
    Status status = client.handshake(type, body, rank);
    if (status.ok()) return client;
    // Dropped before it was known: the root had no room. Or it has just ended, which the next attempt shows.
    const bool dropped = client.above_gone_ && !client.connection_.is_silent(heartbeat_s);
    if (!dropped) return std::move(status).error();
    const Outcome outcome = patience.nap(kRetryMs);
    if (outcome != Outcome::kReady) return not_reached(id, outcome, patience.timeout_s());
  }
}

Status RootClient::handshake(FrameType type, const Body& body, int rank) {
  const Secret secret = secret_of(id_);
  Greeting greeting{kProtocolVersion, {}};
  TUTTI_TRY(fill_random(greeting.nonce.data(), greeting.nonce.size()));
  TUTTI_TRY(send(FrameType::kGreeting, encode(greeting)));
  TUTTI_TRY_ASSIGN(const Bytes answer, expect(FrameType::kChallenge));
  const auto challenge = decode_challenge(answer);
  if (!challenge || !same_digest(challenge->proof, root_proof(secret, greeting, *challenge))) {
    return error(Code::kInvalidUsage,
                 fmt::format("{} does not know the secret of the unique id: {}", root_,
                             id_.named ? "TUTTI_SECRET differs" : "the id was damaged on its way here"));
  }
  TUTTI_TRY_ASSIGN(const Bytes said, body(is_unix(connection_.fd())));
  WireWriter proved;
  proved.raw(rank_proof(secret, greeting, *challenge, type, said)).raw(said);
  TUTTI_TRY(send(type, proved.take()));
  connection_.accept_descriptors();
  if (rank < 0) return {};
  rank_ = rank;
  TUTTI_TRY_ASSIGN(place_, expect(FrameType::kPlace));
  return {};
}

Status RootClient::release(const UniqueId& id, const Patience& patience) {
  TUTTI_TRY_ASSIGN(const RootClient released,
                   join(id, patience, FrameType::kRelease, [](bool) -> Result<Bytes> { return Bytes(); }));
  return {};
}

Result<RootClient> RootClient::enter(const UniqueId& id, const Patience& patience, int ranks, const Peer& self,
                                     double heartbeat_s) {
  std::unique_ptr<TreeLinks> links;
  std::optional<Error> cannot_listen;
  const auto hello = [&](bool by_unix_socket) -> Result<Bytes> {
    cannot_listen.reset();  // when it is said again
    Hello said{ranks, self, {}};
    if (ranks > kRootChildren) {
      auto listening = TreeLinks::listen(self.rank, ranks, secret_of(id), by_unix_socket, heartbeat_s);
      if (listening.ok()) {
        links = std::move(listening).value();
        said.place = links->place();
      } else {
        // Said nevertheless: only from a rank that it knows does the root hear why it gives up.
        cannot_listen = std::move(listening).error();
      }
    }
    return encode(said);
  };
  TUTTI_TRY_ASSIGN(RootClient root, join(id, patience, FrameType::kHello, hello, self.rank, heartbeat_s));
  root.links_ = std::move(links);
  root.in_place_ = true;
  if (cannot_listen) return root.leave(*std::move(cannot_listen));
  const auto place = decode_tree_place(root.place_);
  const bool good = place && place->parent < ranks && place->parent != self.rank &&
                    (place->parent == kBelowRoot || (place->parent >= 0 && root.links_));
  if (!good) return root.leave(error(Code::kInternal, "this rank's place from the bootstrap root is malformed"));
  if (place->parent != kBelowRoot) TUTTI_TRY(root.go_below(*place));
  return root;
}

/// Meanwhile the connection with the root stays: it tells of failures, and ends when the root has heard of this rank from the one above.
Status RootClient::go_below(const TreePlace& place) {
  in_place_ = false;
  links_->seek_above(place);
  bool registered = false;
  const auto until = Patience::Clock::now() + Meetings::kReachTime;
  while (!registered) {
    links_->serve();
    connection_.show_life();
    const bool open = connection_.fill() == Connection::Input::kOpen;
    auto frame = connection_.next();
    if (!frame.ok()) {
      return error(frame.error().code,
                   fmt::format("{} sent {}: what listens there is no rank of this job; check the address and the port",
                               above_.empty() ? root_ : above_, frame.error().message));
    }
    if (frame.value()) {
      pass_down(*frame.value());
      if (frame.value()->type == FrameType::kFailure)
        return decode_failure(frame.value()->payload).value_or(root_gone());
      registered = frame.value()->type == FrameType::kRegistered;
      continue;
    }
    if (!open) return tell_below(root_gone());
    if (auto silent = above_silent()) return *std::move(silent);
    if (Patience::Clock::now() >= until) {
      const Error stuck = error(
          Code::kRemote, fmt::format("rank {} (process {}), or one above it, has not told the root for {} s that rank "
                                     "{} is below it: is it stopped?",
                                     place.parent, place.pid, Meetings::kReachTime.count(), rank_));
      return leave(links_->above_not_reached().value_or(stuck));
    }
    if (const Outcome outcome = wait(POLLIN); outcome != Outcome::kReady) return give_up(outcome);
  }
  std::optional<Connection> above = links_->take_above();
  if (!above) return leave(error(Code::kInternal, "the bootstrap root has heard of this rank before the one above it"));
  connection_ = *std::move(above);
  parent_ = place.parent;
  above_ = fmt::format("rank {} (process {})", place.parent, place.pid);
  in_place_ = true;
  return {};
}

/// Until something comes, here or from below, or for a look.
Outcome RootClient::wait(short events) {
  std::vector<pollfd> watched = {{connection_.fd(), events, 0}};
  if (links_) links_->add_to(watched);
  if (poll(watched.data(), watched.size(), kLookMs) < 0 && errno != EINTR) poll(nullptr, 0, 1);
  return patience_->now();
}

void RootClient::add_to(std::vector<pollfd>& watched) {
  watched.push_back({connection_.fd(), POLLIN, 0});
  if (links_) links_->add_to(watched);
}

void RootClient::pass_up() {
  if (rank_ >= 0 && !done_) connection_.show_life();
  if (!links_ || !in_place_) return;
  links_->serve();
  for (TreeLinks::Upward& said : links_->take_upward())
    connection_.queue(said.type, said.payload, std::move(said.attached));
  (void)connection_.flush();
}

void RootClient::pass_down(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kControl:
      if (Descriptor file = connection_.take_descriptor()) file_ = std::make_shared<Descriptor>(std::move(file));
      break;
    case FrameType::kRollCall:
      connection_.queue(FrameType::kPresent, {});
      (void)connection_.flush();
      break;
    case FrameType::kListen:
    case FrameType::kTable:
    case FrameType::kEndpoints:
    case FrameType::kComplete:
    case FrameType::kFailure: break;
    default: return;
  }
  if (!links_) return;
  links_->send_down(frame, frame.type == FrameType::kControl ? file_ : nullptr);
  const bool is_last = frame.type == FrameType::kComplete || frame.type == FrameType::kFailure;
  if (is_last) links_->flush_down(kLastWordTime);
}

/// Those below would ask, or wait, for what this rank knows.
Error RootClient::tell_below(Error why) {
  pass_down({FrameType::kFailure, encode(why)});
  return why;
}

Status RootClient::finish_passing_on() {
  const auto until = Patience::Clock::now() + kPassTime;
  while (links_ && links_->slow_child() >= 0) {
    if (auto failure = failure_now()) return std::move(*failure);
    const int slow = links_->slow_child();
    if (slow >= 0 && Patience::Clock::now() >= until) {
      return leave(
          error(Code::kRemote, fmt::format("rank {} does not take the ranks' addresses from rank {}", slow, rank_)));
    }
    if (const Outcome outcome = wait(POLLIN); outcome != Outcome::kReady) return give_up(outcome);
  }
  return {};
}

Status RootClient::send(FrameType type, const Bytes& payload, std::shared_ptr<Descriptor> attached) {
  connection_.queue(type, payload, std::move(attached));
  done_ |= type == FrameType::kDone;
  return send_all();
}

Status RootClient::send_all() {
  for (;;) {
    // Who is above and has failed says why before it ends: what it said is read by the next expect.
    if (!connection_.flush()) {
      above_gone_ = true;
      return in_place_ ? Status() : root_gone();
    }
    if (!connection_.wants_to_write()) return {};
    (void)connection_.fill();  // a sign of life; whoever reads next sees the end, too
    if (auto silent = above_silent()) return *std::move(silent);
    pass_up();
    if (const Outcome outcome = wait(POLLOUT); outcome != Outcome::kReady) return give_up(outcome);
  }
}

Result<Frame> RootClient::next_frame() {
  bool open = true;
  if (!kept_.empty()) {
    Frame first = std::move(kept_.front());
    kept_.pop_front();
    return first;
  }
  for (;;) {
    auto frame = connection_.next();
    if (!frame.ok()) {
      return error(frame.error().code,
                   fmt::format("{} sent {}: what listens there is no rank of this job; check the address and the port",
                               above_.empty() ? root_ : above_, frame.error().message));
    }
    if (frame.value()) {
      pass_down(*frame.value());
      if (is_for_the_tree(*frame.value())) continue;
      return std::move(*frame.value());
    }
    if (!open) return above_gone();
    if (auto silent = above_silent()) return *std::move(silent);
    pass_up();
    if (const Outcome outcome = wait(POLLIN); outcome != Outcome::kReady) return give_up(outcome);
    open = connection_.fill() == Connection::Input::kOpen;
  }
}

Result<Bytes> RootClient::expect(FrameType type) {
  TUTTI_TRY_ASSIGN(Frame frame, expect_one_of(type, type));
  return std::move(frame.payload);
}

Result<Frame> RootClient::expect_one_of(FrameType type, FrameType other) {
  TUTTI_TRY_ASSIGN(Frame frame, next_frame());
  if (frame.type == type || frame.type == other) return frame;
  if (frame.type == FrameType::kFailure) {
    if (auto failure = decode_failure(frame.payload)) return std::move(*failure);
  }
  return error(Code::kInternal, fmt::format("the bootstrap root sent frame {} where {} was expected",
                                            static_cast<int>(frame.type), static_cast<int>(type)));
}

std::optional<Error> RootClient::failure_now() {
  pass_up();
  const bool open = connection_.fill() == Connection::Input::kOpen;
  for (;;) {
    auto frame = connection_.next();
    if (!frame.ok()) return frame.error();
    if (!frame.value()) break;
    pass_down(*frame.value());
    if (frame.value()->type == FrameType::kFailure) return decode_failure(frame.value()->payload).value_or(root_gone());
    if (!is_for_the_tree(*frame.value())) kept_.push_back(std::move(*frame.value()));
  }
  if (!open) return above_gone();
  return above_silent();
}

Status RootClient::hear_failure() {
  for (const auto until = Patience::Clock::now() + kReasonTime; Patience::Clock::now() < until;) {
    if (auto failure = failure_now()) return *std::move(failure);
    if (const Outcome outcome = wait(POLLIN); outcome != Outcome::kReady) return give_up(outcome);
  }
  return {};
}

/// By a connection of its own: what all are told; nothing if the root does not answer. Meanwhile those above and below are served.
std::optional<Error> RootClient::ask_root(FrameType type, const Bytes& payload) {
  std::optional<Error> told;
  const std::function<bool()> serve = [&] {
    if (!above_gone_ && !told) told = failure_now();
    return told.has_value();
  };
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Patience reach(kAnswerS, nullptr, &serve);
    auto asked = join(id_, reach, FrameType::kFrom, [&](bool) -> Result<Bytes> {
      return encode(FromRank{rank_, Frame{type, payload}});
    });
    if (told || !asked.ok()) return told;
    const auto answer = asked.value().next_frame();
    if (told || !answer.ok()) return told;
    if (answer.value().type == FrameType::kFailure) return decode_failure(answer.value().payload);
    // It calls the roll: what comes of that comes by the tree, or, below a rank that is stopped, when it is asked again.
    const Patience called(kRollCallS, nullptr, &serve);
    while (called.nap(kLookMs) == Outcome::kReady) {
    }
    if (told) return told;
  }
  return std::nullopt;
}

Error RootClient::give_up(Outcome outcome) {
  if (outcome == Outcome::kCancelled) return rank_ >= 0 ? leave(cancelled()) : cancelled();
  const Error no_answer =
      error(Code::kRemote,
            fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S), and {}, which made the unique "
                        "id, does not answer: is it stopped?",
                        patience_->timeout_s(), root_));
  if (rank_ < 0) return no_answer;
  // The root knows who is missing, and tells everybody.
  if (auto failure = failure_now()) return std::move(*failure);
  const Leave late{true, fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S)", patience_->timeout_s())};
  if (auto answer = ask_root(FrameType::kLeave, encode(late))) return tell_below(*std::move(answer));
  // It may have told all, and ended, just before: those above pass that on.
  const Patience answer(parent_ == kBelowRoot ? 0.001 : kAnswerS, nullptr);
  while (answer.now() == Outcome::kReady) {
    if (auto failure = failure_now()) return std::move(*failure);
    wait(POLLIN);
  }
  if (parent_ == kBelowRoot) return no_answer;
  const Error silent =
      error(Code::kRemote,
            fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S), and {}, by which this rank hears of "
                        "the others, says nothing: is it stopped? {}, which made the unique id, does not answer "
                        "either: its part has ended, or it is stopped",
                        patience_->timeout_s(), above_, root_));
  (void)tell_below(gave_up(rank_, silent));
  return silent;
}

Error RootClient::leave(Error why) {
  connection_.queue(FrameType::kLeave, encode(Leave{false, why.message}));
  connection_.flush();
  // On its way to its place it says so by both: the root may be letting the first connection go.
  if (auto above = links_ && !in_place_ ? links_->take_above() : std::nullopt) {
    above->queue(FrameType::kLeave, encode(Leave{false, why.message}));
    above->flush();
  }
  (void)tell_below(gave_up(rank_, why));
  return why;
}

Error RootClient::above_gone() {
  above_gone_ = true;
  if (parent_ == kBelowRoot) return tell_below(root_gone());
  const Error own = error(Code::kRemote, fmt::format("{} ended before all ranks were initialised", above_));
  return tell_below(ask_root(FrameType::kLost, encode_rank(parent_)).value_or(own));
}

std::optional<Error> RootClient::above_silent() {
  if (above_gone_ || !connection_.is_silent(heartbeat_s_)) return std::nullopt;
  above_gone_ = true;
  const bool is_root = above_.empty();
  const Error own =
      error(Code::kRemote, fmt::format("{} gave no sign of life for {} s (TUTTI_HEARTBEAT_TIMEOUT_S): is it stopped?",
                                       is_root ? root_ + ", which made the unique id," : above_, heartbeat_s_));
  if (is_root) return tell_below(own);
  return tell_below(ask_root(FrameType::kSilent, encode(Silence{parent_, heartbeat_s_})).value_or(own));
}

Error RootClient::root_gone() const {
  return error(Code::kRemote,
               fmt::format("{}, which made the unique id, ended before all ranks were initialised", root_));
}

}  // namespace tutti::comm
