#include "comm/root_client.h"

#include "base/random.h"
#include "comm/meetings.h"
#include "comm/root_address.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tutti::comm {
namespace {

using Outcome = Patience::Outcome;

/// While the root has no room.
constexpr int kRetryMs = 5;
constexpr int kLookMs = 25;
/// For the root to say why all failed; and to find out who is missing, for which it calls the roll.
constexpr double kAnswerS = 1;
constexpr double kRollCallS = 2.5;
constexpr int kAttempts = 3;
/// A root that knows this rank and sends it away goes within seconds.
constexpr int kNextRootMs = 100;
/// So often a connection ends within the handshake before another address has its turn: a root may be busy for a while.
constexpr int kDropsMax = 64;
/// For ranks below to take the tables, and at the end to take what came last.
constexpr auto kPassTime = std::chrono::seconds(60);
constexpr auto kLastWordTime = std::chrono::milliseconds(200);
/// For the root to tell why another rank has given up.
constexpr auto kReasonTime = std::chrono::seconds(5);

/// Answered where it is read, and nothing that a rank waits for.
bool is_for_the_tree(const Frame& frame) {
  return frame.type == FrameType::kRollCall || frame.type == FrameType::kSignOfLife;
}

Error gave_up(int rank, const Error& why) {
  return error(Code::kRemote, fmt::format("rank {} (process {}) gave up: {}", rank, getpid(), why.message));
}

}  // namespace

Result<RootClient> RootClient::join(const UniqueId& id, const Patience& patience, FrameType type, const Body& body,
                                    int rank, double heartbeat_s) {
  std::size_t first = 0;
  std::size_t strangers = 0;
  int drops = 0;
  for (;;) {
    TUTTI_TRY_ASSIGN(PrivateDescriptor socket, connect_with_root(id, patience, rank == 0, first));
    const auto address = peer_ip(socket.get());
    const std::int32_t root_pid = peer_process(socket.get());
    std::string root = root_pid > 0 ? fmt::format("process {}", root_pid)
                                    : fmt::format("the process at {}", peer_address(socket.get()));
    RootClient client(id, Connection(std::move(socket), Connection::kStrangerPayloadMax), patience);
    client.root_ = std::move(root);
    client.heartbeat_s_ = heartbeat_s;
    Status status = client.handshake(type, body, rank);
    if (status.ok()) return client;
    // Dropped before it was known: the root had no room. Or it has just ended, which the next attempt shows.
    const bool dropped = client.above_gone_ && !client.connection_.is_silent(heartbeat_s);
    // An address of the maker's may be one of this host's, too, where another program listens: the others come first then.
    if (address && (client.met_stranger_ || (dropped && ++drops % kDropsMax == 0))) {
      const std::vector<IpAddress> all = candidates_of(id);
      first = static_cast<std::size_t>(std::ranges::find(all, *address) - all.begin()) + 1;
      if (client.met_stranger_ && ++strangers < all.size()) continue;
    }
    if (!dropped) return std::move(status).error();
    const Outcome outcome = patience.nap(client.met_root_ ? kNextRootMs : kRetryMs);
    if (outcome == Outcome::kTimedOut)
      return error(
          Code::kRemote,
          fmt::format("{} has ended each connection within the handshake for {} s: is it {}?", client.root_,
                      patience.timeout_s(), client.met_root_ ? "the last, failed communicator's" : "another program"));
    if (outcome != Outcome::kReady) return root_not_reached(id, outcome, patience);
  }
}

