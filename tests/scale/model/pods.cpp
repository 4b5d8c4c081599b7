#include "pods.h"

#include "algorithm/algorithm.h"
#include "schedule/protocol_figures.h"
#include "schedule/simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace tutti::scale {
namespace {

constexpr std::uint32_t kElementBytes = 4;
constexpr int kLinksPerRank = 4;
constexpr int kAllPairsHostsMax = 4;
enum LinkOf { kNvOut, kNvIn, kNicOut, kNicIn };

schedule::SimulatedMachine machine_of(const Pod& pod, int hosts, const schedule::ProtocolFigures& protocol,
                                      bool branching) {
  schedule::SimulatedMachine machine;
  for (int rank = 0; rank < hosts * pod.gpus; ++rank) {
    for (const double gbps : {pod.nvlink_gbps, pod.nvlink_gbps}) machine.links.push_back({gbps, 0, LinkClass::kNvLink});
    for (const double gbps : {pod.nic_gbps, pod.nic_gbps}) machine.links.push_back({gbps, 0, LinkClass::kNetwork});
  }
  machine.path = [&protocol, branching, gpus = pod.gpus](int, int from, int to) {
    const bool near = from / gpus == to / gpus;
    const auto kind = static_cast<std::size_t>(near ? LinkClass::kNvLink : LinkClass::kNetwork);
    const auto& hop_us = branching ? protocol.branching_hop_us : protocol.chain_hop_us;
    return schedule::MessagePath{
        {{from * kLinksPerRank + (near ? kNvOut : kNicOut), 1}, {to * kLinksPerRank + (near ? kNvIn : kNicIn), 1}},
        hop_us[kind] - protocol.step_us,
        protocol.credit_us[kind]};
  };
  return machine;
}

std::uint64_t steps_of(const schedule::Schedule& schedule) {
  std::uint64_t steps = 0;
  for (const auto& rank : schedule.ranks) {
    for (const auto& lane : rank.lanes) steps += lane.steps.size() + lane.endpoints.size() / 2;
  }
  return steps;
}

}  // namespace

schedule::Groups hosts_of(int hosts, int ranks_per_host) {
  schedule::Groups groups;
  for (int host = 0; host < hosts; ++host) groups.insert(groups.end(), static_cast<std::size_t>(ranks_per_host), host);
  return groups;
}

PodRuns::PodRuns(const Pod& pod, std::string algorithm, std::uint64_t work_max)
    : pod_(pod), algorithm_(std::move(algorithm)), work_max_(work_max) {}

/// Nothing where it is too long, or there is none.
const schedule::Schedule* PodRuns::schedule_of(int hosts) {
  if (is_all_pairs() && hosts > kAllPairsHostsMax) return nullptr;
  if (last_.first == hosts) return &last_.second;
  const schedule::Groups groups = hosts_of(hosts, pod_.gpus);
  schedule::Request request{Collective::kAllReduce, hosts * pod_.gpus, 0, 0};
  request.groups = &groups;
  const algorithm::Algorithm* row = algorithm::find(algorithm_, request);
  if (row == nullptr) return nullptr;
  // One rank's steps say how long it would be.
  schedule::Schedule one{algorithm_, request, {}, {row->build(request, 0)}};
  if (steps_of(one) * static_cast<std::uint64_t>(request.ranks) > work_max_) return nullptr;
  last_ = {hosts, algorithm::make_schedule(*row, request)};
  last_.second.request.groups = nullptr;
  return &last_.second;
}

/// By the protocol that is the fastest.
std::optional<double> PodRuns::simulated(int hosts, std::uint64_t bytes) {
  const auto known = known_.find({hosts, bytes});
  if (known != known_.end()) return known->second;
  std::optional<double> best;
  if (const schedule::Schedule* const schedule = schedule_of(hosts)) {
    const bool branching = schedule::is_branching(*schedule);
    for (const schedule::ProtocolFigures& protocol : schedule::gpu_protocols()) {
      if (protocol.direct) continue;
      schedule::SimulatedCall call;
      call.count = std::max<std::uint64_t>(1, bytes / kElementBytes);
      call.element_bytes = kElementBytes;
      call.slots = protocol.slots;
      call.base_us = branching ? protocol.branching_base_us : protocol.chain_base_us;
      call.step_us = protocol.step_us;
      call.wire_bytes = protocol.wire_bytes;
      const auto run =
          schedule::simulate(*schedule, machine_of(pod_, hosts, protocol, branching), call, {work_max_, 0, {}});
      if (run.ok()) best = std::min(best.value_or(std::numeric_limits<double>::infinity()), run.value().us);
    }
  }
  return known_[{hosts, bytes}] = best;
}

/// a + b log(hosts) + c hosts, by the three largest numbers of hosts that are simulated.
double PodRuns::beyond(int hosts, std::uint64_t bytes, std::uint64_t subtracted) {
  std::array<double, 3> us{};
  for (int i = 0; i < 3; ++i) {
    const int fewer = hosts_max_ >> (2 - i);
    us[static_cast<std::size_t>(i)] = *simulated(fewer, bytes) - (subtracted != 0 ? *simulated(fewer, subtracted) : 0);
  }
  const double least = hosts_max_ / 4.0;
  const double first = us[1] - us[0];
  const double second = us[2] - us[1];
  double by_host = (second - first) / least;
  double by_doubling = 2 * first - second;
  if (by_host < 0) {
    by_host = 0;
    by_doubling = std::max(0.0, second);
  }
  return us[2] + by_doubling * std::log2(static_cast<double>(hosts) / hosts_max_) + by_host * (hosts - hosts_max_);
}

std::optional<Prediction> PodRuns::predict(int hosts, std::uint64_t bytes) {
  constexpr std::uint64_t kShortest = 8;
  if (hosts_max_ == 0 || hosts <= hosts_max_) {
    if (const auto us = simulated(hosts, bytes)) return Prediction{*us, false};
    if (hosts_max_ == 0) {
      for (int fewer = 1; fewer < hosts; fewer *= 2) {
        if (simulated(fewer, kShortest)) hosts_max_ = fewer;
      }
    }
  }
  // Fewer than three to go by, or none at so few hosts.
  if (is_all_pairs() || hosts_max_ < 8 || hosts <= hosts_max_) return std::nullopt;
  // What messages wait for and what bytes take grow in different ways.
  const double us =
      bytes == kShortest ? beyond(hosts, bytes, 0) : beyond(hosts, kShortest, 0) + beyond(hosts, bytes, kShortest);
  return Prediction{us, true};
}

}  // namespace tutti::scale
