// The verifier, part 6: runs one round symbolically. A value is one rank's unit, or the sum of several ranks' as it was
// added up (verifier_sums.h); block and unit are those of their inputs.
//
// The factors of PreMulSum: executors multiply what a step reads through `in` (its own rank's factor) or pulls from a
// peer's `in` (that rank's), and nothing else. So every input must be read through `in` exactly once on its way into a
// sum. In place that is a matter of names: in[0.0] and out[0.0] are the same memory, of which the one is multiplied.
// A place therefore holds a value that is either raw, as the caller gave it, or multiplied.
#include "schedule/verifier_parts.h"
#include "schedule/verifier_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace tutti::schedule::verifier {
namespace {

/// What lies in a place.
struct Held {
  Sums::Id id = Sums::kNothing;
  bool raw = false;
};

class SymbolicRun {
 public:
  SymbolicRun(const Schedule& schedule, int lane, const LaneMessages& messages, const Memory& memory,
              const VerifyOptions& options)
      : schedule_(schedule),
        request_(schedule.request),
        lane_(lane),
        messages_(messages),
        memory_(memory),
        options_(options),
        cells_(memory.cells()),
        first_value_(messages.all.size()) {
    std::size_t sent = 0;
    for (std::size_t m = 0; m < messages.all.size(); ++m) {
      const MessageEnd& from = messages.all[m].from;
      first_value_[m] = sent;
      sent += lane_of(schedule, from.rank, lane).endpoints[from.endpoint].width;
    }
    in_flight_.resize(sent);
  }

  Status run(const std::vector<StepRun>& order) {
    order_ = &order;
    fill_inputs();
    for (const StepRun& at : order) TUTTI_TRY(take_step(at));
    for (int rank = 0; rank < request_.ranks; ++rank) TUTTI_TRY(check_outputs(rank));
    return request_.collective == Collective::kAllReduce ? check_all_alike() : Status();
  }

 private:
  void fill_inputs() {
    for (int rank = 0; rank < request_.ranks; ++rank) {
      for (std::uint32_t block = 0; block < memory_.blocks(rank, Place::kInput); ++block) {
        for (std::uint32_t unit = 0; unit < schedule_.shape.units; ++unit) {
          cells_[memory_.cell(rank, Place::kInput, block, unit)] = {
              sums_.input(static_cast<std::uint32_t>(rank), block, unit), true};
        }
      }
    }
  }

  Error fail(const StepRun& at, const std::string& message) const {
    return wrong(schedule_, {at.rank, lane_, at.step}, message);
  }

  Status take_step(const StepRun& at) {
    const LaneProgram& program = lane_of(schedule_, at.rank, lane_);
    const Step& step = program.steps[at.step];
    const auto sources = program.sources(step);
    const auto data = std::find_if(sources.begin(), sources.end(), [](const Endpoint& e) { return e.width > 0; });
    if (data == sources.end()) return {};
    unit_ = unit_of(program, step);
    for (std::uint32_t k = 0; k < data->width; ++k) {
      parts_.clear();
      for (std::uint32_t i = 0; i < step.source_count; ++i) {
        if (sources[i].width == 0) continue;
        TUTTI_TRY_ASSIGN(const Sums::Id part, read(at, step.first_source + i, k));
        parts_.push_back(part);
      }
      TUTTI_TRY(check_sum(at));
      TUTTI_TRY_ASSIGN(const Sums::Id value, make(at, step));
      if (wanted_ && at.rank == wanted_->rank && keeps(wanted_->promised, wanted_->unit, value))
        wanted_->step = at.step;
      for (std::uint32_t i = 0; i < step.sink_count; ++i) write(at, step.first_sink + i, k, value);
    }
    return {};
  }

  Sums::Id& sent_value(const StepRun& at, std::uint32_t endpoint, std::uint32_t k) {
    return in_flight_[first_value_[messages_.of[static_cast<std::size_t>(at.rank)][endpoint]] + k];
  }

