// The verifier, part 1: sizes, places, peers and widths.
#include "schedule/limits.h"
#include "schedule/verifier_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

namespace tutti::schedule::verifier {
namespace {

Error wrong_schedule(const Schedule& schedule, const std::string& message) {
  return error(Code::kInvalidUsage,
               fmt::format("{} {}: {}", schedule.algorithm, name_of(schedule.request.collective), message));
}

Status check_request(const Schedule& schedule) {
  const Request& request = schedule.request;
  if (request.ranks < 1 || request.ranks > static_cast<int>(kVerifierRanksMax)) {
    return wrong_schedule(schedule, fmt::format("{} ranks; expected 1 to {}", request.ranks, kVerifierRanksMax));
  }
  if (request.root < 0 || request.root >= request.ranks || request.rank < 0 || request.rank >= request.ranks) {
    return wrong_schedule(schedule, fmt::format("root {} and caller {}; expected 0 to {}", request.root, request.rank,
                                                request.ranks - 1));
  }
  if (schedule.ranks.size() != static_cast<std::size_t>(request.ranks)) {
    return wrong_schedule(schedule,
                          fmt::format("programs of {} ranks; expected {}", schedule.ranks.size(), request.ranks));
  }
  return {};
}

Status check_shape(const Schedule& schedule) {
  const Shape& shape = schedule.shape;
  if (shape.units < 1 || shape.units > kUnitsMax || shape.lanes < 1 || shape.lanes > kLanesMax) {
    return wrong_schedule(schedule, fmt::format("{} units and {} lanes; expected 1 to {} units and 1 to {} lanes",
                                                shape.units, shape.lanes, kUnitsMax, kLanesMax));
  }
  std::uint32_t most_in = 0;
  std::uint32_t most_out = 0;
  std::uint64_t cells = 0;
  for (int rank = 0; rank < schedule.request.ranks; ++rank) {
    const std::uint32_t in = input_blocks(schedule.request, rank);
    const std::uint32_t out = output_blocks(schedule.request, rank);
    most_in = std::max(most_in, in);
    most_out = std::max(most_out, out);
    cells += (std::uint64_t{in} + out + shape.scratch_blocks) * shape.units;
  }
  if (shape.input_blocks != most_in || shape.output_blocks != most_out) {
    return wrong_schedule(schedule, fmt::format("shape has {} input and {} output blocks; the collective has {} and {}",
                                                shape.input_blocks, shape.output_blocks, most_in, most_out));
  }
  if (cells * shape.lanes > kVerifierCellsMax) {
    return wrong_schedule(schedule, fmt::format("{} units in all buffers of all lanes together; the verifier takes at "
                                                "most {}: declare fewer units, blocks or lanes",
                                                cells * shape.lanes, kVerifierCellsMax));
  }
  return {};
}

/// What the later parts take time and memory for.
Status check_length(const Schedule& schedule) {
  std::uint64_t visits = 0;
  for (const RankProgram& rank : schedule.ranks) {
    for (const LaneProgram& lane : rank.lanes) {
      for (const Endpoint& e : lane.endpoints) visits += std::max(e.width, 1u);
    }
  }
  if (visits <= kVerifierVisitsMax) return {};
  return wrong_schedule(schedule, fmt::format("its steps name {} units; the verifier takes at most {}: write fewer or "
                                              "narrower steps",
                                              visits, kVerifierVisitsMax));
}

/// One step's endpoints against each other and against the buffers.
class StepCheck {
 public:
  /// `named`: by rank, when it was last named on one side of a step; `serial` counts such sides.
  StepCheck(const Schedule& schedule, const Memory& memory, StepAt at, std::vector<std::uint64_t>& named,
            std::uint64_t& serial)
      : schedule_(schedule),
        memory_(memory),
        at_(at),
        lane_(lane_of(schedule, at.rank, at.lane)),
        step_(lane_.steps[at.step]),
        named_(named),
        serial_(serial) {}

