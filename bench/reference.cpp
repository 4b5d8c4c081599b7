#include "reference.h"

#include <algorithm>
#include <cstring>

namespace tutti::bench {
namespace {

constexpr std::int64_t kLargestAddend = 1 << 20;
constexpr std::uint64_t kTwosMax = 8;  // 2^8 is a number in every type

/// splitmix64's finish (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t key_of(std::uint64_t block, std::uint64_t position) { return mixed(mixed(block) + position); }
std::uint64_t random_bits(std::uint64_t key, int rank) {
  return mixed(key ^ ((static_cast<std::uint64_t>(rank) + 1) << 40));
}

/// From the key's own bits: a number below `end`, another for every `draw`.
std::int64_t drawn(std::uint64_t key, int draw, std::int64_t end) {
  return static_cast<std::int64_t>(mixed(key + static_cast<std::uint64_t>(draw)) % static_cast<std::uint64_t>(end));
}

}  // namespace

/// The type's value of these bits, sign-extended or not as the type is.
std::int64_t Reference::narrowed(std::uint64_t bits) const {
  const int unused = 64 - 8 * type_.bytes;
  if (type_.is_signed) return static_cast<std::int64_t>(bits << unused) >> unused;
  return static_cast<std::int64_t>(bits << unused >> unused);
}

/// Whole numbers of which no partial sum over the ranks exceeds `exact_max`.
std::int64_t Reference::addend(int rank, std::uint64_t key, std::int64_t exact_max) const {
  const std::int64_t each = exact_max / ranks_;
  const std::uint64_t bits = random_bits(key, rank);
  if (each >= 1) {
    const auto size = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(each + 1));
    return type_.is_signed && (bits >> 63) ? -size : size;
  }
  // More ranks than that: some give 1, the others 0; who and how many depends on the position.
  const std::int64_t seat = (rank + drawn(key, 1, ranks_)) % ranks_;
  return seat < drawn(key, 2, exact_max + 1) ? 1 : 0;
}

/// Whole numbers whose sum is a whole multiple of the number of ranks.
std::int64_t Reference::share_of_average(int rank, std::uint64_t key) const {
  const std::int64_t exact_max = std::min(type_.exact_max, kLargestAddend);
  const std::int64_t each = exact_max / ranks_;
  if (each >= 2) {
    const std::int64_t average = drawn(key, 1, each / 2 + 1);
    const std::int64_t apart = drawn(key, 2, average + 1);  // what a pair of ranks differs by, to both sides
    if (rank % 2 == 1) return average - apart;
    return rank + 1 < ranks_ ? average + apart : average;
  }
  const bool chosen = rank == drawn(key, 1, ranks_);
  if (each == 1) return chosen ? ranks_ * drawn(key, 2, 2) : 0;
  if (!type_.is_signed) return 0;
  const std::int64_t size = drawn(key, 2, exact_max + 1);
  return chosen ? size : (rank == (drawn(key, 1, ranks_) + 1) % ranks_ ? -size : 0);
}

std::int64_t Reference::value(int rank, std::uint64_t block, std::uint64_t position) const {
  const std::uint64_t key = key_of(block, position);
  const std::uint64_t bits = random_bits(key, rank);
  const std::int64_t exact_max = std::min(type_.exact_max, kLargestAddend);
  switch (static_cast<int>(reduction_.op)) {
    case ncclAvg: return share_of_average(rank, key);
    case ncclProd: {
      if (!type_.is_float) return narrowed(bits | 1);
      const std::int64_t seat = (rank + drawn(key, 1, ranks_)) % ranks_;
      const std::int64_t factor = seat < drawn(key, 2, kTwosMax + 1) ? 2 : 1;
      return rank == drawn(key, 3, 2 * ranks_) ? -factor : factor;
    }
    case ncclMax:
    case ncclMin: {
      if (!type_.is_float) return narrowed(bits);
      const auto size = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(exact_max + 1));
      return (bits >> 63) ? -size : size;
    }
    case kScaledSum: return type_.is_float ? addend(rank, key, exact_max / 2) : narrowed(bits);
    default: return type_.is_float ? addend(rank, key, exact_max) : narrowed(bits);
  }
}

std::uint64_t Reference::reduced_bits(std::uint64_t block, std::uint64_t position) const {
  // Unsigned, because integers wrap.
  std::uint64_t result = 0;
  const auto less = [this](std::uint64_t a, std::uint64_t b) {
    return type_.is_signed ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
  };
  for (int rank = 0; rank < ranks_; ++rank) {
    auto next = static_cast<std::uint64_t>(value(rank, block, position));
    if (reduction_.op == kScaledSum) next *= static_cast<std::uint64_t>(scale(rank));
    if (rank == 0) {
      result = next;
    } else if (reduction_.op == ncclProd) {
      result *= next;
    } else if (reduction_.op == ncclMax) {
      result = less(result, next) ? next : result;
    } else if (reduction_.op == ncclMin) {
      result = less(next, result) ? next : result;
    } else {
      result += next;
    }
  }
  if (reduction_.op == ncclAvg) result = static_cast<std::uint64_t>(static_cast<std::int64_t>(result) / ranks_);
  return bits_of(static_cast<std::int64_t>(result), type_);
}

std::uint64_t Reference::input_bits(int rank, std::uint64_t block, std::uint64_t position) const {
  if (collective_.reduces) return bits_of(value(rank, block, position), type_);
  return random_bits(key_of(block, position), rank);
}

std::vector<std::byte> Reference::input(int rank, std::size_t block, std::size_t count) const {
  const std::size_t elements = std::min(count, kPeriod);
  std::vector<std::byte> result(elements * static_cast<std::size_t>(type_.bytes));
  for (std::size_t position = 0; position < elements; ++position) {
    const std::uint64_t bits = input_bits(rank, block, position);
    std::memcpy(&result[position * static_cast<std::size_t>(type_.bytes)], &bits,
                static_cast<std::size_t>(type_.bytes));
  }
  return result;
}

std::vector<std::byte> Reference::expected(int rank, std::size_t block, std::size_t count) const {
  switch (collective_.pattern) {
    case Pattern::kBroadcast: return input(root_, 0, count);
    case Pattern::kGatherAll:
    case Pattern::kGatherRoot: return input(static_cast<int>(block), 0, count);
    case Pattern::kScatter: return input(root_, static_cast<std::size_t>(rank), count);
    case Pattern::kAllToAll: return input(static_cast<int>(block), static_cast<std::size_t>(rank), count);
    case Pattern::kRing: return input((rank + ranks_ - 1) % ranks_, 0, count);
    case Pattern::kReduceAll:
    case Pattern::kReduceRoot:
    case Pattern::kReduceScatter: break;
  }
  const std::uint64_t reduced_block =
      collective_.pattern == Pattern::kReduceScatter ? static_cast<std::uint64_t>(rank) : 0;
  const std::size_t elements = std::min(count, kPeriod);
  std::vector<std::byte> result(elements * static_cast<std::size_t>(type_.bytes));
  for (std::size_t position = 0; position < elements; ++position) {
    const std::uint64_t bits = reduced_bits(reduced_block, position);
    std::memcpy(&result[position * static_cast<std::size_t>(type_.bytes)], &bits,
                static_cast<std::size_t>(type_.bytes));
  }
  return result;
}

}  // namespace tutti::bench
