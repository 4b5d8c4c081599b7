// What docs/numerics.md says of sums that round, through the communicator: every result is, bit for bit, what the schedule's
// steps give on the library's kernels (samples.h), the same on every rank and within the bound. One algorithm a process
// (NCCL_ALGO), with TUTTI_WIRE or without; all ranks in one thread.
#include "communicator_call.h"
#include "samples.h"

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

using namespace tutti;
using namespace tutti::numbers;
using tutti::test::Ranks;

namespace {

constexpr std::uint64_t kSeed = 23;

Buffers call(const Ranks& ranks, const Sample& sample, const Buffers& inputs) {
  constexpr ncclRedOp_t kOps[] = {ncclSum, ncclAvg, ncclProd, ncclSum, ncclMax, ncclMin};
  const auto type = static_cast<ncclDataType_t>(sample.type->type);
  std::vector<std::uint64_t> factors;
  for (int r = 0; r < ranks.count(); ++r) factors.push_back(sample.scale(r));
  const auto run = [&](const Operations& ops) {
    return reduce(ranks, sample.request, type, sample.type->bytes, sample.count, ops, inputs);
  };
  if (sample.operation == Operation::kScaledSum) return run(Operations(ranks, type, factors));
  return run(Operations(ranks, kOps[static_cast<int>(sample.operation)]));
}

/// All blocks of results in one row; an all-reduce's outputs must be equal.
std::vector<std::byte> joined(const Sample& sample, const Buffers& outputs) {
  if (sample.request.collective == Collective::kReduceScatter) {
    std::vector<std::byte> all;
    for (const auto& output : outputs) all.insert(all.end(), output.begin(), output.end());
    return all;
  }
  if (sample.request.collective == Collective::kAllReduce) {
    for (const auto& output : outputs) CHECK(output == outputs[0]);
  }
  return outputs[static_cast<std::size_t>(sample.request.root)];
}

void check_call(const Ranks& ranks, const algorithm::Algorithm& row, const Sample& sample) {
  INFO(name_of(sample.request.collective)
       << " " << row.name << " " << sample.type->name << " " << name_of(sample.operation) << " of " << ranks.count()
       << " ranks, " << name_of(sample.data) << ", count " << sample.count);
  Buffers inputs;
  for (int r = 0; r < ranks.count(); ++r) inputs.push_back(sample.input(r));
  const std::vector<std::byte> results = joined(sample, call(ranks, sample, inputs));
  const CompactSchedule schedule(row, sample.request, sample.count, sample.type->bytes);
  bool same_everywhere = true;
  CHECK(results == simulate(sample, schedule, inputs, same_everywhere));
  const Error error = error_of(sample, documented_path(row, sample.request, sample.uses_wide_wire()),
                               exact_results(sample, inputs), results);
  INFO("error " << error.of_bound << " of the bound");
  CHECK(error.of_bound <= 1);
}

bool wire_is_wide() {
  const char* wire = std::getenv("TUTTI_WIRE");
  return wire != nullptr && std::string(wire) == "float32";
}

const char* forced_algorithm() {
  const char* name = std::getenv("NCCL_ALGO");
  REQUIRE(name != nullptr);
  return name;
}

}  // namespace

TEST_CASE("the communicator's results are the schedule's, bit for bit, and within the bound", "[bounds]") {
  const std::string name = forced_algorithm();
  std::printf("bound_test: %s, seed %d\n", name.c_str(), static_cast<int>(kSeed));
  int calls = 0;
  for (const int count : {2, 3, 5, 8, 16, 33, 64}) {
    const Ranks ranks(count);
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
      const int root = is_rooted(collective) ? count / 2 : 0;
      const algorithm::Algorithm* row = algorithm::find(name, {collective, count, root, 0});
      if (row == nullptr) continue;
      for (const FloatType& type : kFloatTypes) {
        for (int o = 0; o <= static_cast<int>(Operation::kMin); ++o) {
          if (count == 64 && o % 2 != 0) continue;
          const auto operation = static_cast<Operation>(o);
          const Data data = (o + count) % 2 == 0 ? Data::kZeroMean : Data::kPositive;
          for (const std::uint64_t elements : {std::uint64_t{3}, std::uint64_t{97}}) {
            if (elements == 3 && count > 8) continue;
            Sample sample{&type, operation, data, {collective, count, root, 0}, elements, kSeed};
            sample.wide_wire = wire_is_wide();
            check_call(ranks, *row, sample);
            ++calls;
          }
        }
      }
    }
  }
  CHECK(calls >= 300);
}
