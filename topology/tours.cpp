#include "topology/tours.h"

#include <algorithm>
#include <limits>
#include <random>

namespace tutti::topology {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kGain = 1e-8;  // of the dearest price: less is rounding, and could go on for ever

double price_of(const TourPrices& prices, const std::vector<std::size_t>& order) {
  double sum = prices.at(order.back(), order.front());
  for (std::size_t i = 0; i + 1 < order.size(); ++i) sum += prices.at(order[i], order[i + 1]);
  return sum;
}

std::vector<std::size_t> nearest_neighbours(const TourPrices& prices, std::size_t start) {
  std::vector<std::size_t> order{start};
  std::vector<char> seen(prices.count(), 0);
  seen[start] = 1;
  while (order.size() < prices.count()) {
    std::size_t nearest = prices.count();
    for (std::size_t next = 0; next < prices.count(); ++next) {
      if (seen[next] != 0) continue;
      if (nearest == prices.count() || prices.at(order.back(), next) < prices.at(order.back(), nearest)) nearest = next;
    }
    order.push_back(nearest);
    seen[nearest] = 1;
  }
  return order;
}

/// Reverses the stretch first..last if that gains. Sums of prices forth and back make the stretch's own change cheap to know.
bool reverse_a_stretch(const TourPrices& prices, double least_gain, std::vector<std::size_t>& order) {
  const std::size_t count = order.size();
  std::vector<double> forth(count, 0);
  std::vector<double> back(count, 0);
  for (std::size_t i = 1; i < count; ++i) {
    forth[i] = forth[i - 1] + prices.at(order[i - 1], order[i]);
    back[i] = back[i - 1] + prices.at(order[i], order[i - 1]);
  }
  for (std::size_t first = 1; first + 1 < count; ++first) {
    for (std::size_t last = first + 1; last < count; ++last) {
      const std::size_t before = order[first - 1];
      const std::size_t after = order[(last + 1) % count];
      const double old = prices.at(before, order[first]) + forth[last] - forth[first] + prices.at(order[last], after);
      const double now = prices.at(before, order[last]) + back[last] - back[first] + prices.at(order[first], after);
      if (!(now < old - least_gain)) continue;
      std::reverse(order.begin() + static_cast<std::ptrdiff_t>(first),
                   order.begin() + static_cast<std::ptrdiff_t>(last) + 1);
      return true;
    }
  }
  return false;
}

/// Moves a stretch of up to three stops to another place if that gains.
bool move_a_stretch(const TourPrices& prices, double least_gain, std::vector<std::size_t>& order) {
  constexpr std::size_t kStretchMax = 3;
  const std::size_t count = order.size();
  for (std::size_t length = 1; length <= kStretchMax && length + 2 <= count; ++length) {
    for (std::size_t first = 1; first + length <= count; ++first) {
      const std::size_t last = first + length - 1;
      const std::size_t before = order[first - 1];
      const std::size_t after = order[(last + 1) % count];
      const double gain = prices.at(before, order[first]) + prices.at(order[last], after) - prices.at(before, after);
      for (std::size_t at = 0; at < count; ++at) {  // between order[at] and the next
        if (at + 1 >= first && at <= last) continue;
        const std::size_t left = order[at];
        const std::size_t right = order[(at + 1) % count];
        const double cost = prices.at(left, order[first]) + prices.at(order[last], right) - prices.at(left, right);
        if (!(cost < gain - least_gain)) continue;
        const auto begin = order.begin();
        const auto stretch = begin + static_cast<std::ptrdiff_t>(first);
        const auto end = stretch + static_cast<std::ptrdiff_t>(length);
        if (at < first) {
          std::rotate(begin + static_cast<std::ptrdiff_t>(at) + 1, stretch, end);
        } else {
          std::rotate(stretch, end, begin + static_cast<std::ptrdiff_t>(at) + 1);
        }
        return true;
      }
    }
  }
  return false;
}

void improve(const TourPrices& prices, double least_gain, Tour& tour) {
  while (reverse_a_stretch(prices, least_gain, tour.order) || move_a_stretch(prices, least_gain, tour.order)) {
  }
  tour.price = price_of(prices, tour.order);
}

/// Swaps two neighbouring stretches: what the two moves above cannot undo in one step.
Tour kicked(const TourPrices& prices, double least_gain, Tour tour, std::mt19937_64& random) {
  const std::size_t count = tour.order.size();
  std::vector<std::size_t> cuts;
  for (int i = 0; i < 3; ++i) cuts.push_back(1 + random() % (count - 1));
  std::ranges::sort(cuts);
  const auto begin = tour.order.begin();
  std::rotate(begin + static_cast<std::ptrdiff_t>(cuts[0]), begin + static_cast<std::ptrdiff_t>(cuts[1]),
              begin + static_cast<std::ptrdiff_t>(cuts[2]));
  improve(prices, least_gain, tour);
  return tour;
}

}  // namespace

