#include "comm/bootstrap_root.h"

#include "base/log.h"
#include "base/random.h"
#include "comm/table_tree.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// For a stranger to become a rank. A slow rank that is dropped connects again.
constexpr auto kHandshakeTime = seconds(10);
/// A stranger may be dropped this early if descriptors or places have run out.
constexpr auto kHandshakeTimeWhenFull = milliseconds(200);
constexpr std::size_t kStrangersMax = 256;
constexpr auto kAcceptPause = milliseconds(20);
/// How long a failed root still tells late comers why.
constexpr auto kLingerTime = seconds(5);

}  // namespace

void BootstrapRoot::run() {
  while (!finished()) poll_once();
}

bool BootstrapRoot::finished() const {
  const bool all_sent = std::none_of(members_.begin(), members_.end(), [](const auto& member) {
    return member->state == State::kJoined && member->connection.wants_to_write();
  });
  if (released_ || (complete_ && all_sent)) return true;
  if (!failure_) return false;
  const bool nobody_comes = abandoned_ || (ranks_ > 0 && hellos_ >= ranks_);
  return (nobody_comes && all_sent) || Clock::now() >= linger_end_;
}

int BootstrapRoot::poll_timeout_ms(Clock::time_point now) const {
  auto next = Clock::time_point::max();
  for (const auto& member : members_) {
    if (member->is_stranger()) next = std::min(next, member->since + kHandshakeTime);
  }
  if (failure_) next = std::min(next, linger_end_);
  if (accept_again_ > now) next = std::min(next, accept_again_);
  if (next == Clock::time_point::max()) return -1;
  const auto wait = std::chrono::ceil<milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<long>(wait, 0, 60000));
}

void BootstrapRoot::poll_once() {
  const auto now = Clock::now();
  std::vector<pollfd> watched;
  const std::size_t listeners = listeners_.size();
  for (const PrivateDescriptor& listener : listeners_) {
    watched.push_back({now >= accept_again_ ? listener.get() : -1, POLLIN, 0});
  }
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
  for (std::size_t i = 0; i < listeners; ++i) {
    if (watched[i].revents != 0) accept_all(listeners_[i].get(), now);
  }
  drop_late_strangers(Clock::now());
  // This process's own ranks last: what they hear may make the process end, and the others are to hear it too.
  const std::int32_t own = getpid();
  for (const auto& member : members_)
    if (member->pid != own) flush(*member);
  for (const auto& member : members_)
    if (member->pid == own) flush(*member);
  std::erase_if(members_, [](const auto& member) { return member->state == State::kGone; });
}

void BootstrapRoot::accept_all(int listener, Clock::time_point now) {
  for (;;) {
    PrivateDescriptor socket = accept_unix(listener);
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) make_room(now);
      return;
    }
    const std::int32_t pid = peer_process(socket.get());
    std::string from = pid > 0 ? fmt::format("process {}", pid) : peer_address(socket.get());
    auto member = std::make_unique<Member>(
        Member{Connection(std::move(socket), Connection::kStrangerPayloadMax), now, pid, std::move(from)});
    members_.push_back(std::move(member));
    const auto strangers =
        std::count_if(members_.begin(), members_.end(), [](const auto& m) { return m->is_stranger(); });
    if (static_cast<std::size_t>(strangers) > kStrangersMax) return make_room(now);
  }
}

/// Descriptors or places have run out: strangers that were silent for a while pay, and the next ones wait in the queue.
void BootstrapRoot::make_room(Clock::time_point now) {
  accept_again_ = now + kAcceptPause;
  for (const auto& member : members_) {
    if (!member->is_stranger() || now - member->since < kHandshakeTimeWhenFull) continue;
    serve(*member);  // what it has said may not have been looked at yet: a rank says its hello once
    if (!member->is_stranger()) continue;
    refuse(*member, "it was silent while others wait for its place");
  }
}

void BootstrapRoot::drop_late_strangers(Clock::time_point now) {
  for (const auto& member : members_) {
    if (member->is_stranger() && now - member->since >= kHandshakeTime)
      refuse(*member, "it did not finish the handshake");
  }
}

void BootstrapRoot::serve(Member& member) {
  const Connection::Input input = member.connection.fill();
  while (member.state != State::kGone) {
    auto frame = member.connection.next();
    if (!frame.ok()) {
      if (member.is_stranger()) return refuse(member, "it sent " + frame.error().message);
      fail(Code::kRemote, fmt::format("{} sent {}", describe(member), frame.error().message));
      return gone(member);
    }
    if (!frame.value()) break;
    handle(member, *frame.value());
  }
  if (input == Connection::Input::kClosed && member.state != State::kGone) gone(member);
}

