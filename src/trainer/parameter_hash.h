// Are all replicas still the same? 64-bit hashes, of the parameters' bits and of what the ranks train on, and who differs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::trainer {

inline constexpr std::uint64_t kHashOfNothing = 0xcbf29ce484222325ull;

/// `hash` and one value more.
inline std::uint64_t hash_on(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ hash >> 29;
}

/// `hash`, how many values there are, and these.
template <class Values>
std::uint64_t hash_all_on(std::uint64_t hash, const Values& values) {
  hash = hash_on(hash, values.size());
  for (const auto value : values) hash = hash_on(hash, static_cast<std::uint64_t>(value));
  return hash;
}

/// Depends on every bit and on its place: equal parameters have equal hashes, others (almost surely) do not.
inline std::uint64_t hash_parameters(std::span<const float> parameters) {
  std::uint64_t hash = kHashOfNothing;
  for (const float parameter : parameters) hash = hash_on(hash, std::bit_cast<std::uint32_t>(parameter));
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
