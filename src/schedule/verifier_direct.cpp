// The verifier, part 5: direct messages. Their forms, and a race detector with vector clocks.
//
// What orders two steps: the program of their rank, and messages (a receive comes after its send). A pull tells the
// sender nothing until the call ends, so only a message back orders the sender's later steps after it. A pull of an
// input orders nothing at all, in place as well: executors do not wait for it.
// Calls begin and end together, and rounds and lanes never share memory, so one round of one lane is enough.
#include "schedule/verifier_accesses.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace tutti::schedule::verifier {
namespace {

bool same_place(const Memory& memory, int rank, Place place, const Endpoint& e, const Endpoint& local) {
  return local.place != Place::kPeer && local.width == e.width &&
         memory.cell(rank, place, e.block, e.unit) == memory.cell(rank, local.place, local.block, local.unit);
}

/// The sender's step copies from the pulled place, or writes it too.
Status check_pull(const Schedule& schedule, int lane, const Message& m, const Memory& memory) {
  const LaneProgram& program = lane_of(schedule, m.from.rank, lane);
  const Step& step = program.steps[m.from.step];
  const Endpoint& e = program.endpoints[m.from.endpoint];
  for (const Endpoint& sink : program.sinks(step)) {
    if (same_place(memory, m.from.rank, e.remote, e, sink)) return {};
  }
  const auto sources = program.sources(step);
  const auto carries_data = [](const Endpoint& s) { return s.width > 0; };
  const auto first = std::find_if(sources.begin(), sources.end(), carries_data);
  const bool copy = std::count_if(sources.begin(), sources.end(), carries_data) == 1;
  if (copy && same_place(memory, m.from.rank, e.remote, e, *first)) return {};
  return wrong(schedule, {m.from.rank, lane, m.from.step},
               fmt::format("rank {} pulls from {}, which this step neither copies from nor writes; name the place that "
                           "it does, or send without pull",
                           m.to.rank, name_of_unit(e.remote, e.block, e.unit, m.from.rank)));
}

/// The receiver's step does nothing with the data but to have it there, and to hand it on.
Status check_push(const Schedule& schedule, int lane, const Message& m, const Memory& memory) {
  const LaneProgram& program = lane_of(schedule, m.to.rank, lane);
  const Step& step = program.steps[m.to.step];
  const Endpoint& e = program.endpoints[m.to.endpoint];
  const auto fail = [&](const char* message) { return wrong(schedule, {m.to.rank, lane, m.to.step}, message); };
  int locals = 0;
  bool is_sink = false;
  for (const Endpoint& sink : program.sinks(step)) {
    locals += sink.place != Place::kPeer;
    is_sink |= same_place(memory, m.to.rank, e.remote, e, sink);
  }
  if (!is_sink || locals != 1) return fail("receives pushed data; expected the pushed place as its one local sink");
  const auto sources = program.sources(step);
  if (std::count_if(sources.begin(), sources.end(), [](const Endpoint& s) { return s.width > 0; }) != 1) {
    return fail("adds something to pushed data; expected the push as its only source of data");
  }
  if (step.finish) return fail("finish on pushed data; expected it at the sender");
  return {};
}

/// What ranks know of each other, as vector clocks: how many steps of each rank have certainly happened.
class Clocks {
 public:
  explicit Clocks(std::size_t ranks) : ranks_(ranks), now_(ranks * ranks, 0), kept_(ranks, kNone) {}

  bool knows(int rank, int other, std::uint32_t step) const { return row(rank)[other] > step; }

  /// The rank's clock before its step, for so many messages that leave with it. Steps that learn nothing share one. kNone when there is
  /// no room for more.
  std::uint32_t snapshot(int rank, std::uint32_t messages) {
    std::uint32_t& kept = kept_[static_cast<std::size_t>(rank)];
    if (kept == kNone) {
      kept = take_free();
      if (kept == kNone) return kNone;
      shots_[kept].clock.assign(row(rank), row(rank) + ranks_);
      shots_[kept].uses = 1;
    }
    shots_[kept].uses += messages;
    return kept;
  }
  /// The rank receives a message that left `from` with the step; what `from` knew then it knows now.
  void join(int rank, int from, std::uint32_t step, std::uint32_t shot) {
    if (!knows(rank, from, step)) {
      forget(kept_[static_cast<std::size_t>(rank)]);
      std::uint32_t* mine = row(rank);
      const std::uint32_t* theirs = shots_[shot].clock.data();
      for (std::size_t r = 0; r < ranks_; ++r) mine[r] = std::max(mine[r], theirs[r]);
      mine[from] = std::max(mine[from], step + 1);
    }
  }
  /// A message with that snapshot has been received.
  void release(std::uint32_t shot) {
    if (--shots_[shot].uses == 0) free_.push_back(shot);
  }

  static constexpr std::uint32_t kNone = ~0u;
  /// Of all snapshots at a time: 128 MiB.
  static constexpr std::size_t kEntriesMax = std::size_t{1} << 25;

 private:
  struct Shot {
    std::vector<std::uint32_t> clock;
    std::uint32_t uses = 0;
  };

  std::uint32_t* row(int rank) { return now_.data() + static_cast<std::size_t>(rank) * ranks_; }
  const std::uint32_t* row(int rank) const { return now_.data() + static_cast<std::size_t>(rank) * ranks_; }
  std::uint32_t take_free() {
    if (free_.empty()) {
      if ((shots_.size() + 1) * ranks_ > kEntriesMax) return kNone;
      shots_.emplace_back();
      return static_cast<std::uint32_t>(shots_.size() - 1);
    }
    const std::uint32_t shot = free_.back();
    free_.pop_back();
    return shot;
  }
  void forget(std::uint32_t& kept) {
    if (kept != kNone) release(kept);
    kept = kNone;
  }

