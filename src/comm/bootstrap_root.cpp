#include "comm/bootstrap_root.h"

#include "base/log.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// For a stranger to become a rank. A slow rank that is dropped connects again.
constexpr auto kHandshakeTime = seconds(10);
/// A stranger may be dropped this early if descriptors or places have run out. A rank greets as soon as it is connected.
constexpr auto kHandshakeTimeWhenFull = milliseconds(200);
constexpr auto kGreetingTimeWhenFull = milliseconds(20);
/// Of a rank's frames, in which another one's may be.
constexpr std::size_t kPayloadMax = 4096;
constexpr auto kAcceptPause = milliseconds(20);
/// For who started it to take it back.
constexpr auto kUnwantedLook = milliseconds(100);
/// For this process to get a descriptor for one more rank; as long as ranks wait for one of their own.
constexpr auto kDescriptorPatience = seconds(5);
/// How long a failed root still tells late comers why, and those whom it was not passed on to.
constexpr auto kLingerTime = seconds(5);
/// For an answer to the roll call: ranks look for what comes every few milliseconds, on a busy machine some hundred.
constexpr auto kRollCallTime = seconds(2);

}  // namespace

void BootstrapRoot::run() {
  while (!finished()) poll_once();
  if (!complete_) return;
  const auto now = Clock::now();
  for (const auto& member : members_) {
    if (member->state == State::kSilent && now - member->since >= kHandshakeTimeWhenFull)
      refuse(*member, "it had said nothing when all ranks were there");
  }
}

bool BootstrapRoot::finished() const {
  const bool all_sent = std::none_of(members_.begin(), members_.end(), [](const auto& member) {
    return !member->is_stranger() && member->connection.wants_to_write();
  });
  if (released_ || (complete_ && all_sent) || (ranks_ == 0 && unwanted_ && *unwanted_)) return true;
  if (!failure_) return false;
  // Of many ranks some are below others, and come once more to ask if those do not pass the reason on.
  const bool all_told = ranks_ > 0 && ranks_ <= kRootChildren && hellos_ >= ranks_;
  const bool nobody_comes = abandoned_ || all_told;
  return (nobody_comes && all_sent) || Clock::now() >= linger_end_;
}

int BootstrapRoot::poll_timeout_ms(Clock::time_point now) const {
  auto next = Clock::time_point::max();
  for (const auto& member : members_) {
    if (member->is_stranger()) next = std::min(next, member->since + kHandshakeTime);
  }
  if (failure_) next = std::min(next, linger_end_);
  if (is_calling_the_roll()) next = std::min(next, *roll_call_end_);
  if (ranks_ > 0) next = std::min(next, now + Connection::kLifeTime);
  if (ranks_ == 0 && unwanted_) next = std::min(next, now + kUnwantedLook);
  if (accept_again_ > now) next = std::min(next, accept_again_);
  if (is_full()) next = std::min(next, now + kAcceptPause);
  if (next == Clock::time_point::max()) return -1;
  const auto wait = std::chrono::ceil<milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<long>(wait, 0, 60000));
}

void BootstrapRoot::poll_once() {
  const auto now = Clock::now();
  if (is_full()) make_room(now);
  const bool accepts = now >= accept_again_ && !is_full();
  std::vector<pollfd> watched;
  const std::size_t listeners = listeners_.size();
  for (const PrivateDescriptor& listener : listeners_) watched.push_back({accepts ? listener.get() : -1, POLLIN, 0});
  for (const auto& member : members_) {
    const short events = member->connection.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
    watched.push_back({member->connection.fd(), events, 0});
  }
  if (poll(watched.data(), watched.size(), poll_timeout_ms(now)) < 0 && errno != EINTR) {
    // ENOMEM at worst: nothing was looked at, so look again after a while.
    poll(nullptr, 0, 20);
    return;
  }
  // New members come behind the ones that were polled.
  for (std::size_t i = listeners; i < watched.size(); ++i) {
    if (watched[i].revents != 0) serve(*members_[i - listeners]);
  }
  // By turns: a crowd at one may take all places that there are.
  if (accepts) ++turn_;
  for (std::size_t i = 0; i < listeners; ++i) {
    const std::size_t which = (turn_ + i) % listeners;
    if (watched[which].revents != 0) accept_all(listeners_[which].get(), now);
  }
  drop_late_strangers(Clock::now());
  for (const auto& member : members_) look_for_life(*member);
  tell_of_wait();
  if (is_calling_the_roll() && (present_ == ranks_ || Clock::now() >= *roll_call_end_)) end_roll_call();
  // This process's own ranks last: what they hear may make the process end, and the others are to hear it too.
  const std::int32_t own = getpid();
  for (const auto& member : members_)
    if (member->pid != own) flush(*member);
  for (const auto& member : members_)
    if (member->pid == own) flush(*member);
  std::erase_if(members_, [](const auto& member) { return member->state == State::kGone; });
  connections_.store(members_.size(), std::memory_order_relaxed);
}