void BootstrapRoot::handle(Member& member, const Frame& frame) {
  if (member.state == State::kSilent && frame.type == FrameType::kGreeting) return challenge(member, frame);
  if (member.state == State::kChallenged) return admit(member, frame);
  if (member.state != State::kJoined) return refuse(member, "it began with a wrong frame");
  if (failure_ || complete_) return;
  switch (frame.type) {
    case FrameType::kControl: return relay_control(member, frame);
    case FrameType::kEndpoint: return take_endpoint(member, frame);
    case FrameType::kDone: return take_done(member);
    case FrameType::kLeave: return take_leave(member, frame);
    default:
      fail(Code::kInternal,
           fmt::format("{} sent frame {} out of turn", describe(member), static_cast<int>(frame.type)));
  }
}

void BootstrapRoot::challenge(Member& member, const Frame& frame) {
  const auto greeting = decode_greeting(frame.payload);
  if (!greeting) return refuse(member, "its greeting is malformed");
  member.greeting = *greeting;
  member.challenge.version = kProtocolVersion;
  if (!fill_random(member.challenge.nonce.data(), member.challenge.nonce.size()).ok()) {
    return refuse(member, "no random bytes for its challenge");
  }
  member.challenge.proof = root_proof(secret_, member.greeting, member.challenge);
  member.connection.queue(FrameType::kChallenge, encode(member.challenge));
  member.state = State::kChallenged;
}

void BootstrapRoot::admit(Member& member, const Frame& frame) {
  Digest proof = {};
  if (frame.payload.size() < proof.size()) return refuse(member, "its hello is malformed");
  std::copy_n(frame.payload.begin(), proof.size(), proof.begin());
  const auto body = std::span(frame.payload).subspan(proof.size());
  if (!same_digest(proof, rank_proof(secret_, member.greeting, member.challenge, frame.type, body))) {
    return refuse(member, "it does not know the secret of the unique id");
  }
  if (frame.type == FrameType::kRelease) {
    released_ = ranks_ == 0;
    abandoned_ = true;
    return gone(member);
  }
  if (member.greeting.version != kProtocolVersion) {
    settle(member);
    return fail(Code::kInvalidUsage,
                fmt::format("{} speaks version {} of the bootstrap and the maker of the unique id version {}: use "
                            "the same library everywhere",
                            member.from, member.greeting.version, kProtocolVersion));
  }
  const auto hello = decode_hello(body);
  if (!hello) return refuse(member, "its hello is malformed");
  member.peer = hello->peer;
  if (member.pid > 0) member.peer.pid = member.pid;
  settle(member);
  if (ranks_ == 0) {
    ranks_ = hello->ranks;
    first_rank_ = describe(member);
  }
  if (!failure_) join(member, *hello);
}

/// No stranger any more: it is heard, counted and told of failures.
void BootstrapRoot::settle(Member& member) {
  member.state = State::kJoined;
  member.connection.accept_descriptors();
  ++hellos_;
  if (failure_) member.connection.queue(FrameType::kFailure, encode(*failure_));
}

void BootstrapRoot::join(Member& member, const Hello& hello) {
  if (hello.ranks != ranks_) {
    return fail(Code::kInvalidUsage,
                fmt::format("{} was started for {} ranks and {} for {}: every rank must pass the same number",
                            describe(member), hello.ranks, first_rank_, ranks_));
  }
  const int rank = member.peer.rank;
  if (rank < 0 || rank >= ranks_) {
    return fail(Code::kInvalidUsage, fmt::format("{} is outside 0..{}", describe(member), ranks_ - 1));
  }
  const auto [entry, fresh] = ranks_joined_.emplace(rank, &member);
  if (!fresh) {
    return fail(Code::kInvalidUsage,
                fmt::format("rank {} appeared twice (processes {} and {}): every rank needs a number of its own", rank,
                            entry->second->peer.pid, member.peer.pid));
  }
  if (static_cast<int>(ranks_joined_.size()) < ranks_) return;
  all_joined_ = true;
  const std::vector<Peer> all = peers();
  if (spans_hosts(all)) return send_to_joined(FrameType::kListen, {});
  send_to_joined(FrameType::kTable, encode(all));
}

std::vector<Peer> BootstrapRoot::peers() const {
  std::vector<Peer> all;
  for (const auto& [rank, joined] : ranks_joined_) all.push_back(joined->peer);
  return all;
}