Status RootClient::handshake(FrameType type, const Body& body, int rank) {
  const Secret secret = secret_of(id_);
  Greeting greeting{kProtocolVersion, {}};
  TUTTI_TRY(fill_random(greeting.nonce.data(), greeting.nonce.size()));
  TUTTI_TRY(send(FrameType::kGreeting, encode(greeting)));
  TUTTI_TRY_ASSIGN(const Bytes answer, expect(FrameType::kChallenge));
  const auto challenge = decode_challenge(answer);
  met_stranger_ = !challenge || !same_digest(challenge->proof, root_proof(secret, greeting, *challenge));
  if (met_stranger_) {
    return error(Code::kInvalidUsage,
                 fmt::format("{} does not know the secret of the unique id: {}", root_,
                             id_.named ? "TUTTI_SECRET differs, or MASTER_ADDR is another text there"
                                       : "the id was damaged on its way here"));
  }
  met_root_ = true;
  connection_.accept_up_to(Connection::kRootPayloadMax);
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

Status RootClient::excuse(const UniqueId& id, const Patience& patience, int rank, const std::string& why) {
  const FromRank said{rank, Frame{FrameType::kLeave, encode(Leave{false, why})}};
  TUTTI_TRY_ASSIGN(const RootClient excused,
                   join(id, patience, FrameType::kFrom, [&](bool) -> Result<Bytes> { return encode(said); }));
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
  // Who is aborted says its hello still: else the others would wait for it.
  const Patience coming = patience.lenient(kAnswerS);
  TUTTI_TRY_ASSIGN(RootClient root, join(id, coming, FrameType::kHello, hello, self.rank, heartbeat_s));
  root.patience_ = &patience;
  root.links_ = std::move(links);
  root.in_place_ = true;
  if (cannot_listen) return root.leave(*std::move(cannot_listen));
  if (patience.now() == Outcome::kCancelled) return root.leave(why_cancelled(patience));
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
  // The root says why when this rank's own time is over.
  const std::chrono::duration<double> reach_time = Meetings::reach_time(heartbeat_s_, 0);
  const auto until = Patience::Clock::now() + reach_time;
  while (!registered) {
    links_->serve();
    connection_.show_life();
    const bool open = connection_.fill() == Connection::Input::kOpen;
    auto frame = connection_.next();
    if (!frame.ok()) return not_of_this_job(frame.error());
    if (frame.value()) {
      pass_down(*frame.value());
      if (frame.value()->type == FrameType::kFailure)
        return decode_failure(frame.value()->payload).value_or(root_gone());
      registered = frame.value()->type == FrameType::kRegistered;
      continue;
    }
    if (!open) return tell_below(root_gone());
    if (auto trouble = own_trouble()) return *std::move(trouble);
    if (Patience::Clock::now() >= until) {
      const Error stuck = error(
          Code::kRemote, fmt::format("rank {} (process {}), or one above it, has not told the root for {} s that rank "
                                     "{} is below it: is it stopped?",
                                     place.parent, place.pid, reach_time.count(), rank_));
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
    case FrameType::kComplete: break;
    case FrameType::kFailure: failure_passed_on_ = true; break;
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
    if (slow >= 0 && heartbeat_s_ > 0 && Patience::Clock::now() >= until) {
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
    if (auto trouble = own_trouble()) return *std::move(trouble);
    pass_up();
    if (const Outcome outcome = wait(POLLOUT); outcome != Outcome::kReady) return give_up(outcome);
  }
}

Error RootClient::not_of_this_job(const Error& what) {
  met_stranger_ = true;
  return error(what.code,
               fmt::format("{} sent {}: what listens there is no rank of this job; check the address and the port",
                           above_.empty() ? root_ : above_, what.message));
}

Result<Frame> RootClient::next_frame() {
  bool open = true;
  Outcome outcome = Outcome::kReady;
  if (!kept_.empty()) {
    Frame first = std::move(kept_.front());
    kept_.pop_front();
    return first;
  }
  for (;;) {
    auto frame = connection_.next();
    if (!frame.ok()) return not_of_this_job(frame.error());
    if (frame.value()) {
      pass_down(*frame.value());
      if (is_for_the_tree(*frame.value())) continue;
      return std::move(*frame.value());
    }
    if (!open) return above_gone();
    if (auto trouble = own_trouble()) return *std::move(trouble);
    if (outcome != Outcome::kReady) {
      Error why = give_up(outcome);
      // All are there all the same, and whoever has heard that counts on this rank.
      const bool is_complete = !kept_.empty() && kept_.back().type == FrameType::kComplete;
      if (is_complete) return std::exchange(kept_, {}).back();
      return why;
    }
    pass_up();
    outcome = wait(POLLIN);
    // What has come counts, though time is over.
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
  return own_trouble();
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
  if (outcome == Outcome::kCancelled) return rank_ >= 0 ? leave(why_cancelled(*patience_)) : why_cancelled(*patience_);
  const Error no_answer =
      error(Code::kRemote,
            fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S), and {}, which made the unique "
                        "id, does not answer: is it stopped?",
                        patience_->timeout_s(), root_));
  if (rank_ < 0) return no_answer;
  // The root knows who is missing, and tells everybody.
  if (auto failure = failure_now()) return std::move(*failure);
  const Leave late{true, fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S)", patience_->timeout_s())};
  // Where the root is next to this rank a slow one hears of it so, before it sees that this rank has ended.
  const bool is_beside_root = in_place_ && parent_ == kBelowRoot;
  if (is_beside_root) {
    connection_.queue(FrameType::kLeave, encode(late));
  } else if (auto answer = ask_root(FrameType::kLeave, encode(late))) {
    return tell_below(*std::move(answer));
  }
  // A root that was asked may have told all, and ended, just before: those above pass that on.
  const bool has_above = parent_ != kBelowRoot;
  const Patience answer(is_beside_root ? kAnswerS + kRollCallS : has_above ? kRollCallS : 0.001, nullptr);
  while (answer.now() == Outcome::kReady) {
    (void)connection_.flush();
    if (auto failure = failure_now()) return std::move(*failure);
    if (wait(POLLIN) == Outcome::kCancelled) return leave(why_cancelled(*patience_));
  }
  if (!has_above) return no_answer;
  const Error silent =
      error(Code::kRemote,
            fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S), and {}, by which this rank hears of "
                        "the others, says nothing: is it stopped? {}, which made the unique id, does not answer "
                        "either: its part has ended, or it is stopped",
                        patience_->timeout_s(), above_, root_));
  (void)tell_below(gave_up(rank_, silent));
  return silent;
}

