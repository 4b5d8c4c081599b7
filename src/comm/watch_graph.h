// WatchGraph: who watches whom over hosts, and whom a rank has to connect with when those between have gone.
//
// Up to kAllWithAllMax ranks all watch each other. Among more, rank r watches those that are 1, 2, 4, 8 ... ranks ahead of it or behind it, in a
// ring of all: at most 2 log2 n. Each passes on what it hears, so that news comes everywhere in log2 n steps.
//
// Why all that are left hear of a death, and of each other:
//  W1. Ranks that are cut off from each other by deaths have a dead one among those that they watch, whichever died, and hear of that one.
//  W2. A rank whose next one ahead or behind has gone connects with the next one beyond that is there: the ring closes again. Two that
//      connect tell each other all that they know.
//  W3. A rank that leaves in peace stays, and passes on, until those next to it have closed the ring (peer_watch.cpp), or for a while.
//  W4. One that is dead and that nobody watches any more is in the gap of a ring that is being closed: it is not reached there.
#pragma once

#include "comm/wire.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace tutti::comm {

/// Whether ranks a and b, which are not the same, watch each other from the start.
bool watch_each_other(std::size_t a, std::size_t b, std::size_t ranks);

/// What is known of a rank when calls tell nothing any more: it may have failed, and its last data may not have come. kUnreached: nobody heard of
/// its end, and nobody listens any more where it did; or, of a communicator that has failed, it cannot be connected with.
enum class PeerLife : std::uint8_t { kThere, kEnded, kSilent, kLeft, kUnreached };
inline constexpr std::uint64_t kPeerLives = 5;

/// Whether that rank is dead, or as good as dead.
constexpr bool is_death(PeerLife life) { return life == PeerLife::kEnded || life == PeerLife::kSilent; }

class WatchGraph {
 public:
  struct Gone {
    int rank = 0;
    PeerLife life = PeerLife::kThere;
    std::uint32_t last_call = 0;  ///< of one that has left
  };

  static Bytes encode(const Gone& gone);
  /// Nothing: it is no such thing.
  std::optional<Gone> decode(std::span<const std::uint8_t> bytes) const;

  WatchGraph(int rank, int ranks) : rank_(rank), there_(static_cast<std::size_t>(ranks), true) {}

  /// True if that is news. How a rank ended is, where all that was known is that it cannot be reached.
  bool note(const Gone& gone);
  bool is_there(int rank) const { return there_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return static_cast<int>(there_.size()); }
  int rank() const { return rank_; }
  /// In the order in which they were heard of.
  const std::vector<Gone>& gone() const { return gone_; }

  struct Ring {
    std::vector<int> wanted;  ///< connections that are to be tried
    bool whole = true;        ///< on either side there is one that is connected, or nobody
  };
  /// The next ranks on both sides, of those that are there. Where one cannot be reached, the next beyond it is wanted too; of many, twice as
  /// many each time.
  Ring ring(const std::function<bool(int)>& is_connected, const std::function<bool(int)>& cannot_be_reached) const;

 private:
  int rank_;
  std::vector<bool> there_;
  std::vector<Gone> gone_;
};

}  // namespace tutti::comm
