// tutti-perf's expected values must be exact in any order: here the library's kernels add the inputs up in many orders,
// rounding to the data type after every step, and must come to the same bits.
#include "../../bench/reference.h"

#include "base/reduce.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <random>

using namespace tutti::bench;

namespace {

using Bytes = std::vector<std::byte>;

tutti::ReduceOp kernel_of(ncclRedOp_t op) {
  return op == kScaledSum ? tutti::ReduceOp::kSum : static_cast<tutti::ReduceOp>(op);
}

/// Two at a time, so that every partial result is rounded.
Bytes folded(const std::vector<Bytes>& inputs, const std::vector<int>& order, const ElementType& type,
             const Reduction& reduction) {
  const auto data_type = static_cast<tutti::DataType>(type.type);
  const tutti::ReduceFunction reduce = tutti::reduce_function(data_type, kernel_of(reduction.op));
  const std::size_t count = inputs[0].size() / static_cast<std::size_t>(type.bytes);
  Bytes sum = inputs[static_cast<std::size_t>(order[0])];
  for (std::size_t n = 1; n <= order.size(); ++n) {
    const bool last = n == order.size();
    if (last && reduction.op != ncclAvg) break;
    const void* sources[] = {sum.data(), last ? nullptr : inputs[static_cast<std::size_t>(order[n])].data()};
    void* destinations[] = {sum.data()};
    tutti::ReduceArgs args;
    args.sources = sources;
    args.source_count = last ? 1 : 2;
    args.destinations = destinations;
    args.destination_count = 1;
    args.count = count;
    args.divisor = last ? static_cast<int>(order.size()) : 0;
    reduce(args);
  }
  return sum;
}

/// What a rank's PreMulSum scalar makes of its input.
Bytes scaled(const Bytes& input, const ElementType& type, int rank) {
  const auto data_type = static_cast<tutti::DataType>(type.type);
  const std::uint64_t scale = bits_of(Reference::scale(rank), type);
  Bytes result(input.size());
  const void* sources[] = {input.data()};
  void* destinations[] = {result.data()};
  const void* scales[] = {&scale};
  tutti::ReduceArgs args;
  args.sources = sources;
  args.source_count = 1;
  args.destinations = destinations;
  args.destination_count = 1;
  args.count = input.size() / static_cast<std::size_t>(type.bytes);
  args.scales = scales;
  tutti::reduce_function(data_type, tutti::ReduceOp::kSum)(args);
  return result;
}

}  // namespace

TEST_CASE("whole numbers have the right bits") {
  CHECK(bits_of(1, *element_type_named("float")) == 0x3f800000);
  CHECK(bits_of(-3, *element_type_named("half")) == 0xc200);
  CHECK(bits_of(256, *element_type_named("bfloat16")) == 0x4380);
  CHECK(bits_of(256, *element_type_named("f8e4m3")) == 0x78);
  CHECK(bits_of(-8, *element_type_named("f8e5m2")) == 0xc8);
  CHECK(bits_of(0, *element_type_named("double")) == 0);
  CHECK((bits_of(-1, *element_type_named("int8")) & 0xff) == 0xff);
}

TEST_CASE("expected results do not depend on the order of the ranks") {
  const std::size_t count = 300;
  const Collective& collective = *collective_named("all_reduce");
  std::mt19937 random(20240607);
  INFO("seed 20240607");
  for (const ElementType& type : element_types()) {
    for (const Reduction& reduction : reductions()) {
      for (int ranks : {1, 2, 3, 4, 7, 16, 33, 64}) {
        INFO(type.name << " " << reduction.name << " " << ranks << " ranks");
        const Reference reference(collective, type, reduction, ranks, 0);
        std::vector<Bytes> inputs;
        for (int rank = 0; rank < ranks; ++rank) {
          inputs.push_back(reference.input(rank, 0, count));
          if (reduction.op == kScaledSum) inputs.back() = scaled(inputs.back(), type, rank);
        }
        const Bytes expected = reference.expected(0, 0, count);
        std::vector<int> order(static_cast<std::size_t>(ranks));
        std::iota(order.begin(), order.end(), 0);
        for (int trial = 0; trial < 4; ++trial) {
          REQUIRE(folded(inputs, order, type, reduction) == expected);
          std::shuffle(order.begin(), order.end(), random);
        }
      }
    }
  }
}

TEST_CASE("values depend on rank, block and position") {
  const ElementType& type = *element_type_named("float");
  const Reference moved(*collective_named("all_to_all"), type, *reduction_named("sum"), 4, 0);
  CHECK(moved.input(0, 0, 100) != moved.input(1, 0, 100));
  CHECK(moved.input(0, 0, 100) != moved.input(0, 1, 100));
  CHECK(moved.expected(2, 1, 100) == moved.input(1, 2, 100));
  const Reference summed(*collective_named("reduce_scatter"), type, *reduction_named("sum"), 4, 0);
  CHECK(summed.expected(0, 0, 100) != summed.expected(1, 0, 100));
  // A result shifted by any small distance is another result.
  const Bytes tile = summed.expected(0, 0, Reference::kPeriod);
  for (std::size_t shift : {4, 64, 4096, 65520})
    CHECK_FALSE(std::equal(tile.begin() + static_cast<std::ptrdiff_t>(shift), tile.end(), tile.begin()));
}
