#include "comm/line_routes.h"

#include "base/float_mode.h"

#include <algorithm>
#include <bit>

namespace tutti::comm {
namespace {

unsigned bits(int value) { return static_cast<unsigned>(value); }
int doublings(int hosts) { return std::bit_width(bits(hosts) - 1); }

}  // namespace

bool LineRoutes::pairs() const { return std::has_single_bit(bits(hosts_)); }

int LineRoutes::rounds() const {
  switch (pattern_) {
    case Pattern::kDirect: return hosts_ - 1;
    case Pattern::kDoubling: return doublings(hosts_);
    case Pattern::kStar: return 2 * (hosts_ - 1);
  }
  return 0;
}

int LineRoutes::to(int host, int round) const {
  switch (pattern_) {
    case Pattern::kDirect: return ahead(host, round + 1);
    case Pattern::kDoubling: return pairs() ? host ^ (1 << round) : ahead(host, 1 << round);
    case Pattern::kStar: break;
  }
  if (round < hosts_ - 1) return place(host) == round + 1 ? hub_ : kNone;
  return host == hub_ ? ahead(hub_, round - (hosts_ - 2)) : kNone;
}

int LineRoutes::from(int host, int round) const {
  switch (pattern_) {
    case Pattern::kDirect: return ahead(host, -round - 1);
    case Pattern::kDoubling: return pairs() ? host ^ (1 << round) : ahead(host, -(1 << round));
    case Pattern::kStar: break;
  }
  if (round < hosts_ - 1) return host == hub_ ? ahead(hub_, round + 1) : kNone;
  return place(host) == round - (hosts_ - 2) ? hub_ : kNone;
}

int LineRoutes::round_of(int host, int of) const {
  const int behind = ahead(host, -of);
  switch (pattern_) {
    case Pattern::kDirect: return behind - 1;
    case Pattern::kDoubling: return std::bit_width(bits(pairs() ? host ^ of : behind)) - 1;
    case Pattern::kStar: break;
  }
  return host == hub_ ? place(of) - 1 : hosts_ - 2 + place(host);
}

bool LineRoutes::are_next(int a, int b) const {
  for (int round = 0; round < rounds(); ++round)
    if (to(a, round) == b || to(b, round) == a) return true;
  return false;
}

int LineRoutes::ways() const {
  switch (pattern_) {
    case Pattern::kDirect: return 1;
    case Pattern::kDoubling: return doublings(hosts_);
    case Pattern::kStar: break;
  }
  return 2;
}

/// The hub takes in and sends one for each other host, after one of theirs was sent and before one is taken in.
double LineRoutes::chain() const { return pattern_ == Pattern::kStar ? hosts_ : rounds(); }

double LineRoutes::per_host() const {
  return pattern_ == Pattern::kStar ? static_cast<double>(rounds()) / hosts_ : rounds();
}

LineRoutes::Pattern choose_pattern(int hosts, const planner::NetworkCosts& network, int sharers, bool may_star,
                                   bool adds_up) {
  using Pattern = LineRoutes::Pattern;
  const auto us = [&](Pattern pattern) {
    const LineRoutes routes(hosts, pattern);
    const double messages = std::max(routes.chain(), sharers * routes.per_host());
    // While one waits for its way, those that share its core work.
    return 2 * messages * network.work_us + routes.ways() * network.message_us / sharers;
  };
  return in_standard_mode([&] {
    Pattern best = Pattern::kDirect;
    const bool may_double = !adds_up || std::has_single_bit(bits(hosts));
    if (may_double && us(Pattern::kDoubling) < us(best)) best = Pattern::kDoubling;
    if (may_star && us(Pattern::kStar) < us(best)) best = Pattern::kStar;
    return best;
  });
}

}  // namespace tutti::comm
