#include "schedule_sums.h"

#include "base/assert.h"

#include <algorithm>

namespace tutti::numbers {

using schedule::Endpoint;
using schedule::LaneProgram;
using schedule::Place;
using schedule::Step;

CompactSchedule::CompactSchedule(const algorithm::Algorithm& algorithm, const schedule::Request& request,
                                 std::uint64_t count, std::size_t element_bytes)
    : request_(request) {
  const schedule::Shape shape = algorithm.shape(request);
  tiling_.count = count;
  tiling_.element_bytes = static_cast<std::uint32_t>(element_bytes);
  tiling_.units = shape.units;
  tiling_.lanes = shape.lanes;
  tiling_.slab = std::max<std::uint64_t>(1, tiling_.share(0).count);
  scratch_blocks_ = shape.scratch_blocks;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const schedule::RankProgram whole = algorithm.build(request, rank);
    for (std::uint32_t l = 0; l < shape.lanes; ++l) add(whole.lanes[l], rank, l);
  }
}

/// A step that moves nothing is left out at both ends of its messages: they are equally long.
void CompactSchedule::add(const LaneProgram& whole, int rank, std::uint32_t lane) {
  Lane& kept = lanes_.emplace_back();
  const auto pieces = [&](const Endpoint& e) { return tiling_.piece(lane, 0, e.unit, e.width).count; };
  for (const Step& step : whole.steps) {
    const auto sources = whole.sources(step);
    const auto sinks = whole.sinks(step);
    std::vector<Endpoint> ends(sources.begin(), sources.end());
    ends.insert(ends.end(), sinks.begin(), sinks.end());
    // A message names no place of its own; with several units every step has an end that does.
    const auto named = std::find_if(ends.begin(), ends.end(), [](const Endpoint& e) {
      return e.width != 0 && (e.place != Place::kPeer || e.direct != schedule::Direct::kNone);
    });
    const bool carries = std::any_of(sources.begin(), sources.end(), [](const Endpoint& e) { return e.width != 0; });
    const std::uint64_t length = !carries ? 0 : pieces(named == ends.end() ? sources[0] : *named);
    if (length == 0 || tiling_.rounds(lane) == 0) continue;
    Step moved = step;
    moved.first_source = static_cast<std::uint32_t>(kept.program.endpoints.size());
    moved.first_sink = moved.first_source + moved.source_count;
    kept.program.endpoints.insert(kept.program.endpoints.end(), ends.begin(), ends.end());
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const auto peer = static_cast<int>(ends[i].peer);
      const bool is_source = i < sources.size();
      kept.channels.push_back(ends[i].place != Place::kPeer ? 0
                              : is_source                   ? channel(lane, peer, rank)
                                                            : channel(lane, rank, peer));
    }
    kept.program.steps.push_back(moved);
    kept.lengths.push_back(length);
  }
}

std::uint32_t CompactSchedule::channel(std::uint32_t lane, int from, int to) {
  const std::uint64_t key =
      (std::uint64_t{lane} << 48) | (static_cast<std::uint64_t>(from) << 24) | static_cast<std::uint64_t>(to);
  return channels_.try_emplace(key, static_cast<std::uint32_t>(channels_.size())).first->second;
}

ScheduleSums::ScheduleSums(const CompactSchedule& schedule, const Arithmetic& arithmetic)
    : schedule_(schedule), arithmetic_(arithmetic), queues_(schedule.channels()) {
  for (int rank = 0; rank < schedule.request().ranks; ++rank) {
    for (std::uint32_t lane = 0; lane < schedule.tiling().lanes; ++lane) {
      awake_.push_back(processes_.size());
      processes_.push_back({rank, lane, 0, std::vector<std::byte>(schedule.scratch_bytes())});
    }
  }
}

void ScheduleSums::run(const std::vector<const std::byte*>& inputs, const std::vector<std::byte*>& outputs) {
  inputs_ = inputs;
  outputs_ = outputs;
  while (!awake_.empty()) {
    const std::size_t index = awake_.back();
    awake_.pop_back();
    Process& process = processes_[index];
    const CompactSchedule::Lane& lane = schedule_.lane(process.rank, process.lane);
    while (process.step < lane.program.steps.size() && is_ready(index, lane.program.steps[process.step])) {
      run_step(process, lane.program.steps[process.step], lane.lengths[process.step]);
      ++process.step;
    }
  }
  for (const Process& process : processes_) {
    TUTTI_ASSERT(process.step == schedule_.lane(process.rank, process.lane).program.steps.size());
  }
}

