#include "base/float_formats.h"
#include "base/reduce.h"
#include "kernel_case.h"

#include <cstring>

namespace tutti::cuda {
namespace {

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// A number whose sums round: no order of additions but the right one gives the same bits.
void write_element(DataType type, std::uint64_t random, std::byte* to) {
  const double value = (static_cast<double>(random % 20001) - 10000) / 811.0;
  const auto single = static_cast<float>(value);
  std::uint64_t bits = random;
  switch (type) {
    case DataType::kFloat16: bits = Float16::encode(single); break;
    case DataType::kBfloat16: bits = Bfloat16::encode(single); break;
    case DataType::kFloat8e4m3: bits = Float8e4m3::encode(single); break;
    case DataType::kFloat8e5m2: bits = Float8e5m2::encode(single); break;
    case DataType::kFloat32: bits = __builtin_bit_cast(std::uint32_t, single); break;
    case DataType::kFloat64: bits = __builtin_bit_cast(std::uint64_t, value); break;
    default: break;
  }
  std::memcpy(to, &bits, size_of(type));
}

std::size_t block_bytes(const KernelCase& c) { return c.count * size_of(c.dtype); }

std::vector<std::byte> sum_of(const KernelCase& c, int call, std::uint32_t block) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::uint64_t> factors;
  for (int r = 0; r < c.ranks; ++r) {
    inputs.push_back(input_block(c, call, r, block));
    factors.push_back(factor_bits(c, r));
  }
  std::vector<const void*> sources;
  std::vector<const void*> scales;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    sources.push_back(inputs[r].data());
    scales.push_back(&factors[r]);
  }
  std::vector<std::byte> sum(block_bytes(c));
  void* to = sum.data();
  ReduceArgs args;
  args.sources = sources.data();
  args.source_count = c.ranks;
  args.destinations = &to;
  args.destination_count = 1;
  args.count = c.count;
  args.scales = c.scaled ? scales.data() : nullptr;
  args.divisor = c.op == ReduceOp::kAverage ? c.ranks : 0;
  reduce_function(c.dtype, c.op)(args);
  return sum;
}

void append(std::vector<std::byte>& to, const std::vector<std::byte>& what) {
  to.insert(to.end(), what.begin(), what.end());
}

}  // namespace

std::uint64_t factor_bits(const KernelCase& c, int rank) {
  std::uint64_t bits = 0;
  write_element(c.dtype, mix(0xfac7u + static_cast<unsigned>(rank)), reinterpret_cast<std::byte*>(&bits));
  return bits;
}

std::vector<std::byte> input_block(const KernelCase& c, int call, int rank, std::uint32_t block) {
  std::vector<std::byte> bytes(block_bytes(c));
  const std::uint64_t key =
      mix(static_cast<std::uint64_t>(call) << 40 | static_cast<std::uint64_t>(rank) << 20 | block);
  for (std::uint64_t i = 0; i < c.count; ++i) write_element(c.dtype, mix(key + i), bytes.data() + i * size_of(c.dtype));
  return bytes;
}

std::uint32_t input_block_count(const KernelCase& c, int rank) {
  switch (c.collective) {
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return static_cast<std::uint32_t>(c.ranks);
    case Collective::kScatter: return rank == c.root ? static_cast<std::uint32_t>(c.ranks) : 0;
    case Collective::kBroadcast:
    case Collective::kSend: return rank == c.root ? 1 : 0;
    default: return 1;
  }
}
std::uint32_t output_block_count(const KernelCase& c, int rank) {
  switch (c.collective) {
    case Collective::kAllGather:
    case Collective::kAllToAll: return static_cast<std::uint32_t>(c.ranks);
    case Collective::kGather: return rank == c.root ? static_cast<std::uint32_t>(c.ranks) : 0;
    case Collective::kReduce:
    case Collective::kSend: return rank == c.root ? 1 : 0;
    default: return 1;
  }
}

std::vector<std::byte> expected_output(const KernelCase& c, int call, int rank) {
  const auto block = static_cast<std::uint32_t>(rank);
  std::vector<std::byte> all;
  if (output_block_count(c, rank) == 0) return all;
  switch (c.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce: return sum_of(c, call, 0);
    case Collective::kReduceScatter: return sum_of(c, call, block);
    case Collective::kBroadcast:
    case Collective::kSend: return input_block(c, call, c.root, 0);
    case Collective::kScatter: return input_block(c, call, c.root, block);
    default: break;
  }
  for (int r = 0; r < c.ranks; ++r)
    append(all, input_block(c, call, r, c.collective == Collective::kAllToAll ? block : 0));
  return all;
}

}  // namespace tutti::cuda
