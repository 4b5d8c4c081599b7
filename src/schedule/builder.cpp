#include "schedule/builder.h"

#include "base/assert.h"

namespace tutti::schedule {
namespace {

Endpoint local(Place place, Span at) { return {.place = place, .block = at.block, .unit = at.unit, .width = at.width}; }

Endpoint direct_message(int peer, Direct direct, const Endpoint& at) {
  TUTTI_ASSERT(at.place != Place::kPeer);
  return {.place = Place::kPeer,
          .direct = direct,
          .remote = at.place,
          .peer = static_cast<std::uint32_t>(peer),
          .block = at.block,
          .unit = at.unit,
          .width = at.width};
}

}  // namespace

Endpoint input(Span at) { return local(Place::kInput, at); }
Endpoint output(Span at) { return local(Place::kOutput, at); }
Endpoint scratch(Span at) { return local(Place::kScratch, at); }

Endpoint message(int peer, std::uint32_t width) {
  return {.place = Place::kPeer, .peer = static_cast<std::uint32_t>(peer), .width = width};
}

Endpoint partial(int peer, std::uint32_t width) {
  Endpoint e = message(peer, width);
  e.wide = true;
  return e;
}

Endpoint pull(int peer, Endpoint at_sender) { return direct_message(peer, Direct::kPull, at_sender); }
Endpoint push(int peer, Endpoint at_receiver) { return direct_message(peer, Direct::kPush, at_receiver); }
Endpoint signal(int peer) { return message(peer, 0); }

StepBuilder::StepBuilder(LaneProgram& lane) : lane_(lane), index_(lane.steps.size()) {
  const auto here = static_cast<std::uint32_t>(lane.endpoints.size());
  lane.steps.push_back({.first_source = here, .first_sink = here});
}

StepBuilder& StepBuilder::from(Endpoint source) {
  TUTTI_ASSERT(index_ + 1 == lane_.steps.size());  // a later step has not begun
  Step& step = lane_.steps[index_];
  TUTTI_ASSERT(step.sink_count == 0);
  lane_.endpoints.push_back(source);
  ++step.source_count;
  ++step.first_sink;
  return *this;
}

StepBuilder& StepBuilder::to(Endpoint sink) {
  TUTTI_ASSERT(index_ + 1 == lane_.steps.size());
  lane_.endpoints.push_back(sink);
  ++lane_.steps[index_].sink_count;
  return *this;
}

StepBuilder& StepBuilder::finish(bool yes) {
  lane_.steps[index_].finish = yes;
  return *this;
}

StepBuilder step(LaneProgram& lane) { return StepBuilder(lane); }

}  // namespace tutti::schedule