bool BootstrapRoot::is_full() const { return members_.size() >= places_; }

void BootstrapRoot::accept_all(int listener, Clock::time_point now) {
  while (!is_full()) {
    PrivateDescriptor socket = accept_connection(listener);
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      const std::string why = strerror(errno);
      accept_again_ = now + kAcceptPause;
      if (!starved_since_) starved_since_ = now;
      make_room(now);
      // Who waits at the listener would wait for the time limit, and those who are in for them.
      if (!failure_ && now - *starved_since_ >= kDescriptorPatience) {
        fail(Code::kSystem,
             fmt::format("the process that made the unique id ({}) cannot take in another rank's connection: "
                         "{}; where that says too many open files, raise its limit (ulimit -n)",
                         getpid(), why));
      }
      return;
    }
    starved_since_.reset();
    send_at_once(socket.get());
    const std::int32_t pid = peer_process(socket.get());
    std::string from = pid > 0 ? fmt::format("process {}", pid) : peer_address(socket.get());
    auto member = std::make_unique<Member>(
        Member{Connection(std::move(socket), Connection::kStrangerPayloadMax), Clock::now(), pid, std::move(from)});
    members_.push_back(std::move(member));
    most_connections_ = std::max(most_connections_, members_.size());
  }
}

/// Descriptors or places have run out: strangers that were silent for a while pay, and the next ones wait in the queue.
void BootstrapRoot::make_room(Clock::time_point now) {
  for (const auto& member : members_) {
    const auto time = member->state == State::kSilent ? kGreetingTimeWhenFull : kHandshakeTimeWhenFull;
    if (!member->is_stranger() || now - member->since < time) continue;
    const State before = member->state;
    serve(*member);  // what it has said may not have been looked at yet: a rank says its hello once
    if (member->state != before) continue;
    refuse(*member, "it was silent while others wait for its place");
  }
  std::erase_if(members_, [](const auto& member) { return member->state == State::kGone; });
}

void BootstrapRoot::drop_late_strangers(Clock::time_point now) {
  for (const auto& member : members_) {
    if (member->is_stranger() && now - member->since >= kHandshakeTime)
      refuse(*member, "it did not finish the handshake");
  }
}

/// Of those that it waits for: they have come, and see to their connection while they wait themselves.
void BootstrapRoot::look_for_life(Member& member) {
  if (member.state != State::kKnown || failure_ || complete_) return;
  member.connection.show_life();
  // Who is done says nothing more, so that nothing is unread when its connection is closed.
  const auto rank = known_.find(member.rank);
  const bool is_done = rank != known_.end() && rank->second.done;
  if (!is_done && member.connection.is_silent(heartbeat_s_)) fail_silent(member.rank, heartbeat_s_);
}

void BootstrapRoot::serve(Member& member) {
  const Connection::Input input = member.connection.fill();
  while (member.state != State::kGone) {
    auto frame = member.connection.next();
    if (!frame.ok()) {
      if (member.is_stranger()) return refuse(member, "it sent " + frame.error().message);
      fail(Code::kRemote, fmt::format("{} sent {}", describe(member.rank), frame.error().message));
      return gone(member);
    }
    if (!frame.value()) break;
    handle(member, *frame.value());
  }
  if (input != Connection::Input::kClosed || member.state == State::kGone) return;
  return member.is_stranger() ? left(member) : gone(member);
}

void BootstrapRoot::handle(Member& member, const Frame& frame) {
  if (!member.is_stranger() && frame.type == FrameType::kSignOfLife) return;
  if (member.state == State::kSilent && frame.type == FrameType::kGreeting) return challenge(member, frame);
  if (member.state == State::kChallenged) return admit(member, frame);
  if (member.state == State::kSilent) return refuse(member, "it began with a wrong frame");
  // A rank that has not read yet that it is registered may give up here.
  const bool is_heard =
      member.state == State::kKnown || (member.state == State::kLeaving && frame.type == FrameType::kLeave);
  if (!is_heard || failure_ || complete_) return;
  if (frame.type != FrameType::kFrom) return hear(member, member.rank, frame);
  if (const auto from = decode_from(frame.payload)) return hear(member, from->rank, from->frame);
  fail(Code::kInternal, fmt::format("{} passed on a frame that is none", describe(member.rank)));
}

