// What the mutation tests change: steps that stand by themselves, and the rules by which two of them mean the same.
#pragma once

#include "schedule/builder.h"
#include "schedule/schedule.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tutti::schedule {

struct LooseStep {
  std::vector<Endpoint> sources;
  std::vector<Endpoint> sinks;
  bool finish = false;
};
using LooseLane = std::vector<LooseStep>;

inline LooseLane loosen(const LaneProgram& lane) {
  LooseLane loose;
  for (const Step& s : lane.steps) {
    loose.push_back(
        {{lane.sources(s).begin(), lane.sources(s).end()}, {lane.sinks(s).begin(), lane.sinks(s).end()}, s.finish});
  }
  return loose;
}

inline LaneProgram tighten(const LooseLane& loose) {
  LaneProgram lane;
  for (const LooseStep& s : loose) {
    StepBuilder builder = step(lane);
    for (const Endpoint& e : s.sources) builder.from(e);
    for (const Endpoint& e : s.sinks) builder.to(e);
    builder.finish(s.finish);
  }
  return lane;
}

/// The schedule with one lane changed.
inline Schedule with(const Schedule& schedule, std::size_t rank, std::size_t lane, const LooseLane& changed) {
  Schedule mutant = schedule;
  mutant.ranks[rank].lanes[lane] = tighten(changed);
  return mutant;
}

inline bool is_local(const Endpoint& e) { return e.place != Place::kPeer; }

inline bool has_messages(const LooseStep& s) {
  for (const auto* side : {&s.sources, &s.sinks}) {
    for (const Endpoint& e : *side) {
      if (!is_local(e)) return true;
    }
  }
  return false;
}

inline bool overlap(const Endpoint& a, const Endpoint& b) {
  return is_local(a) && is_local(b) && a.place == b.place && a.block == b.block && a.unit < b.unit + b.width &&
         b.unit < a.unit + a.width;
}
inline bool same_channel(const Endpoint& a, const Endpoint& b) {
  return !is_local(a) && !is_local(b) && a.peer == b.peer;
}

template <class Relation>
bool any(const std::vector<Endpoint>& a, const std::vector<Endpoint>& b, Relation relation) {
  for (const Endpoint& x : a) {
    for (const Endpoint& y : b) {
      if (relation(x, y)) return true;
    }
  }
  return false;
}

inline bool repeatable(const LooseStep& s) { return !has_messages(s) && !any(s.sources, s.sinks, overlap); }

inline bool exchangeable(const LooseStep& a, const LooseStep& b) {
  if (a.sources == b.sources && a.sinks == b.sinks && a.finish == b.finish) return true;
  return !any(a.sinks, b.sinks, overlap) && !any(a.sinks, b.sources, overlap) && !any(a.sources, b.sinks, overlap) &&
         !any(a.sources, b.sources, same_channel) && !any(a.sinks, b.sinks, same_channel);
}

/// Out of place: an earlier step has copied one of the places to the other, so that both hold the same.
inline bool copied_before(const LooseLane& lane, std::size_t at, const Endpoint& before, const Endpoint& after) {
  const auto copies = [](const LooseStep& s, const Endpoint& from, const Endpoint& to) {
    return s.sources == std::vector<Endpoint>{from} && std::ranges::find(s.sinks, to) != s.sinks.end();
  };
  const auto end = lane.begin() + static_cast<std::ptrdiff_t>(at);
  return is_local(before) && is_local(after) && std::any_of(lane.begin(), end, [&](const LooseStep& s) {
           return copies(s, before, after) || copies(s, after, before);
         });
}

}  // namespace tutti::schedule