/// Two sources of one step are never the same peer's.
bool ScheduleSums::is_ready(std::size_t index, const Step& step) {
  const Process& process = processes_[index];
  const CompactSchedule::Lane& lane = schedule_.lane(process.rank, process.lane);
  for (std::uint32_t i = step.first_source; i < step.first_source + step.source_count; ++i) {
    if (lane.program.endpoints[i].place != Place::kPeer) continue;
    Queue& from = queues_[lane.channels[i]];
    if (from.received < from.messages.size()) continue;
    from.waiter = static_cast<std::int64_t>(index);
    return false;
  }
  return true;
}

std::byte* ScheduleSums::local(Process& process, const Endpoint& e) {
  const schedule::Tiling& t = schedule_.tiling();
  const auto rank = static_cast<std::size_t>(process.rank);
  const std::uint64_t offset = t.piece(process.lane, 0, e.unit, e.width).offset;
  if (e.place == Place::kScratch) {
    const std::uint64_t in_slab = offset - t.slab_of(process.lane, 0).offset;
    return process.scratch.data() + (e.block * t.slab + in_slab) * t.element_bytes;
  }
  const std::size_t at = (e.block * t.count + offset) * t.element_bytes;
  // Inputs are only read.
  return (e.place == Place::kInput ? const_cast<std::byte*>(inputs_[rank]) : outputs_[rank]) + at;
}

void ScheduleSums::run_step(Process& process, const Step& step, std::uint64_t length) {
  const CompactSchedule::Lane& lane = schedule_.lane(process.rank, process.lane);
  const auto sources = lane.program.sources(step), sinks = lane.program.sinks(step);
  std::vector<const void*> from, scales;
  std::vector<void*> to;
  std::vector<Data> taken;
  const std::size_t ends = std::max(sources.size(), sinks.size()) + 1;
  std::vector<std::uint8_t> wide_from(ends), wide_to(ends);
  bool scaled = false;
  for (const Endpoint& e : sources) {
    const bool own = e.place == Place::kInput && !arithmetic_.scales.empty();
    scales.push_back(own ? arithmetic_.scales[static_cast<std::size_t>(process.rank)] : nullptr);
    scaled |= own;
    wide_from[from.size()] = is_wide(e);
    if (e.place != Place::kPeer) {
      from.push_back(local(process, e));
      continue;
    }
    Queue& queued = queues_[lane.channels[step.first_source + from.size()]];
    taken.push_back(std::move(queued.messages[queued.received++]));
    from.push_back(taken.back().get());
  }
  Data messages[2];  // in the data type, and wide
  for (const Endpoint& e : sinks) {
    Data& message = messages[is_wide(e)];
    if (e.place == Place::kPeer && message) continue;
    if (e.place == Place::kPeer) {
      message = std::make_shared<std::byte[]>(length * (is_wide(e) ? sizeof(float) : schedule_.tiling().element_bytes));
    }
    wide_to[to.size()] = is_wide(e);
    to.push_back(e.place == Place::kPeer ? message.get() : local(process, e));
  }
  ReduceArgs args{from.data(), static_cast<int>(from.size()), to.data(), static_cast<int>(to.size()), length};
  args.scales = scaled ? scales.data() : nullptr;
  args.divisor = step.finish ? arithmetic_.divisor : 0;
  if (arithmetic_.wide_wire) {
    args.wide_sources = wide_from.data();
    args.wide_destinations = wide_to.data();
  }
  arithmetic_.reduce(args);
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    if (sinks[i].place == Place::kPeer) send(lane.channels[step.first_sink + i], messages[is_wide(sinks[i])]);
  }
}

void ScheduleSums::send(std::uint32_t channel, const Data& data) {
  Queue& to = queues_[channel];
  to.messages.push_back(data);
  if (to.waiter < 0) return;
  awake_.push_back(static_cast<std::size_t>(to.waiter));
  to.waiter = -1;
}

}  // namespace tutti::numbers
