#include "algorithm/levels.h"

#include "base/assert.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti::algorithm {

namespace {

using schedule::Endpoint;
using schedule::LaneProgram;
using schedule::Place;

/// Runs each rank as far as its messages allow, again when one has come that it waits for.
class Run {
 public:
  explicit Run(std::span<const LaneProgram* const> ranks) : ranks_(ranks), levels_(ranks.size()) {}

  std::vector<std::vector<int>> levels() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ready_.push_back(rank);
    for (; !ready_.empty(); ready_.pop_front()) advance(ready_.front());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      TUTTI_ASSERT(levels_[rank].size() == ranks_[rank]->steps.size());
    return std::move(levels_);
  }

 private:
  /// Levels of messages that were sent.
  struct Sent {
    std::vector<int> levels;
    std::size_t received = 0;
    bool is_empty() const { return received == levels.size(); }
  };

  Sent& sent(std::size_t from, std::size_t to) { return sent_[from * ranks_.size() + to]; }

  void advance(std::size_t rank) {
    const LaneProgram& lane = *ranks_[rank];
    while (levels_[rank].size() < lane.steps.size()) {
      const schedule::Step& step = lane.steps[levels_[rank].size()];
      int level = levels_[rank].empty() ? 0 : levels_[rank].back() + 1;
      for (const Endpoint& source : lane.sources(step)) {
        if (source.place != Place::kPeer) continue;
        const Sent& came = sent(source.peer, rank);
        if (came.is_empty()) return;
        level = std::max(level, came.levels[came.received] + 1);
      }
      for (const Endpoint& source : lane.sources(step)) {
        if (source.place == Place::kPeer) ++sent(source.peer, rank).received;
      }
      levels_[rank].push_back(level);
      for (const Endpoint& sink : lane.sinks(step)) {
        if (sink.place != Place::kPeer) continue;
        sent(rank, sink.peer).levels.push_back(level);
        ready_.push_back(sink.peer);
      }
    }
  }

  std::span<const LaneProgram* const> ranks_;
  std::vector<std::vector<int>> levels_;
  std::unordered_map<std::size_t, Sent> sent_;  ///< by channel
  std::deque<std::size_t> ready_;
};

}  // namespace

std::vector<std::vector<int>> levels_of(std::span<const LaneProgram* const> ranks) { return Run(ranks).levels(); }

}  // namespace tutti::algorithm
