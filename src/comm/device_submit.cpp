// Calls on device memory, from the submitting thread's side: post, launch what is complete, wait for the others' threads.
#include "comm/device_rank.h"
#include "comm/device_teams.h"
#include "comm/enqueuing.h"
#include "comm/staged_calls.h"
#include "comm/teamed_call.h"
#include "executor/backoff.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

/// Those that go through host memory: nothing here waits for other ranks.
Status enqueue_staged(std::list<StagedCalls> works) {
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
Status enqueue_by_teams(std::list<TeamedCall>& works) {
  if (works.empty()) return {};
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

/// Room on the stack for what a group of a process's ranks needs while it is made; a longer one goes on where memory is allocated.
template <std::size_t kBytes>
struct Room {
  alignas(std::max_align_t) std::byte bytes[kBytes];
  std::pmr::monotonic_buffer_resource memory{bytes, kBytes};
};

/// One communicator's calls that go the same way, its n-th such ones. By teams: one call.
struct Leg {
  Communicator* communicator = nullptr;
  std::span<CallArgs> calls;
  LegWay way = LegWay::kHost;
  std::size_t number = 0;
  bool is_ipc = false;  ///< by kernels among processes
};

/// Of those that are left: of the first communicator whose ranks here have no other one's calls before theirs on a stream. Where streams cross, so
/// that there is none, the first.
std::vector<std::size_t> next_legs(std::span<const Leg* const> legs, std::vector<std::size_t> left) {
  const auto are_one = [&](std::size_t i, std::size_t j) {
    return legs[i]->communicator->members().control.abort_word() ==
           legs[j]->communicator->members().control.abort_word();
  };
  const auto comes_first = [&](std::size_t i) {
    return std::ranges::none_of(left, [&](std::size_t j) {
      return j < i && !are_one(i, j) &&
             std::ranges::find_first_of(legs[i]->calls, legs[j]->calls, {}, &CallArgs::stream, &CallArgs::stream) !=
                 legs[i]->calls.end();
    });
  };
  for (const std::size_t i : left) {
    std::vector<std::size_t> all;
    std::ranges::copy_if(left, std::back_inserter(all), [&](std::size_t j) { return are_one(i, j); });
    if (std::ranges::all_of(all, comes_first)) return all;
  }
  left.resize(1);
  return left;
}

/// Those of ranks in several processes. They may wait a little for the others' calls (DeviceIpc::settle()): so first all of them arrive, which takes
/// all their communicators' turns, in one order in all threads. Then they come to each stream in the program's order, and of a communicator's ranks
/// here a piece of each by turns (I4 in device_ipc.h).
Status post_among_processes(std::span<const Leg* const> legs) {
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  std::vector<std::size_t> by_communicator(legs.size());
  std::iota(by_communicator.begin(), by_communicator.end(), std::size_t{0});
  std::ranges::sort(by_communicator, std::less(), [&](std::size_t i) { return legs[i]->communicator; });
  std::vector<std::optional<Enqueuing>> open(legs.size());
  for (const std::size_t i : by_communicator) {
    const Status arrived = open[i].emplace(*legs[i]->communicator, legs[i]->calls).arrive();
    keep(arrived);
    if (!arrived.ok()) open[i].reset();
  }
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < legs.size(); ++i) {
    if (!open[i]) continue;
    const Status settled = open[i]->settle();
    keep(settled);
    settled.ok() ? left.push_back(i) : open[i].reset();
  }
  while (!left.empty()) {
    std::vector<std::size_t> turn = next_legs(legs, left);
    for (const std::size_t i : turn) std::erase(left, i);
    while (!turn.empty()) {
      std::erase_if(turn, [&](std::size_t i) {
        const Result<bool> is_more = open[i]->step();
        if (!is_more.ok()) keep(is_more.error());
        if (is_more.ok() && is_more.value()) return false;
        open[i].reset();
        return true;
      });
    }
  }
  return first;
}

/// How a call goes of a communicator that may go several ways.
Result<LegWay> way_of(Communicator& communicator, const CallArgs& call) {
  const DeviceRank& device = *communicator.device();
  if (const DeviceTeams* teams = device.teams(); teams && teams->takes(call)) return LegWay::kTeams;
  if (device.stages_collectives()) return LegWay::kHost;
  const Result<bool> takes = device.takes(communicator, call);
  if (takes.ok()) return takes.value() ? LegWay::kKernels : LegWay::kHost;
  // As when the call were on its way: the others may be in theirs.
  communicator.fail(takes.error().code, communicator.rank(), takes.error().message);
  return takes.error();
}

/// In order, sends and receives behind all others: the same on all ranks.
Status add_legs(std::pmr::vector<Leg>& legs, const DeviceCalls& work) {
  Communicator& communicator = *work.communicator;
  const DeviceRank& device = *communicator.device();
  const std::size_t others = legs.size();
  const bool has_staged = device.has_staged();
  const bool is_ipc = device.has_ipc();
  const auto add = [&](std::span<CallArgs> calls, LegWay way) {
    const bool begins = legs.size() == others || legs.back().way != way || way == LegWay::kTeams;
    if (begins) {
      return legs.push_back({&communicator, calls, way, legs.size() - others, is_ipc && way == LegWay::kKernels});
    }
    Leg& last = legs.back();
    last.calls = {last.calls.data(), last.calls.size() + calls.size()};
  };
  if (!has_staged && !device.teams()) {
    add(work.calls, LegWay::kKernels);
    return {};
  }
  std::span<CallArgs> first = work.calls;
  if (has_staged && (!device.stages_collectives() || device.teams())) {
    const auto behind = std::ranges::stable_partition(work.calls, std::not_fn(is_point_to_point));
    first = work.calls.first(work.calls.size() - behind.size());
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    TUTTI_TRY_ASSIGN(const LegWay way, way_of(communicator, first[i]));
    add(first.subspan(i, 1), way);
  }
  if (first.size() < work.calls.size()) add(work.calls.subspan(first.size()), LegWay::kHost);
  return {};
}

/// One that goes through host memory, for a part of its way at least.
struct HostLeg {
  const Leg* leg = nullptr;
  std::shared_ptr<StagedRank> rank;
  std::unique_lock<std::mutex> submitting{};
};

/// In order. Other threads' calls of their communicators are waited for in one order in all threads: two that had one each, and waited for the
/// other's, would do so for ever.
std::vector<HostLeg> begin_host_legs(std::span<const Leg> legs, std::size_t number) {
  std::vector<HostLeg> all;
  for (const Leg& leg : legs) {
    if (leg.number != number || leg.way == LegWay::kKernels) continue;
    // Of one that was aborted meanwhile there is none: it goes the way of the others, and is refused there.
    if (auto rank = leg.communicator->device()->staged()) all.push_back({&leg, std::move(rank)});
  }
  for (std::size_t begun = 0; begun < all.size(); ++begun) {
    HostLeg* next = nullptr;
    for (HostLeg& one : all) {
      if (!one.submitting && (next == nullptr || one.rank < next->rank)) next = &one;
    }
    next->submitting = std::unique_lock(next->rank->submitting());
  }
  return all;
}

/// One leg of each communicator. Among processes first; of the others nobody waits for others before everything is posted, nor for a
/// communicator's turn while having another's. What a meeting has complete is launched before another one's calls are posted: so those of
/// communicators of the same ranks come to the streams in the order of the groups.
Status enqueue_legs(std::span<const Leg> legs, std::size_t number) {
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  Room<16 * sizeof(std::optional<Enqueuing>)> room;
  std::pmr::vector<std::optional<Enqueuing>> open(legs.size(), &room.memory);
  std::size_t opened = 0;
  std::size_t launched = 0;
  const auto launch = [&] {
    for (; launched < opened; ++launched) open[launched]->launch();
  };
  std::list<StagedCalls> staged;
  std::list<TeamedCall> teamed;
  std::vector<const Leg*> among_processes;
  for (const Leg& leg : legs) {
    if (leg.number == number && leg.is_ipc) among_processes.push_back(&leg);
  }
  if (!among_processes.empty()) keep(post_among_processes(among_processes));
  std::vector<HostLeg> by_host = begin_host_legs(legs, number);
  auto host = by_host.begin();
  for (const Leg& leg : legs) {
    if (leg.number != number || leg.is_ipc) continue;
    const bool is_host = host != by_host.end() && host->leg == &leg;
    if (is_host && leg.way == LegWay::kTeams) {
      teamed.emplace_back(*leg.communicator, std::move(host->rank), std::move(host->submitting), leg.calls[0]);
    } else if (is_host) {
      staged.emplace_back(*leg.communicator, std::move(host->rank), std::move(host->submitting), leg.calls);
    } else {
      Enqueuing& one = open[opened].emplace(*leg.communicator, leg.calls);
      if (opened != 0 && !one.meets_with(*open[opened - 1])) launch();
      ++opened;
      keep(one.post());
    }
    if (is_host) ++host;
  }
  launch();
  keep(enqueue_by_teams(teamed));
  keep(enqueue_staged(std::move(staged)));
  for (auto& one : std::span(open).first(opened)) keep(one->wait());
  return first;
}

}  // namespace

Status enqueue_on_devices(std::span<const DeviceCalls> works) {
  Room<16 * sizeof(Leg)> room;
  std::pmr::vector<Leg> legs(&room.memory);
  legs.reserve(works.size());
  Status first;
  for (const DeviceCalls& work : works) {
    const std::size_t others = legs.size();
    Status added = add_legs(legs, work);
    if (added.ok()) continue;
    // That communicator has failed; the calls of others are made all the same.
    legs.resize(others);
    if (first.ok()) first = std::move(added);
  }
  std::size_t most = 0;
  for (const Leg& leg : legs) most = std::max(most, leg.number + 1);
  for (std::size_t number = 0; number < most; ++number) {
    Status status = enqueue_legs(legs, number);
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace tutti::comm
