// What the bootstrap's frames carry, and the proofs of the handshake.
#pragma once

#include "base/result.h"
#include "base/sha256.h"
#include "comm/bootstrap.h"
#include "comm/connection.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

using Secret = std::array<std::uint8_t, 32>;
/// The id's.
Secret secret_of(const UniqueId& id);
using Nonce = std::array<std::uint8_t, 32>;

inline constexpr int kRanksMax = 65536;

/// Fresh for every connection, so that nothing can be replayed.
struct Greeting {
  std::uint32_t version = 0;
  Nonce nonce = {};
};

struct Challenge {
  std::uint32_t version = 0;
  Nonce nonce = {};
  Digest proof = {};
};

/// Proofs are MACs over both nonces, both versions and the direction; the secret itself never travels.
Digest root_proof(const Secret& secret, const Greeting& greeting, const Challenge& challenge);
Digest rank_proof(const Secret& secret, const Greeting& greeting, const Challenge& challenge, FrameType type,
                  std::span<const std::uint8_t> body);

struct Hello {
  int ranks = 0;
  Peer peer;
};

struct ControlSize {
  std::uint64_t bytes = 0;
  std::int32_t fd =
      -1;  ///< the segment's number in its maker's process, for ranks that the descriptor itself cannot reach
};

struct Leave {
  bool timed_out = false;
  std::string reason;
};

Bytes encode(const Greeting& greeting);
Bytes encode(const Challenge& challenge);
Bytes encode(const Hello& hello);
Bytes encode(const std::vector<Peer>& peers);       ///< each host's name once
Bytes encode(const std::vector<Bytes>& endpoints);  ///< of each only how it differs from the one before
Bytes encode(const ControlSize& control);
Bytes encode(const Leave& leave);
Bytes encode(const Error& failure);

bool spans_hosts(const std::vector<Peer>& peers);

/// Nothing for bytes that are not such a message.
std::optional<Greeting> decode_greeting(const Bytes& bytes);
std::optional<Challenge> decode_challenge(const Bytes& bytes);
std::optional<Hello> decode_hello(std::span<const std::uint8_t> bytes);
std::optional<std::vector<Peer>> decode_table(const Bytes& bytes);
std::optional<std::vector<Bytes>> decode_list(const Bytes& bytes, int count);
std::optional<ControlSize> decode_control(const Bytes& bytes);
std::optional<Leave> decode_leave(const Bytes& bytes);
std::optional<Error> decode_failure(const Bytes& bytes);

}  // namespace tutti::comm
