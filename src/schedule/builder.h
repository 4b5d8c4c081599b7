// Writes a lane's steps the way a person would say them:
//   lane.step().from(input(2)).to(message(3));
#pragma once

#include "schedule/schedule.h"

#include <initializer_list>

namespace tutti::schedule {

/// Local places. `unit` and `width` count units within the block.
struct Span {
  std::uint32_t block = 0;
  std::uint32_t unit = 0;
  std::uint32_t width = 1;
};
Endpoint input(Span at);
Endpoint output(Span at);
Endpoint scratch(Span at);

/// A message with peer `peer`: as a sink a send, as a source a receive. `width` in units.
Endpoint message(int peer, std::uint32_t width = 1);
/// The same, of a partial sum: two or more ranks' data, not finished.
Endpoint partial(int peer, std::uint32_t width = 1);
/// A message which may be read directly at the sender's place / written directly to the receiver's place.
Endpoint pull(int peer, Endpoint at_sender);
Endpoint push(int peer, Endpoint at_receiver);
/// No data, only order.
Endpoint signal(int peer);

class StepBuilder {
 public:
  explicit StepBuilder(LaneProgram& lane);
  StepBuilder& from(Endpoint source);  ///< all sources before the first sink
  StepBuilder& to(Endpoint sink);
  StepBuilder& finish(bool yes = true);  ///< the sum is complete in this step

 private:
  LaneProgram& lane_;
  std::size_t index_;
};

/// Appends a step to the lane.
StepBuilder step(LaneProgram& lane);

}  // namespace tutti::schedule