Tour cheapest_tour(const TourPrices& prices) {
  const std::size_t others = prices.count() - 1;  // all but stop 0, numbered from 0
  const std::size_t sets = std::size_t{1} << others;
  std::vector<double> least(sets * others, kInfinite);  // by set and last stop
  std::vector<std::uint8_t> before(sets * others, 0);
  for (std::size_t stop = 0; stop < others; ++stop)
    least[(std::size_t{1} << stop) * others + stop] = prices.at(0, stop + 1);
  for (std::size_t set = 1; set < sets; ++set) {
    for (std::size_t last = 0; last < others; ++last) {
      const double so_far = least[set * others + last];
      if (so_far == kInfinite) continue;
      for (std::size_t next = 0; next < others; ++next) {
        if ((set >> next & 1) != 0) continue;
        const std::size_t place = (set | std::size_t{1} << next) * others + next;
        const double sum = so_far + prices.at(last + 1, next + 1);
        if (sum >= least[place]) continue;
        least[place] = sum;
        before[place] = static_cast<std::uint8_t>(last);
      }
    }
  }
  Tour tour{{}, kInfinite};
  std::size_t last = 0;
  for (std::size_t stop = 0; stop < others; ++stop) {
    const double sum = least[(sets - 1) * others + stop] + prices.at(stop + 1, 0);
    if (sum >= tour.price) continue;
    tour.price = sum;
    last = stop;
  }
  if (tour.price == kInfinite) return tour;
  for (std::size_t set = sets - 1; set != 0;) {
    tour.order.push_back(last + 1);
    const std::size_t previous = before[set * others + last];
    set &= ~(std::size_t{1} << last);
    last = previous;
  }
  tour.order.push_back(0);
  std::ranges::reverse(tour.order);
  return tour;
}

Tour cheap_tour(const TourPrices& given, std::uint64_t seed) {
  TourPrices prices = given;  // what cannot be had is very dear instead: differences of infinities are no numbers
  double dearest = 0;
  for (std::size_t from = 0; from < prices.count(); ++from) {
    for (std::size_t to = 0; to < prices.count(); ++to) {
      if (given.at(from, to) < kInfinite) dearest = std::max(dearest, given.at(from, to));
    }
  }
  if (dearest == 0) dearest = 1;
  const double least_gain = kGain * dearest;
  for (std::size_t from = 0; from < prices.count(); ++from) {
    for (std::size_t to = 0; to < prices.count(); ++to)
      prices.at(from, to) = std::min(given.at(from, to), dearest * 1000);
  }
  constexpr std::size_t kStartsMax = 8;
  constexpr int kKicks = 8;
  std::mt19937_64 random(seed);
  Tour best{{}, kInfinite};
  const std::size_t starts = std::min(prices.count(), kStartsMax);
  for (std::size_t i = 0; i < starts; ++i) {
    Tour tour{nearest_neighbours(prices, i * prices.count() / starts), 0};
    improve(prices, least_gain, tour);
    if (tour.price < best.price) best = std::move(tour);
  }
  for (int kick = 0; kick < kKicks && prices.count() > 4; ++kick) {
    Tour tour = kicked(prices, least_gain, best, random);
    if (tour.price < best.price) best = std::move(tour);
  }
  best.price = price_of(given, best.order);
  std::rotate(best.order.begin(), std::ranges::find(best.order, std::size_t{0}), best.order.end());
  return best;
}

}  // namespace tutti::topology