/// The root tells those of its own process last: who has heard of a failure may end the process, and the root with it.
void RootClient::await_failure() {
  for (const auto until = Patience::Clock::now() + kLastWordTime; Patience::Clock::now() < until;) {
    const bool open = connection_.fill() == Connection::Input::kOpen;
    for (auto frame = connection_.next(); frame.ok() && frame.value(); frame = connection_.next())
      if (frame.value()->type == FrameType::kFailure) return;
    if (!open) return;
    pollfd watched = {connection_.fd(), POLLIN, 0};
    poll(&watched, 1, kLookMs);
  }
}

Error RootClient::leave(Error why) {
  connection_.queue(FrameType::kLeave, encode(Leave{false, why.message}));
  connection_.flush();
  // On its way to its place it says so by both: the root may be letting the first connection go.
  if (auto above = links_ && !in_place_ ? links_->take_above() : std::nullopt) {
    above->queue(FrameType::kLeave, encode(Leave{false, why.message}));
    above->flush();
  }
  const bool is_new = !failure_passed_on_;
  (void)tell_below(gave_up(rank_, why));
  if (is_new) await_failure();
  return why;
}

Error RootClient::above_gone() {
  above_gone_ = true;
  if (parent_ == kBelowRoot) return tell_below(root_gone());
  const Error own = error(Code::kRemote, fmt::format("{} ended before all ranks were initialised", above_));
  return tell_below(ask_root(FrameType::kLost, encode_rank(parent_)).value_or(own));
}

/// What this rank finds while it waits.
std::optional<Error> RootClient::own_trouble() {
  auto starved = links_ ? links_->starved() : std::nullopt;
  return starved ? leave(*std::move(starved)) : above_silent();
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
