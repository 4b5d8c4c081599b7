// What a plan's call takes by its size: latency and bandwidth, no more (alpha-beta). Enough to say which plan to take; the
// simulator says how long it takes.
#pragma once

#include "planner/machine_links.h"
#include "planner/machine_plan.h"

#include <cstdint>
#include <vector>

namespace tutti::planner {

/// How messages cross: lines carry a flag with each word, so that twice the bytes go and nothing else has to.
struct WireCosts {
  double base_us = 0;     ///< to start and end a call
  double inside_us = 0;   ///< from rank to rank of one host
  double across_us = 0;   ///< from host to host
  double wire_bytes = 1;  ///< for each byte of data
};

/// What links are: NCCL's own figures for GPUs (2.30.7, src/graph/tuning.cc: LL and Simple, ring), and for host memory the
/// planner's (planner.cpp).
enum class Wire { kNvLink, kPci, kMemory };
std::vector<WireCosts> wire_costs(Wire wire);
/// With latencies that links have themselves, of the slowest: a hop crosses one inside a host, two of the network between hosts.
std::vector<WireCosts> wire_costs(Wire wire, const LinkTable& links);

/// base + hops of each kind + bytes over what the plan counts as, with the costs that make it least. `bytes`: of a rank in an
/// all-reduce, gathered in all by an all-gather.
double price_us(const MachineCandidate& candidate, double bytes, const std::vector<WireCosts>& costs);

/// The cheapest of the plan's candidates, by size: from `from_bytes` to where the next one starts. The last is for all
/// larger ones.
struct SizeChoice {
  std::uint64_t from_bytes = 0;
  std::size_t candidate = 0;  ///< in plan.candidates
  double us = 0;              ///< at from_bytes
};
inline constexpr std::uint64_t kLeastBytes = 8;
inline constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 30;

/// Sizes are powers of two from kLeastBytes to kMostBytes. Of equally cheap ones the plan's own order says. Empty for one
/// rank.
std::vector<SizeChoice> choices_by_size(const MachinePlan& plan, const std::vector<WireCosts>& costs);

}  // namespace tutti::planner
