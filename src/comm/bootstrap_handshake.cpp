// BootstrapRoot's handshake: who is a rank, and who a stranger that is sent away.
#include "base/log.h"
#include "base/random.h"
#include "comm/bootstrap_root.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace tutti::comm {

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
  if (frame.type == FrameType::kFrom) return answer(member, body);
  auto hello = decode_hello(body);
  if (!hello) return refuse(member, "its hello is malformed");
  if (comes_again(*hello)) return gone(member);  // until the next one listens
  member.rank = hello->peer.rank;
  if (member.pid > 0) hello->peer.pid = member.pid;
  settle(member);
  if (!failure_) join(member, *std::move(hello));
}

/// A rank that has heard of the failure: for what comes after it, where it may have another number among fewer.
bool BootstrapRoot::comes_again(const Hello& hello) const {
  return has_next_ && failure_ && std::ranges::any_of(known_, [&](const auto& known) {
           const auto& [rank, its] = known;
           return its.peer.process_token == hello.peer.process_token &&
                  (rank == hello.peer.rank || hello.ranks != ranks_);
         });
}

/// A stranger, by itself. A rank greets as soon as it is connected, and may give up afterwards.
void BootstrapRoot::left(Member& member) {
  if (member.state == State::kSilent) return refuse(member, member.connection.end_before_frame());
  if (member.greeting.version != kProtocolVersion) {
    return refuse(member, fmt::format("it speaks version {} of the bootstrap, and has gone", member.greeting.version));
  }
  member.state = State::kGone;
  if (!left_told_) {
    log_info("bootstrap: a connection of {} ended within the handshake: it gave up, or its secret is another one",
             member.from);
  }
  left_told_ = true;
}

void BootstrapRoot::refuse(Member& member, const std::string& why) {
  member.state = State::kGone;
  // One line, however many strangers there are.
  if (!refusal_told_) log_warn("bootstrap: a connection of {} was refused: {}", member.from, why);
  refusal_told_ = true;
}

}  // namespace tutti::comm
