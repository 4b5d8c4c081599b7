#include "comm/watch_graph.h"

#include "comm/carriers.h"

#include <algorithm>
#include <bit>

namespace tutti::comm {

bool watch_each_other(std::size_t a, std::size_t b, std::size_t ranks) {
  const std::size_t apart = a > b ? a - b : b - a;
  return ranks <= std::size_t{kAllWithAllMax} || std::has_single_bit(apart) || std::has_single_bit(ranks - apart);
}

Bytes WatchGraph::encode(const Gone& gone) {
  return WireWriter()
      .number(static_cast<std::uint32_t>(gone.rank))
      .number(static_cast<std::uint8_t>(gone.life))
      .number(gone.last_call)
      .take();
}

std::optional<WatchGraph::Gone> WatchGraph::decode(std::span<const std::uint8_t> bytes) const {
  WireReader reader(bytes);
  const auto rank = reader.number<std::uint32_t>();
  const auto life = reader.number<std::uint8_t>();
  const auto last_call = reader.number<std::uint32_t>();
  if (!reader.complete() || life >= kPeerLives || rank >= there_.size()) return std::nullopt;
  return Gone{static_cast<int>(rank), static_cast<PeerLife>(life), last_call};
}

bool WatchGraph::note(const Gone& gone) {
  if (gone.rank < 0 || gone.rank >= ranks() || gone.rank == rank_) return false;
  const auto known = std::ranges::find(gone_, gone.rank, &Gone::rank);
  if (known == gone_.end()) {
    there_[static_cast<std::size_t>(gone.rank)] = false;
    gone_.push_back(gone);
    return true;
  }
  if (known->life != PeerLife::kUnreached || gone.life == PeerLife::kUnreached) return false;
  *known = gone;
  return true;
}

WatchGraph::Ring WatchGraph::ring(const std::function<bool(int)>& is_connected,
                                  const std::function<bool(int)>& cannot_be_reached) const {
  Ring ring;
  for (const int step : {1, ranks() - 1}) {
    int unreached = 0;
    int tried = 0;
    bool closed = false;
    for (int next = (rank_ + step) % ranks(); next != rank_; next = (next + step) % ranks()) {
      if (!is_there(next)) continue;
      closed = is_connected(next);
      if (closed) break;
      if (std::ranges::find(ring.wanted, next) == ring.wanted.end()) ring.wanted.push_back(next);
      if (cannot_be_reached(next)) {
        ++unreached;
        continue;
      }
      if (++tried >= std::max(1, unreached)) break;
    }
    const bool is_alone = unreached + tried == 0;
    ring.whole = ring.whole && tried == 0 && (closed || is_alone);
  }
  return ring;
}

}  // namespace tutti::comm