  std::size_t ranks_;
  std::vector<std::uint32_t> now_;
  std::vector<std::uint32_t> kept_;  ///< by rank: the snapshot of its clock as it is, or kNone
  std::vector<Shot> shots_;
  std::vector<std::uint32_t> free_;
};

class RaceDetector {
 public:
  RaceDetector(const Schedule& schedule, int lane, const LaneMessages& messages, const Memory& memory)
      : schedule_(schedule),
        lane_(lane),
        messages_(messages),
        memory_(memory),
        clocks_(schedule.ranks.size()),
        sent_(messages.all.size()),
        cells_(memory.cells()) {}

  Status run(const std::vector<StepRun>& order) {
    for (const StepRun& at : order) {
      receive(at);
      TUTTI_TRY(for_each_access(schedule_, lane_, at, memory_, true,
                                [&](const Access& access) { return record(at, access); }));
      TUTTI_TRY(send(at));
    }
    return {};
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Cell {
    StepRun writer{-1, 0};
    std::uint32_t readers = kNone;  ///< since the last write: a list in reads_
  };
  struct Read {
    StepRun by;
    std::uint32_t next = kNone;
  };

  std::uint32_t message_at(const StepRun& at, std::uint32_t endpoint) const {
    return messages_.of[static_cast<std::size_t>(at.rank)][endpoint];
  }

  void receive(const StepRun& at) {
    const LaneProgram& program = lane_of(schedule_, at.rank, lane_);
    const Step& step = program.steps[at.step];
    for (std::uint32_t i = step.first_source; i < step.first_sink; ++i) {
      const Endpoint& e = program.endpoints[i];
      if (e.place != Place::kPeer) continue;
      const std::uint32_t message = message_at(at, i);
      const MessageEnd& from = messages_.all[message].from;
      if (!orders_nothing(e)) clocks_.join(at.rank, from.rank, from.step, sent_[message]);
      clocks_.release(sent_[message]);
    }
  }

  Status send(const StepRun& at) {
    const LaneProgram& program = lane_of(schedule_, at.rank, lane_);
    const Step& step = program.steps[at.step];
    const std::uint32_t end = step.first_sink + step.sink_count;
    std::uint32_t messages = 0;
    for (std::uint32_t i = step.first_sink; i < end; ++i) messages += program.endpoints[i].place == Place::kPeer;
    if (messages == 0) return {};
    const std::uint32_t shot = clocks_.snapshot(at.rank, messages);
    if (shot == Clocks::kNone) {
      return wrong(schedule_, {at.rank, lane_, at.step},
                   fmt::format("too many messages under way for the verifier; it takes {} that tell different things; "
                               "receive some before more are sent",
                               Clocks::kEntriesMax / schedule_.ranks.size()));
    }
    for (std::uint32_t i = step.first_sink; i < end; ++i) {
      if (program.endpoints[i].place == Place::kPeer) sent_[message_at(at, i)] = shot;
    }
    return {};
  }

  bool orders_nothing(const Endpoint& e) const { return e.direct == Direct::kPull && e.remote == Place::kInput; }

  bool happened_before(const StepRun& earlier, const StepRun& now) const {
    return earlier.rank < 0 || earlier.rank == now.rank || clocks_.knows(now.rank, earlier.rank, earlier.step);
  }

  Status record(const StepRun& now, const Access& access) {
    Cell& cell = cells_[access.cell];
    if (!happened_before(cell.writer, now)) return race(cell.writer, "writes", now, access);
    if (!access.write) {
      reads_.push_back({now, cell.readers});
      cell.readers = static_cast<std::uint32_t>(reads_.size() - 1);
      return {};
    }
    for (std::uint32_t r = cell.readers; r != kNone; r = reads_[r].next) {
      if (!happened_before(reads_[r].by, now)) return race(reads_[r].by, "reads", now, access);
    }
    cell = {now, kNone};
    return {};
  }

  Error race(const StepRun& other, const char* does, const StepRun& now, const Access& access) const {
    return wrong(schedule_, {now.rank, lane_, now.step},
                 fmt::format("{} {} while {} {} it, and no message orders the two; let rank {} wait for a signal from "
                             "rank {} in between",
                             access.write ? "writes" : "reads", memory_.name_of(access.cell),
                             describe(schedule_, {other.rank, lane_, other.step}), does, now.rank, other.rank));
  }

  const Schedule& schedule_;
  int lane_;
  const LaneMessages& messages_;
  const Memory& memory_;
  Clocks clocks_;
  std::vector<std::uint32_t> sent_;  ///< by message: its sender's snapshot
  std::vector<Cell> cells_;
  std::vector<Read> reads_;
};

}  // namespace

Status check_direct_forms(const Schedule& schedule, int lane, const LaneMessages& messages, const Memory& memory) {
  for (const Message& m : messages.all) {
    const Endpoint& e = lane_of(schedule, m.from.rank, lane).endpoints[m.from.endpoint];
    if (e.direct == Direct::kNone) continue;
    if (e.remote == Place::kScratch) {
      return wrong(schedule, {m.from.rank, lane, m.from.step},
                   "pull or push of scratch; peers reach only inputs and outputs");
    }
    TUTTI_TRY(e.direct == Direct::kPull ? check_pull(schedule, lane, m, memory)
                                        : check_push(schedule, lane, m, memory));
  }
  return {};
}

Status check_races(const Schedule& schedule, int lane, const LaneMessages& messages, const std::vector<StepRun>& order,
                   const Memory& memory) {
  return RaceDetector(schedule, lane, messages, memory).run(order);
}

}  // namespace tutti::schedule::verifier
