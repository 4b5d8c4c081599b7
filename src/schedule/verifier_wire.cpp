// The verifier, part 7: where sums are rounded. Runs one round with nothing but the number of ranks in each value; that
// the values themselves are right has been proved.
#include "schedule/verifier_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::schedule::verifier {
namespace {

struct Carried {
  std::uint32_t ranks = 0;
  bool finished = false;

  bool is_partial() const { return ranks > 1 && !finished; }
};

Status check_form(const Schedule& schedule, StepAt at, const Endpoint& e) {
  if (!e.wide) return {};
  if (e.place != Place::kPeer || e.direct != Direct::kNone || e.width == 0) {
    return wrong(schedule, at, "partial at a local place, a pull or push or a signal; expected it at messages only");
  }
  if (!reduces(schedule.request.collective)) {
    return wrong(schedule, at,
                 fmt::format("partial in {}, which adds nothing up", name_of(schedule.request.collective)));
  }
  return {};
}

Status check_forms(const Schedule& schedule, int lane) {
  for (int rank = 0; rank < schedule.request.ranks; ++rank) {
    const LaneProgram& program = lane_of(schedule, rank, lane);
    for (std::uint32_t step = 0; step < program.steps.size(); ++step) {
      for (const auto& side : {program.sources(program.steps[step]), program.sinks(program.steps[step])}) {
        for (const Endpoint& e : side) TUTTI_TRY(check_form(schedule, {rank, lane, step}, e));
      }
    }
  }
  return {};
}

Status check_ends(const Schedule& schedule, int lane, const LaneMessages& messages) {
  for (const Message& m : messages.all) {
    const bool sent = lane_of(schedule, m.from.rank, lane).endpoints[m.from.endpoint].wide;
    const bool received = lane_of(schedule, m.to.rank, lane).endpoints[m.to.endpoint].wide;
    if (sent == received) continue;
    return wrong(schedule, {m.to.rank, lane, m.to.step},
                 fmt::format("the message from rank {} is {} where it is sent and {} here; it comes from {}",
                             m.from.rank, sent ? "partial" : "not partial", received ? "partial" : "not",
                             describe(schedule, {m.from.rank, lane, m.from.step})));
  }
  return {};
}

class WireRun {
 public:
  WireRun(const Schedule& schedule, int lane, const LaneMessages& messages, const Memory& memory, bool demanded)
      : schedule_(schedule), lane_(lane), messages_(messages), memory_(memory), demanded_(demanded) {
    cells_.resize(memory.cells());
    for (int rank = 0; rank < schedule.request.ranks; ++rank) {
      for (std::uint32_t block = 0; block < memory.blocks(rank, Place::kInput); ++block) {
        for (std::uint32_t unit = 0; unit < schedule.shape.units; ++unit) {
          cells_[memory.cell(rank, Place::kInput, block, unit)].ranks = 1;
        }
      }
    }
    std::size_t sent = 0;
    for (const Message& m : messages.all) {
      first_value_.push_back(sent);
      sent += lane_of(schedule, m.from.rank, lane).endpoints[m.from.endpoint].width;
    }
    in_flight_.resize(sent);
  }

  Status take_step(const StepRun& at) {
    const LaneProgram& program = lane_of(schedule_, at.rank, lane_);
    const Step& step = program.steps[at.step];
    std::uint32_t width = 0;
    for (const Endpoint& e : program.sources(step)) width = std::max(width, e.width);
    for (std::uint32_t k = 0; k < width; ++k) {
      Carried sum;
      for (std::uint32_t i = 0; i < step.source_count; ++i) {
        if (program.endpoints[step.first_source + i].width == 0) continue;
        const Carried& part = at_endpoint(at, step.first_source + i, k);
        sum.ranks += part.ranks;
        sum.finished |= part.finished;
      }
      sum.finished |= step.finish;
      for (std::uint32_t i = 0; i < step.sink_count; ++i) {
        const Endpoint& e = program.endpoints[step.first_sink + i];
        if (e.width == 0) continue;
        TUTTI_TRY(check_sink(at, e, k, sum));
        at_endpoint(at, step.first_sink + i, k) = sum;
      }
    }
    return {};
  }

 private:
  /// What unit k of an endpoint holds: a direct message's place holds what the message is.
  Carried& at_endpoint(const StepRun& at, std::uint32_t index, std::uint32_t k) {
    const Endpoint& e = lane_of(schedule_, at.rank, lane_).endpoints[index];
    if (e.place != Place::kPeer) return cells_[memory_.cell(at.rank, e.place, e.block, e.unit + k)];
    return in_flight_[first_value_[messages_.of[static_cast<std::size_t>(at.rank)][index]] + k];
  }

  Status check_sink(const StepRun& at, const Endpoint& e, std::uint32_t k, const Carried& sum) const {
    const auto fail = [&](const std::string& message) -> Status {
      return wrong(schedule_, {at.rank, lane_, at.step}, message);
    };
    if (e.wide && !sum.is_partial()) {
      return fail(fmt::format("sends {} to rank {} as a partial sum; expected it without \"partial\"",
                              sum.finished ? "a finished value" : "one rank's data", e.peer));
    }
    if (!demanded_ || e.wide || !sum.is_partial()) return {};
    if (e.place == Place::kPeer) {
      return fail(
          fmt::format("sends the sum of {} ranks, not finished, to rank {} in the data type, which rounds it; "
                      "expected \"send {} partial\"",
                      sum.ranks, e.peer, e.peer));
    }
    return fail(
        fmt::format("keeps the sum of {} ranks, not finished, in {}, which rounds it; expected partial sums in "
                    "partial messages only",
                    sum.ranks, name_of_unit(e.place, e.block, e.unit + k, at.rank)));
  }

  const Schedule& schedule_;
  int lane_;
  const LaneMessages& messages_;
  const Memory& memory_;
  bool demanded_;
  std::vector<Carried> cells_;
  std::vector<std::size_t> first_value_;  ///< by message: its units in in_flight_
  std::vector<Carried> in_flight_;
};

}  // namespace

Status check_wire(const Schedule& schedule, int lane, const LaneMessages& messages, const std::vector<StepRun>& order,
                  const Memory& memory, const VerifyOptions& options) {
  TUTTI_TRY(check_forms(schedule, lane));
  TUTTI_TRY(check_ends(schedule, lane, messages));
  if (!reduces(schedule.request.collective)) return {};
  WireRun run(schedule, lane, messages, memory, options.wide_wire);
  for (const StepRun& at : order) TUTTI_TRY(run.take_step(at));
  return {};
}

}  // namespace tutti::schedule::verifier
