#include "algorithm/pattern.h"

#include <utility>

namespace tutti::algorithm {

RankProgram alone(const Request& request) {
  LaneProgram lane;
  step(lane).from(input({0})).to(output({0})).finish(reduces(request.collective));
  return one_lane(std::move(lane));
}

RankProgram one_lane(LaneProgram lane) {
  RankProgram program;
  program.lanes.push_back(std::move(lane));
  return program;
}

int group_of(const Request& request, int rank) {
  if (request.groups != nullptr) return (*request.groups)[index(rank)];
  int groups = 1;
  while ((groups + 1) * (groups + 1) <= request.ranks) ++groups;
  return rank * groups / request.ranks;
}

}  // namespace tutti::algorithm
