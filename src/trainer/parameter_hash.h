// Are all replicas still the same? A 64-bit hash of the parameters' bits, and who differs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::trainer {

/// Depends on every bit and on its place: equal parameters have equal hashes, others (almost surely) do not.
inline std::uint64_t hash_parameters(std::span<const float> parameters) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const float parameter : parameters) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(parameter)) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

/// Indexes whose hash is not that of the largest group of equal ones (of two as large, the one with the lower first index).
inline std::vector<std::size_t> odd_ones_out(const std::vector<std::uint64_t>& hashes) {
  std::uint64_t agreed = 0;
  std::size_t agreed_count = 0;
  for (const auto candidate : hashes) {
    std::size_t count = 0;
    for (const auto hash : hashes) count += hash == candidate;
    if (count > agreed_count) {
      agreed = candidate;
      agreed_count = count;
    }
  }
  std::vector<std::size_t> odd;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i] != agreed) odd.push_back(i);
  }
  return odd;
}

}  // namespace tutti::trainer
