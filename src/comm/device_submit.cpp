// Calls on device memory, from the submitting thread's side: post, launch what is complete, wait for the others' threads.
#include "comm/device_rank.h"
#include "comm/device_teams.h"
#include "comm/enqueuing.h"
#include "comm/staged_calls.h"
#include "comm/teamed_call.h"
#include "executor/backoff.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

/// Those that go through host memory: nothing here waits for other ranks.
Status enqueue_staged(std::deque<StagedCalls> works) {
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  for (StagedCalls& one : works) keep(one.check());
  if (!first.ok()) return first;
  for (bool busy = true; busy;) {
    busy = false;
    for (StagedCalls& one : works) {
      if (one.is_done()) continue;
      keep(one.step());
      busy = true;
    }
  }
  return first;
}

/// Those that go by teams, a step of each by turns. What waits for other threads keeps no other call from going on.
Status enqueue_by_teams(std::deque<TeamedCall>& works) {
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  for (TeamedCall& one : works) keep(one.check());
  if (!first.ok()) return first;
  executor::Backoff backoff(true);
  while (!std::ranges::all_of(works, &TeamedCall::is_done)) {
    bool moved = false;
    for (TeamedCall& one : works) {
      if (one.is_done()) continue;
      const Result<bool> step = one.step();
      if (!step.ok()) keep(step.error());
      moved |= !step.ok() || step.value();
      if (!moved && backoff.is_slow()) one.check_patience();
    }
    moved ? backoff.reset() : backoff.wait();
  }
  return first;
}

}  // namespace

namespace {

enum class LegWay : std::uint8_t { kHost, kKernels, kTeams };

/// One communicator's calls that go the same way. By teams: one call.
struct Leg {
  Communicator* communicator = nullptr;
  std::vector<CallArgs> calls;
  LegWay way = LegWay::kHost;
};

/// How a call goes of a communicator that may go several ways.
Result<LegWay> way_of(Communicator& communicator, const CallArgs& call) {
  const DeviceRank& device = *communicator.device();
  if (const DeviceTeams* teams = device.teams(); teams && teams->takes(call)) return LegWay::kTeams;
  if (device.staged() && device.stages_collectives()) return LegWay::kHost;
  TUTTI_TRY_ASSIGN(const bool takes, device.takes(communicator, call));
  return takes ? LegWay::kKernels : LegWay::kHost;
}

/// In order, sends and receives behind all others: the same on all ranks.
Result<std::deque<Leg>> legs_of(const DeviceCalls& work) {
  Communicator& communicator = *work.communicator;
  std::deque<Leg> legs;
  const auto add = [&](const CallArgs& call, LegWay way) {
    const bool alone = way == LegWay::kTeams;
    if (legs.empty() || legs.back().way != way || alone) legs.push_back({&communicator, {}, way});
    legs.back().calls.push_back(call);
  };
  const DeviceRank& device = *communicator.device();
  const bool some_staged = device.staged() && (!device.stages_collectives() || device.teams());
  std::vector<CallArgs> left;
  for (const CallArgs& call : work.calls) {
    if (some_staged && is_point_to_point(call)) {
      left.push_back(call);
      continue;
    }
    TUTTI_TRY_ASSIGN(const LegWay way, way_of(communicator, call));
    add(call, way);
  }
  for (const CallArgs& call : left) add(call, LegWay::kHost);
  return legs;
}

/// One leg of each communicator. Nobody waits for others before everything is posted, nor for a communicator's turn while having another's.
Status enqueue_legs(std::span<const Leg> legs) {
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  std::deque<Enqueuing> open;
  std::deque<StagedCalls> staged;
  std::deque<TeamedCall> teamed;
  for (const Leg& leg : legs) {
    auto rank = leg.way == LegWay::kKernels ? nullptr : leg.communicator->device()->staged();
    if (rank && leg.way == LegWay::kTeams) {
      teamed.emplace_back(*leg.communicator, std::move(rank), leg.calls[0]);
    } else if (rank) {
      staged.emplace_back(*leg.communicator, std::move(rank), leg.calls);
    } else {
      // Also of one that was aborted meanwhile: it says so.
      keep(open.emplace_back(*leg.communicator, leg.calls).post());
    }
  }
  for (Enqueuing& one : open) one.launch();
  keep(enqueue_by_teams(teamed));
  keep(enqueue_staged(std::move(staged)));
  for (Enqueuing& one : open) keep(one.wait());
  return first;
}

}  // namespace

Status enqueue_on_devices(std::span<const DeviceCalls> works) {
  std::vector<std::deque<Leg>> left;
  for (const DeviceCalls& work : works) {
    TUTTI_TRY_ASSIGN(auto legs, legs_of(work));
    if (!legs.empty()) left.push_back(std::move(legs));
  }
  Status first;
  while (!left.empty()) {
    std::vector<Leg> now;
    for (auto& legs : left) {
      now.push_back(std::move(legs.front()));
      legs.pop_front();
    }
    std::erase_if(left, [](const auto& legs) { return legs.empty(); });
    Status status = enqueue_legs(now);
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace tutti::comm