/// What a rank says, by its own connection or by that of the rank that it is below.
void BootstrapRoot::hear(Member& by, int rank, const Frame& frame) {
  const auto known = known_.find(rank);
  if (known == known_.end() && frame.type == FrameType::kLeave) return take_leave(rank, frame);
  if (known == known_.end()) {
    return fail(Code::kInternal, fmt::format("{} spoke for rank {}, which has not come", describe(by.rank), rank));
  }
  if (frame.type == FrameType::kPresent) return take_present(known->second);
  const bool is_end =
      frame.type == FrameType::kLeave || frame.type == FrameType::kLost || frame.type == FrameType::kSilent;
  if (is_calling_the_roll() && !is_end) return;  // somebody's time is over: it is too late
  switch (frame.type) {
    case FrameType::kHere: return note_here(known->second);
    case FrameType::kControl: return take_control(by, known->second, frame);
    case FrameType::kEndpoint: return take_endpoint(known->second, frame);
    case FrameType::kDone: return take_done(known->second);
    case FrameType::kLeave: return take_leave(rank, frame);
    case FrameType::kLost:
      return fail(Code::kRemote, fmt::format("{} ended before all ranks were initialised",
                                             describe(decode_rank(frame.payload).value_or(-1))));
    case FrameType::kSilent: {
      const Silence silence = decode_silence(frame.payload).value_or(Silence());
      return fail_silent(silence.rank, silence.seconds);
    }
    default:
      fail(Code::kInternal, fmt::format("{} sent frame {} out of turn", describe(rank), static_cast<int>(frame.type)));
  }
}

/// A rank that is in the tree, and does not reach the root by it.
void BootstrapRoot::answer(Member& member, std::span<const std::uint8_t> said) {
  member.state = State::kLeaving;
  const auto from = decode_from(said);
  if (!from || complete_) return gone(member);
  member.rank = from->rank;
  if (!failure_) hear(member, from->rank, from->frame);
  if (failure_) return member.connection.queue(FrameType::kFailure, encode(*failure_));
  member.connection.queue(FrameType::kRegistered, {});
}

/// No stranger any more: it is heard, counted and told of failures.
void BootstrapRoot::settle(Member& member) {
  member.state = State::kKnown;
  member.connection.accept_descriptors();
  member.connection.accept_up_to(kPayloadMax);
  ++hellos_;
  if (failure_) member.connection.queue(FrameType::kFailure, encode(*failure_));
}

void BootstrapRoot::join(Member& member, Hello hello) {
  const int number = hello.peer.rank;
  const std::string who = fmt::format("rank {} (process {})", number, hello.peer.pid);
  if (ranks_ == 0) {
    ranks_ = hello.ranks;
    first_rank_ = who;
  }
  if (hello.ranks != ranks_) {
    return fail(Code::kInvalidUsage,
                fmt::format("{} was started for {} ranks and {} for {}: every rank must pass the same number", who,
                            hello.ranks, first_rank_, ranks_));
  }
  if (number < 0 || number >= ranks_) {
    return fail(Code::kInvalidUsage, fmt::format("{} is outside 0..{}", who, ranks_ - 1));
  }
  const std::int32_t pid = hello.peer.pid;
  const auto [entry, fresh] = known_.try_emplace(number, Rank{std::move(hello.peer), std::move(hello.place)});
  if (!fresh) {
    return fail(Code::kInvalidUsage,
                fmt::format("rank {} appeared twice (processes {} and {}): every rank needs a number of its own",
                            number, entry->second.peer.pid, pid));
  }
  give_place(member, entry->second);
}

