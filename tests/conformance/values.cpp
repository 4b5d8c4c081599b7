#include "values.h"

#include "sim/call_case.h"

#include <algorithm>

namespace tutti::conformance {
namespace {

std::uint64_t scrambled(int call, int rank, std::uint32_t block, std::uint64_t i) {
  std::uint64_t bits = sim::input_value(call, rank, block, i) * std::uint64_t{0x9e3779b97f4a7c15};
  bits = (bits ^ bits >> 32) * 0xd6e8feb86659fd93u;
  return bits ^ bits >> 29;
}

std::uint64_t cut(std::uint64_t bits, const bench::ElementType& type) {
  return type.bytes == 8 ? bits : bits & ((std::uint64_t{1} << 8 * type.bytes) - 1);
}

bool reduced(const Case& c) { return reduces(c.request.collective); }

/// A whole number of which sums over all ranks are exact; products of floats are powers of two.
std::int64_t number(const Case& c, int call, int rank, std::uint32_t block, std::uint64_t i) {
  const bench::ElementType& type = type_of(c);
  const std::uint64_t bits = scrambled(call, rank, block, i);
  const bool wraps = !type.is_float && (c.op == ncclSum || c.op == ncclProd || c.op == bench::kScaledSum);
  if (wraps) return static_cast<std::int64_t>(bits);
  if (c.op == ncclProd) return 1 + static_cast<std::int64_t>(bits >> 7 & 1);
  const std::int64_t ranks = c.request.ranks;
  // All partial sums stay below the exact limit, and averages are whole.
  std::int64_t choices = type.exact_max / ((c.op == bench::kScaledSum ? 2 : 1) * ranks) + 1;
  if (c.op == ncclAvg) choices = type.exact_max / (ranks * ranks);
  const auto value = static_cast<std::int64_t>((bits >> 7) % static_cast<std::uint64_t>(choices));
  const std::int64_t sign = type.is_signed && (bits & 1) != 0 ? -1 : 1;
  return c.op == ncclAvg ? ranks * value : sign * value;
}

std::int64_t combined(const Case& c, std::int64_t a, std::int64_t b) {
  const auto wide_a = static_cast<std::uint64_t>(a);
  const auto wide_b = static_cast<std::uint64_t>(b);
  if (c.op == ncclProd) return static_cast<std::int64_t>(wide_a * wide_b);
  if (c.op == ncclMax) return std::max(a, b);
  if (c.op == ncclMin) return std::min(a, b);
  return static_cast<std::int64_t>(wide_a + wide_b);
}

std::int64_t scaled(const Case& c, int rank, std::int64_t value) {
  if (c.op != bench::kScaledSum) return value;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) * static_cast<std::uint64_t>(factor_of(rank)));
}

}  // namespace

const bench::ElementType& type_of(const Case& c) { return bench::element_types()[static_cast<std::size_t>(c.type)]; }

std::uint32_t input_blocks(const Case& c, int rank) {
  return c.request.collective == Collective::kSend ? 1 : schedule::input_blocks(c.request, rank);
}
std::uint32_t output_blocks(const Case& c, int rank) {
  return c.request.collective == Collective::kSend ? 1 : schedule::output_blocks(c.request, rank);
}

std::uint64_t input_bits(const Case& c, int call, int rank, std::uint32_t block, std::uint64_t i) {
  if (!reduced(c)) return cut(scrambled(call, rank, block, i), type_of(c));
  return cut(bench::bits_of(number(c, call, rank, block, i), type_of(c)), type_of(c));
}

std::uint64_t promised_bits(const Case& c, int call, int rank, std::uint32_t block, std::uint64_t i) {
  const int ranks = c.request.ranks;
  sim::Origin origin{false, (rank + ranks - 1) % ranks, 0};
  if (c.request.collective != Collective::kSend) origin = sim::origin_of(c.request, rank, block);
  if (!origin.reduced) return input_bits(c, call, origin.rank, origin.block, i);
  std::int64_t total = scaled(c, 0, number(c, call, 0, origin.block, i));
  for (int p = 1; p < ranks; ++p) total = combined(c, total, scaled(c, p, number(c, call, p, origin.block, i)));
  if (c.op == ncclAvg) total /= ranks;
  return cut(bench::bits_of(total, type_of(c)), type_of(c));
}

}  // namespace tutti::conformance
