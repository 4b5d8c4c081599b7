// What ranks give each other in tests on device memory, and what must come of it: numbers that differ by rank and place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::test {

using Ints = std::vector<std::int32_t>;
inline constexpr std::int32_t kPoison = -77;  ///< no value and no sum

inline std::int32_t value(int rank, std::size_t i) {
  return 1000 * (rank + 1) + static_cast<std::int32_t>(i * 7 % 911);
}
inline Ints values(int rank, std::size_t count) {
  Ints all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}
inline std::int32_t sum(int ranks, std::size_t i) {
  std::int32_t total = 0;
  for (int r = 0; r < ranks; ++r) total += value(r, i);
  return total;
}

}  // namespace tutti::test