  /// Unit k of a source.
  Result<Sums::Id> read(const StepRun& at, std::uint32_t index, std::uint32_t k) {
    const Endpoint& e = lane_of(schedule_, at.rank, lane_).endpoints[index];
    if (e.place == Place::kPeer) {
      const Sums::Id sent = sent_value(at, index, k);
      if (options_.direct && e.direct != Direct::kNone) TUTTI_TRY(check_direct(at, e, k, sent));
      TUTTI_TRY(check_unit(at, sent, k));
      return sent;
    }
    const Held& held = cells_[memory_.cell(at.rank, e.place, e.block, e.unit + k)];
    const auto name = [&] { return name_of_unit(e.place, e.block, e.unit + k, at.rank); };
    if (held.id == Sums::kNothing) {
      return fail(at, fmt::format("reads {} before anything was written there; write it in an earlier step", name()));
    }
    TUTTI_TRY(check_factor(at, e.place, held, name));
    TUTTI_TRY(check_unit(at, held.id, k));
    return held.id;
  }

  /// The place that a direct message names holds what was sent.
  Status check_direct(const StepRun& at, const Endpoint& e, std::uint32_t k, Sums::Id sent) const {
    const int owner = e.direct == Direct::kPull ? static_cast<int>(e.peer) : at.rank;
    const Held& there = cells_[memory_.cell(owner, e.remote, e.block, e.unit + k)];
    const auto name = [&] { return name_of_unit(e.remote, e.block, e.unit + k, owner); };
    if (!sums_.same(there.id, sent)) {
      return fail(at, fmt::format("{} holds {} when it is read; the message from rank {} was {}", name(),
                                  sums_.name(there.id), e.peer, sums_.name(sent)));
    }
    return check_factor(at, e.remote, there, name);
  }

  /// PreMulSum multiplies every input once: what is read through `in` is raw, and what is read elsewhere is not.
  template <class Name>
  Status check_factor(const StepRun& at, Place through, const Held& held, Name name) const {
    if (!reduces(request_.collective) || held.raw == (through == Place::kInput)) return {};
    if (held.raw) {
      return fail(at, fmt::format("reads {}, where in place {} still lies as the caller gave it: PreMulSum multiplies "
                                  "only what is read through in, so this would never be; read it through in",
                                  name(), sums_.name(held.id)));
    }
    return fail(at,
                fmt::format("reads {}, where in place {} lies by now: PreMulSum multiplies whatever is read through "
                            "in, so this would be multiplied twice; read it through out",
                            name(), sums_.name(held.id)));
  }

  /// Data never changes its unit number: units differ in length.
  Status check_unit(const StepRun& at, Sums::Id value, std::uint32_t k) const {
    if (sums_[value].unit == unit_ + k) return {};
    return fail(
        at,
        fmt::format(
            "handles {} as unit {}; expected the same unit number, in the messages too where the step only hands on",
            sums_.name(value), unit_ + k));
  }

  /// parts_ may be added up.
  Status check_sum(const StepRun& at) {
    if (parts_.size() == 1) return {};
    if (!reduces(request_.collective)) {
      return fail(at, fmt::format("adds {} sources; {} moves data only, one source a step", parts_.size(),
                                  name_of(request_.collective)));
    }
    const Sums::Sum& first = sums_[parts_[0]];
    for (const Sums::Id part : parts_) {
      const Sums::Sum& s = sums_[part];
      if (s.finished) return fail(at, fmt::format("adds to {}; nothing is added to a finished sum", sums_.name(part)));
      if (s.block != first.block || s.unit != first.unit) {
        return fail(at, fmt::format("adds {} to {}; expected the same block and unit of different ranks",
                                    sums_.name(part), sums_.name(parts_[0])));
      }
    }
    if (const auto rank = sums_.repeated_rank(parts_)) {
      return fail(at, fmt::format("adds in[{}.{}] of rank {} twice", first.block, first.unit, *rank));
    }
    return {};
  }