/// The root's own, or below an earlier one that came in the same way.
void BootstrapRoot::give_place(Member& member, Rank& rank) {
  std::vector<IpAddress>& addresses = rank.place.addresses;
  if (const auto seen = peer_ip(member.connection.fd()); seen && rank.place.port != 0) {
    // The way by which it came leads back to it as likely as any.
    std::erase(addresses, *seen);
    addresses.insert(addresses.begin(), *seen);
  }
  if (ranks_ > kRootChildren && rank.place.ways() == 0) {
    // It cannot listen, and is about to say why: nobody is to be sent there.
    return member.connection.queue(FrameType::kPlace, encode(TreePlace{}));
  }
  std::vector<int>& arrivals = arrivals_[rank.place.unix_name.empty() ? 0 : 1];
  const int above = parent_of(static_cast<int>(arrivals.size()));
  arrivals.push_back(rank.peer.rank);
  if (above == kBelowRoot) {
    member.connection.queue(FrameType::kPlace, encode(TreePlace{}));
    return note_here(rank);
  }
  const Rank& parent = known_.at(arrivals[static_cast<std::size_t>(above)]);
  rank.above = parent.peer.rank;
  rank.until_here = &member;
  member.connection.queue(FrameType::kPlace, encode(TreePlace{parent.peer.rank, parent.peer.pid, parent.place}));
}

void BootstrapRoot::note_here(Rank& rank) {
  if (rank.here) return;
  rank.here = true;
  if (Member* const member = std::exchange(rank.until_here, nullptr)) {
    member->connection.queue(FrameType::kRegistered, {});
    member->state = State::kLeaving;
  }
  if (++here_ < ranks_) return;
  const std::vector<Peer> all = peers();
  std::set<std::string_view> hosts;
  for (const Peer& peer : all) hosts.insert(peer.host);
  hosts_ = hosts.size();
  if (hosts_ > 1) return send_to_all(FrameType::kListen, {});
  send_to_all(FrameType::kTable, encode(all));
}

std::vector<Peer> BootstrapRoot::peers() const {
  std::vector<Peer> all;
  for (const auto& [number, rank] : known_) all.push_back(rank.peer);
  return all;
}

void BootstrapRoot::take_control(Member& by, Rank& rank, const Frame& frame) {
  const auto control = decode_controls(frame.payload);
  auto file = std::make_shared<Descriptor>(by.connection.take_descriptor());
  const bool good = control && control->size() == 1 && control->front().leader == rank.peer.rank;
  if (hosts_ == 0 || !good || !controls_.emplace(rank.peer.rank, control->front()).second) {
    return fail(Code::kInternal, fmt::format("{} offered a control segment out of turn", describe(rank.peer.rank)));
  }
  if (by.connection.descriptor_lost()) {
    return fail(Code::kSystem,
                "the process that made the unique id has no file descriptor left: raise its limit (ulimit -n)");
  }
  if (controls_.size() < hosts_) return;
  std::vector<ControlFile> all;
  for (const auto& [leader, one] : controls_) all.push_back(one);
  // Over hosts, and over TCP, descriptors do not travel: the host's others open it themselves.
  send_to_all(FrameType::kControl, encode(all), hosts_ == 1 && *file ? file : nullptr);
}

/// When all have said where they listen, they are told of each other.
void BootstrapRoot::take_endpoint(Rank& rank, const Frame& frame) {
  if (hosts_ == 0 || rank.endpoint) return;
  rank.endpoint = frame.payload;
  if (++endpoints_ < ranks_) return;
  std::vector<Bytes> endpoints;
  for (const auto& [number, known] : known_) endpoints.push_back(*known.endpoint);
  send_to_all(FrameType::kTable, encode(peers()));
  send_to_all(FrameType::kEndpoints, encode(endpoints));
}

void BootstrapRoot::take_done(Rank& rank) {
  if (hosts_ == 0 || rank.done) return;
  rank.done = true;
  if (++done_ < ranks_) return;
  send_to_all(FrameType::kComplete, {});
  complete_ = true;
}

void BootstrapRoot::take_leave(int rank, const Frame& frame) {
  const Leave leave = decode_leave(frame.payload).value_or(Leave{false, "it gave up"});
  if (leave.timed_out) return call_the_roll(leave.reason);
  fail(Code::kRemote, fmt::format("{} gave up: {}", describe(rank), leave.reason));
}

/// Who has not come is known. Once all have, all wait for each other, and whoever keeps them waiting is the one that says nothing.
void BootstrapRoot::call_the_roll(const std::string& reason) {
  if (here_ < ranks_) return fail(Code::kRemote, fmt::format("{}: {}", reason, list_missing()));
  if (roll_call_end_) return;
  roll_call_end_ = Clock::now() + kRollCallTime;
  roll_call_reason_ = reason;
  send_to_all(FrameType::kRollCall, {});
}

