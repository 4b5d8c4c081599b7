#include "comm/ring_order.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

namespace tutti::comm {
namespace {

bool is_order(const DeviceLinks& links, std::span<const int> order) {
  if (order.size() != static_cast<std::size_t>(links.ranks())) return false;
  std::uint32_t seen = 0;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const int rank = order[place];
    if (rank < 0 || rank >= links.ranks() || !links.joins(rank, order[(place + 1) % order.size()])) return false;
    seen |= 1u << rank;
  }
  return std::popcount(seen) == links.ranks();
}

/// For each set of ranks with rank 0 in it, where ways end that begin there and visit the set: Held and Karp's table, without costs.
class Ways {
 public:
  explicit Ways(const DeviceLinks& links) : links_(links), ends_(std::size_t{1} << links.ranks()) {
    ends_[1] = 1;
    for (std::uint32_t set = 1; set < ends_.size(); set += 2) {
      for (int last = 0; last < links_.ranks(); ++last) {
        for (int next = 0; next < links_.ranks() && has(set, last); ++next) {
          if ((set >> next & 1) == 0 && links_.joins(last, next)) ends_[set | 1u << next] |= 1u << next;
        }
      }
    }
  }
  std::vector<int> round() const {
    std::vector<int> order;
    std::uint32_t set = static_cast<std::uint32_t>(ends_.size() - 1);
    for (int after = 0; set != 0;) {
      int last = links_.ranks() - 1;
      while (last >= 0 && !(has(set, last) && links_.joins(last, after))) --last;
      if (last < 0) return {};
      order.push_back(last);
      set &= ~(1u << last);
      after = last;
    }
    std::ranges::reverse(order);
    return order;
  }

 private:
  bool has(std::uint32_t set, int last) const { return (ends_[set] >> last & 1) != 0; }
  const DeviceLinks& links_;
  std::vector<std::uint32_t> ends_;
};

/// Whether the buffer has a block for each rank.
bool is_by_rank(schedule::Place place, Collective collective) {
  return (collective == Collective::kReduceScatter && place == schedule::Place::kInput) ||
         (collective == Collective::kAllGather && place == schedule::Place::kOutput);
}

}  // namespace

std::vector<int> ring_order(const DeviceLinks& links, std::span<const int> suggested) {
  if (is_order(links, suggested)) return {suggested.begin(), suggested.end()};
  std::vector<int> order(static_cast<std::size_t>(links.ranks()));
  std::iota(order.begin(), order.end(), 0);
  return is_order(links, order) ? order : Ways(links).round();
}

schedule::Request in_places(schedule::Request request, std::span<const int> order) {
  if (is_rooted(request.collective)) {
    request.root = static_cast<int>(std::ranges::find(order, request.root) - order.begin());
  }
  return request;
}

schedule::RankProgram in_order(schedule::RankProgram program, Collective collective, std::span<const int> order) {
  const auto rank_at = [&](std::uint32_t place) { return static_cast<std::uint32_t>(order[place]); };
  for (schedule::LaneProgram& lane : program.lanes) {
    for (schedule::Endpoint& end : lane.endpoints) {
      const bool is_message = end.place == schedule::Place::kPeer;
      if (is_message) end.peer = rank_at(end.peer);
      const bool has_place = !is_message || end.direct != schedule::Direct::kNone;
      if (has_place && is_by_rank(is_message ? end.remote : end.place, collective)) end.block = rank_at(end.block);
    }
  }
  return program;
}

schedule::Schedule in_order(schedule::Schedule schedule, std::span<const int> order) {
  std::vector<schedule::RankProgram> ranks(schedule.ranks.size());
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    ranks[static_cast<std::size_t>(order[place])] =
        in_order(std::move(schedule.ranks[place]), schedule.request.collective, order);
  }
  schedule.ranks = std::move(ranks);
  schedule::Request& request = schedule.request;
  if (is_rooted(request.collective)) request.root = order[static_cast<std::size_t>(request.root)];
  return schedule;
}

}  // namespace tutti::comm
