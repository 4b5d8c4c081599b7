#include "sim/own_algorithms.h"

#include "schedule/builder.h"

namespace tutti::sim {
namespace {

using schedule::LaneProgram;
using schedule::RankProgram;
using schedule::Request;

bool is_broadcast(const Request& request) { return request.collective == Collective::kBroadcast && request.ranks > 1; }

schedule::Shape one_block(const Request&) { return {}; }

RankProgram pull_chain(const Request& request, int rank) {
  const int previous = (rank + request.ranks - 1) % request.ranks;
  const int next = (rank + 1) % request.ranks;
  LaneProgram lane;
  {
    auto pass = schedule::step(lane);
    pass.from(rank == request.root ? schedule::input({0}) : schedule::pull(previous, schedule::output({0})));
    pass.to(schedule::output({0}));
  }
  if (next != request.root) {
    schedule::step(lane).from(schedule::output({0})).to(schedule::pull(next, schedule::output({0})));
  }
  RankProgram program;
  program.lanes.push_back(std::move(lane));
  return program;
}

constexpr algorithm::Algorithm kOwn[] = {{.name = "pull_chain",
                                          .summary = "the simulator's own: every rank pulls from the output before it",
                                          .supports = is_broadcast,
                                          .shape = one_block,
                                          .build = pull_chain,
                                          .direct = true,
                                          .direct_in_place = true}};

}  // namespace

std::span<const algorithm::Algorithm> own_algorithms() { return kOwn; }

const algorithm::Algorithm& algorithm_at(std::size_t index) {
  const std::size_t rows = algorithm::algorithms().size();
  return index < rows ? algorithm::algorithms()[index] : kOwn[index - rows];
}
std::size_t algorithm_count() { return algorithm::algorithms().size() + own_algorithms().size(); }
bool is_own(const algorithm::Algorithm& algorithm) { return algorithm.name == kOwn[0].name; }

}  // namespace tutti::sim