void BootstrapRoot::relay_control(Member& member, const Frame& frame) {
  const auto control = decode_control(frame.payload);
  auto file = std::make_shared<Descriptor>(member.connection.take_descriptor());
  const bool first = host_served_.emplace(member.peer.host, true).second;
  if (!all_joined_ || !control || !first) {
    return fail(Code::kInternal, fmt::format("{} offered a control segment out of turn", describe(member)));
  }
  // Over TCP descriptors do not travel: the host's others open it themselves.
  if (control->bytes > 0 && !*file && member.pid > 0) {
    return fail(Code::kSystem,
                "the process that made the unique id has no file descriptor left: raise its limit (ulimit -n)");
  }
  for (const auto& [rank, other] : ranks_joined_) {
    if (other == &member || other->peer.host != member.peer.host) continue;
    other->connection.queue(FrameType::kControl, frame.payload, *file ? file : nullptr);
    flush(*other);
  }
}

void BootstrapRoot::take_endpoint(Member& member, const Frame& frame) {
  if (!all_joined_ || member.endpoint) return;
  member.endpoint = frame.payload;
  if (++endpoints_ < ranks_) return;
  hand_down_tables();
}

/// To the top of the tree of ranks; to the others only what their places are.
void BootstrapRoot::hand_down_tables() {
  const std::vector<Peer> all = peers();
  std::vector<Bytes> endpoints;
  for (const auto& [rank, joined] : ranks_joined_) endpoints.push_back(*joined->endpoint);
  const Connection::SharedFrame tables[] = {Connection::make_frame(FrameType::kTable, encode(all)),
                                            Connection::make_frame(FrameType::kEndpoints, encode(endpoints))};
  const std::vector<TableNode> tree = table_tree(all);
  for (const auto& [rank, joined] : ranks_joined_) {
    const TableNode& node = tree[static_cast<std::size_t>(rank)];
    const bool is_top = node.parent == TableNode::kRoot;
    joined->connection.queue(FrameType::kPlace,
                             encode_place(node, is_top ? Bytes() : endpoints[static_cast<std::size_t>(node.parent)]));
    for (const Connection::SharedFrame& table : tables)
      if (is_top) joined->connection.queue(table);
  }
}

void BootstrapRoot::take_done(Member& member) {
  if (!all_joined_ || member.done) return;
  member.done = true;
  if (++done_ < ranks_) return;
  send_to_joined(FrameType::kComplete, {});
  complete_ = true;
}

void BootstrapRoot::take_leave(Member& member, const Frame& frame) {
  const Leave leave = decode_leave(frame.payload).value_or(Leave{false, "it gave up"});
  if (leave.timed_out) return fail(Code::kRemote, fmt::format("{}: {}", leave.reason, list_missing()));
  fail(Code::kRemote, fmt::format("{} gave up: {}", describe(member), leave.reason));
}

/// The connection has ended, by whatever side.
void BootstrapRoot::gone(Member& member) {
  const bool was_rank = member.state == State::kJoined;
  member.state = State::kGone;
  if (was_rank && !complete_ && !failure_) {
    fail(Code::kRemote, fmt::format("{} ended before all ranks were initialised", describe(member)));
  }
}

void BootstrapRoot::refuse(Member& member, const std::string& why) {
  member.state = State::kGone;
  // One line, however many strangers there are.
  if (!refusal_told_) log_warn("bootstrap: a connection of {} was refused: {}", member.from, why);
  refusal_told_ = true;
}

/// The first reason stays.
void BootstrapRoot::fail(Code code, std::string reason) {
  if (failure_) return;
  failure_ = error(code, std::move(reason));
  linger_end_ = Clock::now() + kLingerTime;
  send_to_joined(FrameType::kFailure, encode(*failure_));
}

void BootstrapRoot::send_to_joined(FrameType type, const Bytes& payload) {
  const Connection::SharedFrame frame = Connection::make_frame(type, payload);
  for (const auto& member : members_) {
    if (member->state == State::kJoined) member->connection.queue(frame);
  }
}

std::string BootstrapRoot::describe(const Member& member) const {
  return fmt::format("rank {} (process {})", member.peer.rank, member.peer.pid);
}

std::string BootstrapRoot::list_missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto found = ranks_joined_.find(rank);
    if (found == ranks_joined_.end() || (all_joined_ && !found->second->done)) missing.push_back(rank);
  }
  const std::size_t count = missing.size();
  missing.resize(std::min<std::size_t>(count, 32));
  return fmt::format("{} of {} ranks did not {}: rank{} {}{}", count, ranks_, all_joined_ ? "finish" : "come",
                     count == 1 ? "" : "s", fmt::join(missing, ", "), count > 32 ? ", ..." : "");
}

void BootstrapRoot::flush(Member& member) {
  if (member.state == State::kGone || !member.connection.wants_to_write()) return;
  if (!member.connection.flush()) gone(member);
}

}  // namespace tutti::comm