void BootstrapRoot::take_present(Rank& rank) {
  if (roll_call_end_ && !rank.present) ++present_;
  rank.present = true;
}

void BootstrapRoot::end_roll_call() {
  fail(Code::kRemote, fmt::format("{}: {}", roll_call_reason_, present_ == ranks_ ? list_missing() : list_absent()));
}

/// To who looks for why nothing happens.
void BootstrapRoot::tell_of_wait() {
  if (ranks_ == 0 || failure_ || complete_) return;
  if (!wait_) wait_.emplace();
  if (const int seconds = wait_->is_due()) log_warn("bootstrap: after {} s: {}", seconds, list_missing());
}

/// The connection has ended, by whatever side.
void BootstrapRoot::gone(Member& member) {
  const bool was_rank = member.state == State::kKnown;
  member.state = State::kGone;
  if (was_rank && !complete_ && !failure_) {
    fail(Code::kRemote, fmt::format("{} ended before all ranks were initialised", describe(member.rank)));
  }
}

/// The first reason stays.
void BootstrapRoot::fail(Code code, std::string reason) {
  if (failure_) return;
  failure_ = error(code, std::move(reason));
  linger_end_ = Clock::now() + kLingerTime;
  send_to_all(FrameType::kFailure, encode(*failure_));
}

void BootstrapRoot::fail_silent(int rank, double seconds) {
  fail(Code::kRemote, fmt::format("{} gave no sign of life for {} s (TUTTI_HEARTBEAT_TIMEOUT_S): is it stopped?",
                                  describe(rank), seconds));
}

/// The root's own ranks pass it on. A failure goes to those too that are on their way to their places.
void BootstrapRoot::send_to_all(FrameType type, const Bytes& payload, const std::shared_ptr<Descriptor>& attached) {
  const Connection::SharedFrame frame = Connection::make_frame(type, payload);
  for (const auto& member : members_) {
    if (member->state == State::kKnown) member->connection.queue(frame, attached);
  }
}

std::string BootstrapRoot::describe(int rank) const {
  const auto known = known_.find(rank);
  if (known == known_.end()) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (process {})", rank, known->second.peer.pid);
}

std::string BootstrapRoot::list_missing() const {
  const bool all_known = static_cast<int>(known_.size()) == ranks_;
  const bool all_here = here_ == ranks_;
  const char* const what = !all_known ? "come" : all_here ? "finish" : "reach the rank that the root sent it to";
  std::vector<std::string> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto found = known_.find(rank);
    const bool is_there = found != known_.end() && (!all_known || (all_here ? found->second.done : found->second.here));
    if (is_there) continue;
    const bool was_sent = all_known && !all_here;
    missing.push_back(was_sent ? fmt::format("{} (to rank {})", rank, found->second.above) : fmt::format("{}", rank));
  }
  const std::size_t count = missing.size();
  missing.resize(std::min<std::size_t>(count, 32));
  return fmt::format("{} of {} ranks did not {}: rank{} {}{}", count, ranks_, what, count == 1 ? "" : "s",
                     fmt::join(missing, ", "), count > 32 ? ", ..." : "");
}

/// Those that have not answered the roll call; of ranks below such a one nothing is known.
std::string BootstrapRoot::list_absent() const {
  std::vector<int> silent;
  int unheard = 0;
  for (const auto& [number, rank] : known_) {
    if (rank.present) continue;
    const bool is_asked = rank.above == kBelowRoot || known_.at(rank.above).present;
    if (is_asked)
      silent.push_back(number);
    else
      ++unheard;
  }
  const std::string below = unheard > 0 ? fmt::format(" ({} ranks below in the tree were not reached)", unheard) : "";
  if (silent.size() == 1) return fmt::format("{} does not answer: is it stopped?{}", describe(silent.front()), below);
  const std::size_t count = silent.size();
  silent.resize(std::min<std::size_t>(count, 32));
  return fmt::format("{} of {} ranks do not answer: ranks {}{}: are they stopped?{}", count, ranks_,
                     fmt::join(silent, ", "), count > 32 ? ", ..." : "", below);
}

void BootstrapRoot::flush(Member& member) {
  if (member.state == State::kGone) return;
  if (member.connection.wants_to_write() && !member.connection.flush())
    return member.is_stranger() ? left(member) : gone(member);
  if (member.state == State::kLeaving && !member.connection.wants_to_write()) gone(member);
}

}  // namespace tutti::comm
