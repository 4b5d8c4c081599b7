#include "lane_setup.h"

#include <fmt/format.h>

#include <stdexcept>

namespace tutti::cuda {
namespace {

std::vector<planner::Plan> make_plans(const KernelCase& c, const schedule::SlotShape& slots,
                                      const protocol::LineShape& lines) {
  planner::Question question;
  question.request = {c.collective, c.ranks, c.root, 0};
  question.count = c.count;
  question.element_bytes = static_cast<std::uint32_t>(size_of(c.dtype));
  question.access = c.direct ? planner::Access::kMapped : planner::Access::kSlots;
  question.in_place = c.in_place;
  question.wide_wire = c.wide_wire;
  planner::Rules rules;
  rules.slots = slots;
  if (c.lines) rules.slots.slot_bytes = static_cast<std::uint32_t>(lines.payload_bytes());
  if (c.lines) rules.line_bytes = lines.payload_bytes();
  rules.everywhere.present = true;
  rules.everywhere.names = {std::string(c.algorithm)};
  const auto found = planner::candidates(question, rules);
  if (!found) throw std::runtime_error("no plan: " + text_of(c));
  for (const planner::Candidate& candidate : found.value()) {
    if (candidate.direct != c.direct) continue;
    std::vector<planner::Plan> plans;
    for (int r = 0; r < c.ranks; ++r) plans.push_back(planner::make_plan(question, rules, candidate, r));
    return plans;
  }
  throw std::runtime_error("no such plan: " + text_of(c));
}

}  // namespace

LaneSetup::LaneSetup(const KernelCase& c, sim::BlockMachine& machine)
    : c_(c), machine_(machine), plans_(make_plans(c, slots(), line_shape())) {
  const auto ranks = static_cast<std::size_t>(c.ranks);
  channels_.resize(ranks * blocks_per_rank());
  for (auto& channels : channels_) channels.resize(ranks);
  for (std::uint32_t lane = 0; lane < blocks_per_rank(); ++lane) connect(lane);
  for (std::size_t r = 0; r < ranks; ++r) {
    const planner::Plan& plan = plans_[r];
    for (const schedule::LaneProgram& lane : plan.program->lanes) {
      programs_.push_back({lane.steps.data(), lane.endpoints.data(), static_cast<std::uint32_t>(lane.steps.size())});
    }
    for (std::uint32_t lane = 0; lane < blocks_per_rank(); ++lane) {
      const auto& steps = plan.program->lanes[lane / c.rows].steps;
      storage_.push_back(std::make_unique<protocol::LaneStorage>());
      LaneHome home;
      home.channels = channels_[r * blocks_per_rank() + lane].data();
      home.workspace = storage_.back()->workspace(steps, ranks, line_shape());
      if (home.workspace.line_tiles) {
        machine.add_buffer(home.workspace.line_tiles, (ranks + 1) * line_shape().payload_bytes(), "line tiles");
      }
      home.scratch = plan.scratch_bytes == 0 ? nullptr : buffer(plan.scratch_bytes, "scratch").data();
      home.tiles = c.lines ? buffer((ranks + 3) * kLaneTileBytes, "tiles").data() : nullptr;
      homes_.push_back(home);
    }
  }
}

schedule::Tiling LaneSetup::tiling() const {
  schedule::Tiling tiling = plan().tiling;
  tiling.lanes *= c_.rows;
  return tiling;
}

Buffer& LaneSetup::buffer(std::size_t bytes, const char* name) {
  buffers_.push_back(std::make_unique<Buffer>(machine_, bytes, 0, name));
  return *buffers_.back();
}

/// Every rank to every other one.
void LaneSetup::connect(std::uint32_t lane) {
  const auto ranks = static_cast<std::size_t>(c_.ranks);
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      if (from == to) continue;
      protocol::Channel& sender = channels_[from * blocks_per_rank() + lane][to];
      protocol::Channel& receiver = channels_[to * blocks_per_rank() + lane][from];
      sender.mine = receiver.theirs = reinterpret_cast<protocol::PairLine*>(buffer(64, "pair line").data());
      sender.outbox = receiver.inbox = buffer(slots().bytes(), "slots").data();
      sender.outlines = receiver.inlines =
          reinterpret_cast<std::uint64_t*>(buffer(line_shape().bytes(), "channel's lines").data());
    }
  }
}

}  // namespace tutti::cuda
