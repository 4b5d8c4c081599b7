#include "comm/line_routes.h"

#include <bit>

namespace tutti::comm {
namespace {

unsigned bits(int value) { return static_cast<unsigned>(value); }
int doublings(int hosts) { return std::bit_width(bits(hosts) - 1); }

}  // namespace

bool LineRoutes::pairs() const { return std::has_single_bit(bits(hosts_)); }

int LineRoutes::rounds() const { return pattern_ == Pattern::kDirect ? hosts_ - 1 : doublings(hosts_); }

int LineRoutes::to(int host, int round) const {
  if (pattern_ == Pattern::kDirect) return ahead(host, round + 1);
  return pairs() ? host ^ (1 << round) : ahead(host, 1 << round);
}

int LineRoutes::from(int host, int round) const {
  if (pattern_ == Pattern::kDirect) return ahead(host, -round - 1);
  return pairs() ? host ^ (1 << round) : ahead(host, -(1 << round));
}

int LineRoutes::round_of(int host, int of) const {
  const int behind = ahead(host, -of);
  if (pattern_ == Pattern::kDirect) return behind - 1;
  return std::bit_width(bits(pairs() ? host ^ of : behind)) - 1;
}

LineRoutes::Pattern choose_pattern(int hosts, const planner::NetworkCosts& network) {
  const auto us = [&](int messages, int ways) { return 2 * messages * network.work_us + ways * network.message_us; };
  const bool doubles = us(doublings(hosts), doublings(hosts)) < us(hosts - 1, 1);
  return doubles ? LineRoutes::Pattern::kDoubling : LineRoutes::Pattern::kDirect;
}

}  // namespace tutti::comm
