// What the bootstrap's frames carry, and the proofs of the handshake.
#pragma once

#include "base/digest.h"
#include "base/result.h"
#include "comm/bootstrap.h"
#include "comm/connection.h"
#include "comm/listen_place.h"

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
  ListenPlace
      place;  ///< where ranks reach it that are to be below it in the tree; empty where there are so few ranks that none is
};

/// Below whom a rank is in the tree.
struct TreePlace {
  std::int32_t parent = -1;  ///< -1: the root, by the connection that is there; else this rank
  std::int32_t pid = 0;      ///< its process
  ListenPlace place;         ///< and where it is reached
};

/// A host's control segment.
struct ControlFile {
  std::int32_t leader = 0;  ///< the rank that has made it
  std::uint64_t bytes = 0;
  std::int32_t fd = -1;  ///< its number in its maker's process, for ranks that the descriptor itself cannot reach
};

/// What a rank says to the root by way of others.
struct FromRank {
  std::int32_t rank = 0;
  Frame frame;
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
Bytes encode(const TreePlace& place);
Bytes encode(const FromRank& from);
Bytes encode(const std::vector<ControlFile>& controls);
Bytes encode(const Leave& leave);
Bytes encode(const Error& failure);

/// Nothing for bytes that are not such a message.
std::optional<Greeting> decode_greeting(const Bytes& bytes);
std::optional<Challenge> decode_challenge(const Bytes& bytes);
std::optional<Hello> decode_hello(std::span<const std::uint8_t> bytes);
std::optional<std::vector<Peer>> decode_table(const Bytes& bytes);
std::optional<std::vector<Bytes>> decode_list(const Bytes& bytes, int count);
std::optional<TreePlace> decode_tree_place(const Bytes& bytes);
std::optional<FromRank> decode_from(std::span<const std::uint8_t> bytes);
std::optional<std::vector<ControlFile>> decode_controls(const Bytes& bytes);
/// The payload of kLost.
Bytes encode_rank(int rank);
std::optional<int> decode_rank(const Bytes& bytes);
/// The payload of kSilent.
struct Silence {
  std::int32_t rank = -1;
  double seconds = 0;
};
Bytes encode(const Silence& silence);
std::optional<Silence> decode_silence(const Bytes& bytes);
std::optional<Leave> decode_leave(const Bytes& bytes);
std::optional<Error> decode_failure(const Bytes& bytes);

}  // namespace tutti::comm
