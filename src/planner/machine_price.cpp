#include "planner/machine_price.h"

#include <algorithm>
#include <limits>

namespace tutti::planner {

std::vector<WireCosts> wire_costs(Wire wire) {
  switch (wire) {
    // Where it joins the ranks of several hosts, as in a pod, no message goes by the network.
    case Wire::kNvLink: return {{6.6, 0.6, 0.6, 2}, {8.4, 3.4, 3.4, 1}};
    case Wire::kPci: return {{6.6, 1.0, 2.7, 2}, {8.4, 5.7, 14, 1}};
    case Wire::kMemory: return {{0.2, 0.15, 2.7, 2}, {0.2, 0.35, 14, 1}};
  }
  return {};
}

std::vector<WireCosts> wire_costs(Wire wire, const LinkTable& links) {
  double inside_us = 0;
  double network_us = 0;
  for (const TableLink& link : links) {
    double& slowest_us = link.link_class == LinkClass::kNetwork ? network_us : inside_us;
    slowest_us = std::max(slowest_us, link.latency_us);
  }
  std::vector<WireCosts> costs = wire_costs(wire);
  for (WireCosts& cost : costs) {
    cost.inside_us += inside_us;
    cost.across_us += network_us > 0 ? 2 * network_us : inside_us;
  }
  return costs;
}

double price_us(const MachineCandidate& candidate, double bytes, const std::vector<WireCosts>& costs) {
  double least = std::numeric_limits<double>::infinity();
  for (const WireCosts& wire : costs) {
    const double latency = wire.base_us + wire.inside_us * (candidate.hops - candidate.hops_across) +
                           wire.across_us * candidate.hops_across;
    constexpr double kBytesInUs = 1e3;  // at 1 GB/s
    least = std::min(least, latency + wire.wire_bytes * bytes / (candidate.counted_gbps() * kBytesInUs));
  }
  return least;
}

std::vector<SizeChoice> choices_by_size(const MachinePlan& plan, const std::vector<WireCosts>& costs) {
  std::vector<SizeChoice> choices;
  if (plan.certificate.unlimited) return choices;
  for (std::uint64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
    const auto price = [&](const MachineCandidate& c) { return price_us(c, static_cast<double>(bytes), costs); };
    const auto best = std::ranges::min_element(plan.candidates, {}, price);
    const auto index = static_cast<std::size_t>(best - plan.candidates.begin());
    if (choices.empty() || choices.back().candidate != index) choices.push_back({bytes, index, price(*best)});
  }
  return choices;
}

}  // namespace tutti::planner