  /// The value that the step makes of parts_; `finish` belongs to the step that completes a sum, and only there.
  Result<Sums::Id> make(const StepRun& at, const Step& step) {
    if (!reduces(request_.collective)) {
      if (step.finish)
        return fail(at, fmt::format("finish in {}, which adds nothing up; remove it", name_of(request_.collective)));
      return parts_[0];
    }
    const auto all = static_cast<std::uint32_t>(request_.ranks);
    std::uint32_t count = 0;
    for (const Sums::Id part : parts_) count += sums_[part].count;
    const bool completes = count == all && !sums_[parts_[0]].finished && (parts_.size() > 1 || all == 1);
    if (completes && !step.finish)
      return fail(at, fmt::format("completes the sum of {} ranks; expected finish at the step's end", all));
    if (parts_.size() == 1 && !step.finish) return parts_[0];
    const Sums::Id value = sums_.add(parts_, step.finish);
    if (value == Sums::kNothing) {
      return fail(at,
                  fmt::format("too many sums of scattered ranks for the verifier; it takes {} intervals of ranks in "
                              "the parts of all sums together",
                              Sums::kIntervalsMax));
    }
    if (step.finish && !completes) {
      const Sums::Id found = parts_.size() > 1 ? value : parts_[0];
      return fail(at, fmt::format("finish on {}{}; expected it where the sum of all {} ranks is completed, once",
                                  sums_.name(found), sums_.missing(found, all), all));
    }
    return value;
  }

  void write(const StepRun& at, std::uint32_t index, std::uint32_t k, Sums::Id value) {
    const Endpoint& e = lane_of(schedule_, at.rank, lane_).endpoints[index];
    if (e.width == 0) return;
    if (e.place != Place::kPeer) {
      cells_[memory_.cell(at.rank, e.place, e.block, e.unit + k)] = {value, false};
      return;
    }
    sent_value(at, index, k) = value;
    if (options_.direct && e.direct == Direct::kPush) {
      cells_[memory_.cell(static_cast<int>(e.peer), e.remote, e.block, e.unit + k)] = {value, false};
    }
  }

  /// What the collective promises in an output block: the input block it comes from, and of which rank (all: the sum).
  struct Promise {
    std::uint32_t block = 0;
    int rank = -1;
  };
  Promise promise(int rank, std::uint32_t block) const {
    const auto self = static_cast<std::uint32_t>(rank);
    switch (request_.collective) {
      case Collective::kAllReduce:
      case Collective::kReduce: return {0, -1};
      case Collective::kReduceScatter: return {self, -1};
      case Collective::kBroadcast: return {0, request_.root};
      case Collective::kAllGather:
      case Collective::kGather: return {0, static_cast<int>(block)};
      case Collective::kAllToAll: return {self, static_cast<int>(block)};
      case Collective::kScatter: return {self, request_.root};
      case Collective::kSend: return {0, request_.rank};
      case Collective::kReceive: return {0, request_.root};
    }
    return {};
  }

  Sums::Id output(int rank, std::uint32_t block, std::uint32_t unit) const {
    return cells_[memory_.cell(rank, Place::kOutput, block, unit)].id;
  }
  std::string head() const {
    return fmt::format("{} {}, lane {}", schedule_.algorithm, name_of(request_.collective), lane_);
  }

  Status check_outputs(int rank) const {
    for (std::uint32_t block = 0; block < memory_.blocks(rank, Place::kOutput); ++block) {
      for (std::uint32_t unit = 0; unit < schedule_.shape.units; ++unit) {
        const Sums::Id id = output(rank, block, unit);
        const Promise promised = promise(rank, block);
        if (keeps(promised, unit, id)) continue;
        const auto all = static_cast<std::uint32_t>(promised.rank < 0 ? request_.ranks : 0);
        return error(Code::kInvalidUsage, fmt::format("{}: at the end {} holds {}{}; expected {}; {}", head(),
                                                      name_of_unit(Place::kOutput, block, unit, rank), sums_.name(id),
                                                      sums_.missing(id, all), name_of_promise(promised, unit),
                                                      writer_of(rank, block, unit)));
      }
    }
    return {};
  }

  /// Every rank ends with the same bits only if all add up in the same way.
  Status check_all_alike() const {
    for (int rank = 1; rank < request_.ranks; ++rank) {
      for (std::uint32_t unit = 0; unit < schedule_.shape.units; ++unit) {
        const Sums::Id first = output(0, 0, unit);
        const Sums::Id mine = output(rank, 0, unit);
        if (sums_.same(first, mine)) continue;
        return error(
            Code::kInvalidUsage,
            fmt::format("{}: {} is {}, {} is {}: added up in different ways, they may differ in their last bits; "
                        "expected the same order at every rank; {}; {}",
                        head(), name_of_unit(Place::kOutput, 0, unit, 0), sums_.name(first),
                        name_of_unit(Place::kOutput, 0, unit, rank), sums_.name(mine), writer_of(0, 0, unit),
                        writer_of(rank, 0, unit)));
      }
    }
    return {};
  }