  Status run() {
    TUTTI_TRY(check_side(lane_.sources(step_), false));
    TUTTI_TRY(check_side(lane_.sinks(step_), true));
    if (step_.source_count + step_.sink_count == 0) return fail("the step does nothing");
    TUTTI_TRY(check_data());
    return check_units();
  }

 private:
  Status fail(const std::string& message) const { return wrong(schedule_, at_, message); }

  /// A channel hands over one message each way in a step: executors look at its next slot only.
  Status check_side(std::span<const Endpoint> side, bool sink) const {
    ++serial_;
    for (const Endpoint& e : side) {
      TUTTI_TRY(check_endpoint(e, sink));
      if (e.place != Place::kPeer) continue;
      if (named_[e.peer] == serial_) {
        return fail(fmt::format("{} rank {} twice in one step; split it into two steps",
                                sink ? "sends to" : "receives from", e.peer));
      }
      named_[e.peer] = serial_;
    }
    return {};
  }

  Status check_endpoint(const Endpoint& e, bool sink) const {
    if (e.place == Place::kPeer) return check_message(e, sink);
    if (e.direct != Direct::kNone || e.peer != 0 || e.remote != Place::kInput) {
      return fail("a local place with a peer; expected peer 0 and no pull or push");
    }
    if (e.width == 0) return fail("a local place of width 0; expected at least 1 unit");
    return check_place(e, e.place, at_.rank, sink);
  }

  Status check_message(const Endpoint& e, bool sink) const {
    const auto ranks = static_cast<std::uint32_t>(schedule_.request.ranks);
    if (e.peer >= ranks) return fail(fmt::format("peer {}; expected 0 to {}", e.peer, ranks - 1));
    if (e.peer == static_cast<std::uint32_t>(at_.rank)) return fail("a message to itself; name the place instead");
    if (e.direct == Direct::kNone) {
      if (e.remote != Place::kInput) return fail("a remote place without pull or push");
      return check_range(e);
    }
    if (e.width == 0) return fail("pull or push of width 0; a message without data is a signal");
    if (e.remote == Place::kPeer) return fail("pull or push of no buffer; expected in, out or scratch");
    // The place lies at the sender of a pull and at the receiver of a push.
    const bool here = (e.direct == Direct::kPull) == sink;
    return check_place(e, e.remote, here ? at_.rank : static_cast<int>(e.peer), e.direct == Direct::kPush);
  }

  Status check_range(const Endpoint& e) const {
    const std::uint32_t units = schedule_.shape.units;
    if (std::uint64_t{e.unit} + e.width > units) {
      return fail(fmt::format("names units {} to {}; the schedule has units 0 to {}", e.unit,
                              std::uint64_t{e.unit} + e.width - 1, units - 1));
    }
    return {};
  }

  Status check_place(const Endpoint& e, Place place, int rank, bool written) const {
    TUTTI_TRY(check_range(e));
    const std::uint32_t blocks = memory_.blocks(rank, place);
    if (e.block >= blocks) {
      return fail(fmt::format("{} does not exist; that buffer has {} block{} there",
                              name_of_unit(place, e.block, e.unit, rank), blocks, blocks == 1 ? "" : "s"));
    }
    if (written && place == Place::kInput) {
      return fail(fmt::format("writes to {}; inputs are the caller's: write to out, which is the same memory in place",
                              name_of_unit(place, e.block, e.unit, rank)));
    }
    return {};
  }

  /// Data in means data out, equally wide.
  Status check_data() const {
    std::uint32_t width = 0;
    bool data_in = false;
    bool data_out = false;
    for (std::uint32_t i = 0; i < step_.source_count + step_.sink_count; ++i) {
      const Endpoint& e = endpoint(i);
      if (e.width == 0) continue;
      if (width != 0 && e.width != width) return fail(fmt::format("widths {} and {} in one step", width, e.width));
      width = e.width;
      (i < step_.source_count ? data_in : data_out) = true;
    }
    if (data_out && !data_in) return fail("writes data but has no source of data");
    if (data_in && !data_out) return fail("reads data but has no sink for it");
    if (step_.finish && !data_in) return fail("finish in a step without data");
    return {};
  }

