#include "algorithm/lane_orders.h"

#include "base/assert.h"

#include <utility>

namespace tutti::algorithm {

namespace {

using schedule::Endpoint;
using schedule::Place;

/// Whether blocks of this buffer belong to ranks.
bool block_per_rank(const schedule::Shape& shape, Place place, int ranks) {
  const auto count = static_cast<std::uint32_t>(ranks);
  switch (place) {
    case Place::kInput: return shape.input_blocks == count;
    case Place::kOutput: return shape.output_blocks == count;
    case Place::kScratch: return shape.scratch_blocks == count;
    case Place::kPeer: return false;
  }
  return false;
}

schedule::LaneProgram placed(schedule::LaneProgram lane, const schedule::Shape& shape, const std::vector<int>& order) {
  const auto ranks = static_cast<int>(order.size());
  for (Endpoint& end : lane.endpoints) {
    const Place buffer = end.place == Place::kPeer ? end.remote : end.place;
    const bool has_block = end.place != Place::kPeer || end.direct != schedule::Direct::kNone;
    if (has_block && block_per_rank(shape, buffer, ranks)) end.block = static_cast<std::uint32_t>(order[end.block]);
    if (end.place == Place::kPeer) end.peer = static_cast<std::uint32_t>(order[end.peer]);
  }
  return lane;
}

}  // namespace

schedule::Schedule in_orders(const Algorithm& row, const schedule::Request& request,
                             const std::vector<std::vector<int>>& orders) {
  const schedule::Schedule one = make_schedule(row, request);
  TUTTI_ASSERT(one.shape.lanes == 1 && !orders.empty());
  schedule::Schedule made{one.algorithm, request, one.shape, {}};
  made.shape.lanes = static_cast<std::uint32_t>(orders.size());
  made.ranks.resize(one.ranks.size());
  for (const std::vector<int>& order : orders) {
    TUTTI_ASSERT(order.size() == one.ranks.size());
    for (std::size_t place = 0; place < order.size(); ++place) {
      made.ranks[static_cast<std::size_t>(order[place])].lanes.push_back(
          placed(one.ranks[place].lanes.front(), one.shape, order));
    }
  }
  return made;
}

}  // namespace tutti::algorithm
