// Cheap tours that visit everything once and come back: what rings are priced with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::topology {

/// A price for every ordered pair, infinite where there is no way.
class TourPrices {
 public:
  explicit TourPrices(std::size_t count) : count_(count), prices_(count * count, 0) {}
  std::size_t count() const { return count_; }
  double& at(std::size_t from, std::size_t to) { return prices_[from * count_ + to]; }
  double at(std::size_t from, std::size_t to) const { return prices_[from * count_ + to]; }

 private:
  std::size_t count_;
  std::vector<double> prices_;
};

struct Tour {
  std::vector<std::size_t> order;  ///< from 0
  double price = 0;                ///< infinite if there is no tour
};

inline constexpr std::size_t kExactToursMax = 16;

/// The cheapest tour of 2 to kExactToursMax stops, by dynamic programming over subsets (Held and Karp 1962).
Tour cheapest_tour(const TourPrices& prices);

/// A cheap tour: nearest neighbour from every start, then reversed and moved stretches (2-opt, Or-opt), with a few random
/// kicks. The same for the same seed.
Tour cheap_tour(const TourPrices& prices, std::uint64_t seed);

}  // namespace tutti::topology