  /// "the last to write it is rank 2, lane 0, step 4 (...)", or who should have written it.
  std::string writer_of(int rank, std::uint32_t block, std::uint32_t unit) const {
    const LaneProgram& program = lane_of(schedule_, rank, lane_);
    if (program.steps.empty()) return fmt::format("rank {} has no steps in lane {}", rank, lane_);
    const std::uint32_t cell = memory_.cell(rank, Place::kOutput, block, unit);
    for (std::size_t step = program.steps.size(); step-- > 0;) {
      for (const Endpoint& e : program.sinks(program.steps[step])) {
        if (e.place == Place::kPeer) continue;
        const std::uint32_t first = memory_.cell(rank, e.place, e.block, e.unit);
        if (cell < first || cell - first >= e.width) continue;
        return "the last to write it is " + describe(schedule_, {rank, lane_, static_cast<std::uint32_t>(step)});
      }
    }
    const auto last = static_cast<std::uint32_t>(program.steps.size() - 1);
    SymbolicRun again(schedule_, lane_, messages_, memory_, options_);
    if (const auto step = again.find_step(rank, promise(rank, block), unit, *order_)) {
      return fmt::format("no step writes it, but {} has that value: write it there",
                         describe(schedule_, {rank, lane_, *step}));
    }
    return fmt::format("no step writes it, and none has that value; the last is {}",
                       describe(schedule_, {rank, lane_, last}));
  }

  /// The rank's last step that handles what was promised. Runs what has run without complaint before.
  std::optional<std::uint32_t> find_step(int rank, const Promise& promised, std::uint32_t unit,
                                         const std::vector<StepRun>& order) {
    wanted_ = Wanted{rank, promised, unit, std::nullopt};
    fill_inputs();
    for (const StepRun& at : order) {
      if (!take_step(at).ok()) break;
    }
    return wanted_->step;
  }

  bool keeps(const Promise& promised, std::uint32_t unit, Sums::Id id) const {
    const Sums::Sum& s = sums_[id];
    if (id == Sums::kNothing || s.block != promised.block || s.unit != unit) return false;
    if (promised.rank >= 0) return s.count == 1 && s.front == static_cast<std::uint32_t>(promised.rank);
    // No rank is in a sum twice (check_sum), so that the number says that all are there.
    if (s.count != static_cast<std::uint32_t>(request_.ranks) || !s.finished) return false;
    return !options_.rank_order || sums_.in_rank_order(id);
  }

  std::string name_of_promise(const Promise& promised, std::uint32_t unit) const {
    if (promised.rank >= 0) return fmt::format("rank {}, in[{}.{}]", promised.rank, promised.block, unit);
    return fmt::format("the sum of all {} ranks, in[{}.{}], finished{}", request_.ranks, promised.block, unit,
                       options_.rank_order ? ", added up one after the other from rank 0 on" : "");
  }

  const Schedule& schedule_;
  const Request& request_;
  int lane_;
  const LaneMessages& messages_;
  const Memory& memory_;
  const VerifyOptions& options_;
  struct Wanted {
    int rank = 0;
    Promise promised;
    std::uint32_t unit = 0;
    std::optional<std::uint32_t> step;
  };

  Sums sums_;
  const std::vector<StepRun>* order_ = nullptr;
  std::optional<Wanted> wanted_;  ///< find_step only
  std::vector<Held> cells_;
  std::vector<std::size_t> first_value_;  ///< by message: its units in in_flight_
  std::vector<Sums::Id> in_flight_;
  std::vector<Sums::Id> parts_;  ///< the sources' values of the unit at hand
  std::uint32_t unit_ = 0;       ///< first unit of the step at hand
};

}  // namespace

Status check_values(const Schedule& schedule, int lane, const LaneMessages& messages, const std::vector<StepRun>& order,
                    const Memory& memory, const VerifyOptions& options) {
  return SymbolicRun(schedule, lane, messages, memory, options).run(order);
}

}  // namespace tutti::schedule::verifier
