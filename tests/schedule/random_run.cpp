#include "random_run.h"

#include <algorithm>

namespace tutti::schedule {
namespace {

/// An average's division: shows when it is missing or done twice.
std::uint64_t finished(std::uint64_t sum) { return sum * 3 + 7; }

/// A rank's PreMulSum factor: shows when it is missing or applied twice.
std::uint64_t factor(int rank) { return 2 * static_cast<std::uint64_t>(rank) + 3; }

bool carries_data(const Endpoint& e) { return e.width > 0; }

}  // namespace

RandomRun::RandomRun(const Schedule& schedule, const RandomRunOptions& options, unsigned seed)
    : schedule_(schedule), options_(options), random_(seed) {
  for (int rank = 0; rank < schedule.request.ranks; ++rank) {
    for (std::size_t lane = 0; lane < schedule.ranks[static_cast<std::size_t>(rank)].lanes.size(); ++lane) {
      Process p;
      p.rank = rank;
      p.lane = static_cast<int>(lane);
      processes_.push_back(p);
    }
    for (std::uint32_t block = 0; block < input_blocks(schedule.request, rank); ++block) {
      for (std::uint32_t unit = 0; unit < schedule.shape.units; ++unit) {
        for (int lane = 0; lane < static_cast<int>(schedule.shape.lanes); ++lane) {
          for (int round = 0; round < options.rounds; ++round) {
            memory_[cell(rank, Place::kInput, block, unit, lane, round)] = initial(rank, block, unit, lane, round);
          }
        }
      }
    }
  }
}

/// In place: where the caller's two pointers meet.
RandomRun::Cell RandomRun::cell(int rank, Place place, std::uint32_t block, std::uint32_t unit, int lane,
                                int round) const {
  const Request& r = schedule_.request;
  const auto self = static_cast<std::uint32_t>(rank);
  const bool at_root = rank == r.root;
  const Cell here{rank, place, block, unit, lane, round};
  if (!options_.in_place || place != Place::kInput) return here;
  const auto out = [&](std::uint32_t b) { return Cell{rank, Place::kOutput, b, unit, lane, round}; };
  switch (r.collective) {
    case Collective::kAllReduce: return out(0);
    case Collective::kAllToAll: return out(block);
    case Collective::kAllGather: return out(self);
    case Collective::kReduceScatter: return block == self ? out(0) : here;
    case Collective::kReduce:
    case Collective::kBroadcast: return at_root ? out(0) : here;
    case Collective::kGather: return at_root ? out(self) : here;
    case Collective::kScatter: return at_root && block == self ? out(0) : here;
    default: return here;
  }
}

RandomRun::Number RandomRun::initial(int rank, std::uint32_t block, std::uint32_t unit, int lane, int round) const {
  const auto n = static_cast<Number>(((rank * 64 + static_cast<int>(block)) * 64 + static_cast<int>(unit)) * 16 +
                                     lane * 4 + round);
  return (n + 1) * 0x9e3779b97f4a7c15u;
}

RandomRun::Number RandomRun::promised(int rank, std::uint32_t block, std::uint32_t unit, int lane, int round) const {
  const Request& r = schedule_.request;
  const auto from = [&](int source, std::uint32_t b) { return initial(source, b, unit, lane, round); };
  const auto self = static_cast<std::uint32_t>(rank);
  if (reduces(r.collective)) {
    Number sum = 0;
    for (int source = 0; source < r.ranks; ++source)
      sum += factor(source) * from(source, r.collective == Collective::kReduceScatter ? self : 0);
    return finished(sum);
  }
  switch (r.collective) {
    case Collective::kAllGather:
    case Collective::kGather: return from(static_cast<int>(block), 0);
    case Collective::kAllToAll: return from(static_cast<int>(block), self);
    case Collective::kScatter: return from(r.root, self);
    case Collective::kSend: return from(r.rank, 0);
    default: return from(r.root, 0);
  }
}

/// Executors pull inputs without waiting, in place as well.
bool RandomRun::needs_no_word(const Endpoint& e) const {
  return is_direct(e) && e.direct == Direct::kPull && e.remote == Place::kInput;
}

bool RandomRun::may_start(const Process& p) {
  const LaneProgram& lane = program(p);
  const Step& step = lane.steps[p.step];
  for (const Endpoint& e : lane.sources(step)) {
    if (e.place != Place::kPeer) continue;
    const Channel& c = channel(p.lane, static_cast<int>(e.peer), p.rank);
    if (c.received >= c.messages.size() && !needs_no_word(e)) return false;
  }
  // A slot is taken by the message's number: it is free when the message so many before has been received.
  for (const Endpoint& e : lane.sinks(step)) {
    if (e.place != Place::kPeer || is_direct(e)) continue;
    const Channel& c = channel(p.lane, p.rank, static_cast<int>(e.peer));
    if (c.messages.size() >= c.received + options_.slots) return false;
  }
  return true;
}

/// Executors multiply what is read through `in`, a peer's too.
RandomRun::Number RandomRun::factor_of(int rank, const Endpoint& source) const {
  if (!reduces(schedule_.request.collective)) return 1;
  if (source.place == Place::kInput) return factor(rank);
  const bool pulled = is_direct(source) && source.direct == Direct::kPull && source.remote == Place::kInput;
  return pulled ? factor(static_cast<int>(source.peer)) : 1;
}

void RandomRun::read_source(Process& p, const Endpoint& e) {
  std::vector<Number> data(e.width);
  for (std::uint32_t k = 0; k < e.width; ++k) {
    if (e.place != Place::kPeer) {
      data[k] = memory_[cell(p.rank, e.place, e.block, e.unit + k, p.lane, p.round)];
    } else if (is_direct(e)) {
      const int owner = e.direct == Direct::kPull ? static_cast<int>(e.peer) : p.rank;
      data[k] = memory_[cell(owner, e.remote, e.block, e.unit + k, p.lane, p.round)];
    }
  }
  if (e.place == Place::kPeer) {
    Channel& c = channel(p.lane, static_cast<int>(e.peer), p.rank);
    if (!is_direct(e)) data = c.messages[c.received];
    ++c.received;
  }
  if (!carries_data(e)) return;
  p.sum.resize(e.width, 0);
  const Number scale = factor_of(p.rank, e);
  for (std::uint32_t k = 0; k < e.width; ++k) p.sum[k] += scale * data[k];
}

void RandomRun::write_sink(Process& p, const Endpoint& e) {
  if (e.place == Place::kPeer && !(is_direct(e) && e.direct == Direct::kPush)) return;
  const int owner = e.place == Place::kPeer ? static_cast<int>(e.peer) : p.rank;
  const Place place = e.place == Place::kPeer ? e.remote : e.place;
  for (std::uint32_t k = 0; k < e.width; ++k)
    memory_[cell(owner, place, e.block, e.unit + k, p.lane, p.round)] = p.sum[k];
}

/// Messages leave when everything else is done.
void RandomRun::end_step(Process& p, const Step& step) {
  for (const Endpoint& e : program(p).sinks(step)) {
    if (e.place != Place::kPeer) continue;
    Channel& c = channel(p.lane, p.rank, static_cast<int>(e.peer));
    c.messages.push_back(carries_data(e) && !is_direct(e) ? p.sum : std::vector<Number>{});
  }
  p.running = false;
  p.sum.clear();
  p.next_endpoint = 0;
  if (++p.step == program(p).steps.size()) {
    p.step = 0;
    ++p.round;
  }
}

bool RandomRun::advance(Process& p) {
  const LaneProgram& lane = program(p);
  const Step& step = lane.steps[p.step];
  if (!p.running) return p.running = may_start(p);
  const std::uint32_t at = p.next_endpoint++;
  const auto sources = lane.sources(step);
  const bool pushed = std::any_of(sources.begin(), sources.end(),
                                  [&](const Endpoint& e) { return is_direct(e) && e.direct == Direct::kPush; });
  if (at < step.source_count) {
    read_source(p, sources[at]);
    if (at + 1 == step.source_count && step.finish) std::transform(p.sum.begin(), p.sum.end(), p.sum.begin(), finished);
  } else if (at < step.source_count + step.sink_count) {
    const Endpoint& sink = lane.sinks(step)[at - step.source_count];
    if (!(pushed && sink.place != Place::kPeer)) write_sink(p, sink);
  } else {
    end_step(p, step);
  }
  return true;
}

bool RandomRun::is_right() {
  std::vector<std::size_t> awake;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (!done(processes_[i])) awake.push_back(i);
  }
  while (!awake.empty()) {
    std::shuffle(awake.begin(), awake.end(), random_);
    bool moved = false;
    for (const std::size_t i : awake) {
      // Some run far ahead of the others.
      for (unsigned burst = random_() % 8 == 0 ? 40 : random_() % 3; burst > 0 && !done(processes_[i]); --burst) {
        if (!advance(processes_[i])) break;
        moved = true;
      }
    }
    std::erase_if(awake, [&](std::size_t i) { return done(processes_[i]); });
    if (moved) continue;
    // Nobody moved: by chance, or because nobody can.
    if (std::none_of(awake.begin(), awake.end(), [&](std::size_t i) { return advance(processes_[i]); })) return false;
    std::erase_if(awake, [&](std::size_t i) { return done(processes_[i]); });
  }
  for (int rank = 0; rank < schedule_.request.ranks; ++rank) {
    for (std::uint32_t block = 0; block < output_blocks(schedule_.request, rank); ++block) {
      for (std::uint32_t unit = 0; unit < schedule_.shape.units; ++unit) {
        for (int lane = 0; lane < static_cast<int>(schedule_.shape.lanes); ++lane) {
          for (int round = 0; round < options_.rounds; ++round) {
            if (memory_[cell(rank, Place::kOutput, block, unit, lane, round)] !=
                promised(rank, block, unit, lane, round))
              return false;
          }
        }
      }
    }
  }
  return true;
}

}  // namespace tutti::schedule