  /// Units of a slab need not be equally long, so a step stays within one unit number: places must name it, and
  /// so must the messages of a step that names no place (elsewhere a message may leave it 0).
  Status check_units() const {
    const std::uint32_t unit = unit_of(lane_, step_);
    if (hands_on_after_wait()) {
      return fail("hands a message on, but lists a wait before it; list the message first, its length is the step's");
    }
    bool has_place = false;
    for (std::uint32_t i = 0; i < step_.source_count + step_.sink_count; ++i) has_place |= names_place(endpoint(i));
    for (std::uint32_t i = 0; i < step_.source_count + step_.sink_count; ++i) {
      const Endpoint& e = endpoint(i);
      if (e.width == 0 || e.unit == unit) continue;
      if (has_place && !names_place(e) && e.unit == 0) continue;
      return fail(
          fmt::format("units {} and {} in one step; a step stays within one unit number, as units may differ in length",
                      unit, e.unit));
    }
    return {};
  }

  /// Executors take the length of a step that names no place from its first source.
  bool hands_on_after_wait() const {
    const auto sources = lane_.sources(step_);
    if (sources.empty() || sources.front().width != 0) return false;
    const auto is_place = [](const Endpoint& e) { return e.width != 0 && names_place(e); };
    const auto has_data = [](const Endpoint& e) { return e.width != 0; };
    const auto sinks = lane_.sinks(step_);
    return std::any_of(sources.begin(), sources.end(), has_data) &&
           std::none_of(sources.begin(), sources.end(), is_place) && std::none_of(sinks.begin(), sinks.end(), is_place);
  }

  const Endpoint& endpoint(std::uint32_t i) const {
    return i < step_.source_count ? lane_.sources(step_)[i] : lane_.sinks(step_)[i - step_.source_count];
  }

  const Schedule& schedule_;
  const Memory& memory_;
  StepAt at_;
  const LaneProgram& lane_;
  const Step& step_;
  std::vector<std::uint64_t>& named_;
  std::uint64_t& serial_;
};

/// Sources then sinks, side by side, inside the lane's array.
bool endpoints_exist(const LaneProgram& lane, const Step& step) {
  const std::uint64_t size = lane.endpoints.size();
  return std::uint64_t{step.first_source} + step.source_count == step.first_sink &&
         std::uint64_t{step.first_sink} + step.sink_count <= size;
}

}  // namespace

Status check_sizes(const Schedule& schedule) {
  TUTTI_TRY(check_request(schedule));
  TUTTI_TRY(check_shape(schedule));
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::size_t lanes = schedule.ranks[rank].lanes.size();
    if (lanes != 0 && lanes != schedule.shape.lanes) {
      return wrong_schedule(schedule, fmt::format("rank {} has {} lanes; expected {}, or none where it is idle", rank,
                                                  lanes, schedule.shape.lanes));
    }
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const LaneProgram& program = schedule.ranks[rank].lanes[lane];
      for (std::size_t step = 0; step < program.steps.size(); ++step) {
        if (endpoints_exist(program, program.steps[step])) continue;
        return wrong_schedule(
            schedule, fmt::format("rank {}, lane {}, step {}: endpoints not side by side, or beyond the lane's {}",
                                  rank, lane, step, program.endpoints.size()));
      }
    }
  }
  return check_length(schedule);
}

Status check_steps(const Schedule& schedule, const Memory& memory) {
  std::vector<std::uint64_t> named(schedule.ranks.size(), 0);
  std::uint64_t serial = 0;
  for (int rank = 0; rank < schedule.request.ranks; ++rank) {
    for (int lane = 0; lane < static_cast<int>(schedule.shape.lanes); ++lane) {
      const std::size_t steps = lane_of(schedule, rank, lane).steps.size();
      for (std::uint32_t step = 0; step < steps; ++step) {
        TUTTI_TRY(StepCheck(schedule, memory, {rank, lane, step}, named, serial).run());
      }
    }
  }
  return {};
}

}  // namespace tutti::schedule::verifier
