#include "comm/root_client.h"

#include "base/random.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

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

Result<RootClient> RootClient::join(const UniqueId& id, const Patience& patience, FrameType type,
                                    std::span<const std::uint8_t> body) {
  for (;;) {
    TUTTI_TRY_ASSIGN(PrivateDescriptor socket, connect_patiently(id, patience));
    const std::int32_t root_pid = peer_process(socket.get());
    std::string root = root_pid > 0 ? fmt::format("process {}", root_pid)
                                    : fmt::format("the process at {}", peer_address(socket.get()));
    RootClient client(Connection(std::move(socket), Connection::kRootPayloadMax), patience);
    client.root_ = std::move(root);
    client.root_pid_ = root_pid;
    Status status = client.handshake(id, type, body);
    if (status.ok()) return client;
    // Dropped before the hello: the root had no room. Or it has just ended, which the next attempt shows.
    if (!client.root_gone_) return std::move(status).error();
    const Outcome outcome = patience.nap(kRetryMs);
    if (outcome != Outcome::kReady) return not_reached(id, outcome, patience.timeout_s());
  }
}

Status RootClient::handshake(const UniqueId& id, FrameType type, std::span<const std::uint8_t> body) {
  const Secret secret = secret_of(id);
  Greeting greeting{kProtocolVersion, {}};
  TUTTI_TRY(fill_random(greeting.nonce.data(), greeting.nonce.size()));
  TUTTI_TRY(send(FrameType::kGreeting, encode(greeting)));
  TUTTI_TRY_ASSIGN(const Bytes answer, expect(FrameType::kChallenge));
  const auto challenge = decode_challenge(answer);
  if (!challenge || !same_digest(challenge->proof, root_proof(secret, greeting, *challenge))) {
    return error(Code::kInvalidUsage,
                 fmt::format("{} at {} does not know the secret of the unique id: {}", root_, describe(id),
                             id.named ? "TUTTI_SECRET differs" : "the id was damaged on its way here"));
  }
  WireWriter proved;
  proved.raw(rank_proof(secret, greeting, *challenge, type, body)).raw(body);
  TUTTI_TRY(send(type, proved.take()));
  connection_.accept_descriptors();
  joined_ = true;
  return {};
}

Status RootClient::send(FrameType type, const Bytes& payload, std::shared_ptr<Descriptor> attached) {
  connection_.queue(type, payload, std::move(attached));
  return send_all();
}

Status RootClient::send_all() {
  for (;;) {
    // A root that has failed says why before it ends: what it said is read by the next expect.
    if (!connection_.flush()) {
      root_gone_ = true;
      return joined_ ? Status() : root_gone();
    }
    if (!connection_.wants_to_write()) return {};
    const Outcome outcome = patience_->wait(connection_.fd(), POLLOUT);
    if (outcome != Outcome::kReady) return give_up(outcome);
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
    if (!frame.ok()) return std::move(frame).error();
    if (frame.value()) return std::move(*frame.value());
    if (!open) {
      root_gone_ = true;
      return root_gone();
    }
    const Outcome outcome = patience_->wait(connection_.fd(), POLLIN);
    if (outcome != Outcome::kReady) return give_up(outcome);
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
  const bool open = connection_.fill() == Connection::Input::kOpen;
  for (;;) {
    auto frame = connection_.next();
    if (!frame.ok()) return frame.error();
    if (!frame.value()) break;
    if (frame.value()->type == FrameType::kFailure) return decode_failure(frame.value()->payload).value_or(root_gone());
    kept_.push_back(std::move(*frame.value()));
  }
  if (open) return std::nullopt;
  return root_gone();
}

Error RootClient::give_up(Patience::Outcome outcome) {
  if (outcome == Outcome::kCancelled) return joined_ ? leave(cancelled()) : cancelled();
  Error no_answer =
      error(Code::kRemote,
            fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S), and {}, which made the unique "
                        "id, does not answer: is it stopped?",
                        patience_->timeout_s(), root_));
  if (!joined_) return no_answer;
  // The root knows who is missing, and tells everybody. It gets a second for that.
  connection_.queue(FrameType::kLeave,
                    encode(Leave{true, fmt::format("initialisation took longer than {} s (TUTTI_TIMEOUT_S)",
                                                   patience_->timeout_s())}));
  const auto until = Patience::Clock::now() + std::chrono::seconds(1);
  while (Patience::Clock::now() < until && connection_.flush()) {
    const bool open = connection_.fill() == Connection::Input::kOpen;
    for (;;) {
      auto frame = connection_.next();
      if (!frame.ok()) return no_answer;
      if (!frame.value()) break;
      if (frame.value()->type != FrameType::kFailure) continue;  // Too late for anything else.
      return decode_failure(frame.value()->payload).value_or(no_answer);
    }
    if (!open) break;
    pollfd watched = {connection_.fd(), POLLIN, 0};
    poll(&watched, 1, 10);
  }
  return no_answer;
}

Error RootClient::leave(Error why) {
  connection_.queue(FrameType::kLeave, encode(Leave{false, why.message}));
  connection_.flush();
  return why;
}

Error RootClient::root_gone() const {
  return error(Code::kRemote,
               fmt::format("{}, which made the unique id, ended before all ranks were initialised", root_));
}

}  // namespace tutti::comm
