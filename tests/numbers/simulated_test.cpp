// The error bounds of docs/numerics.md, on schedules of up to a thousand ranks that run on the library's own kernels.
// bound_test.cpp holds the same schedules against the communicator, bit for bit.
#include "samples.h"
#include "turn.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <span>

using namespace tutti;
using namespace tutti::numbers;

namespace {

constexpr std::uint64_t kSeed = 17;

Sample make_sample(const algorithm::Algorithm& row, const FloatType& type, Operation operation, Data data, int ranks,
                   std::uint64_t elements) {
  Sample sample{&type, operation, data, {collective_of(row), ranks, 0, 0}, elements, kSeed};
  // A reduce-scatter has a block for each rank.
  if (sample.request.collective == Collective::kReduceScatter)
    sample.count = std::max<std::uint64_t>(1, elements / static_cast<unsigned>(ranks));
  return sample;
}

constexpr std::span<const Operation> kAllOperations = kRoundingOperations;

void check_bounds(const algorithm::Algorithm& row, int ranks, std::uint64_t elements,
                  std::span<const Operation> operations, bool wide_wire) {
  std::map<std::size_t, CompactSchedule> schedules;  // by element size
  for (const FloatType& type : kFloatTypes) {
    for (const Operation operation : operations) {
      for (const Data data : {Data::kZeroMean, Data::kPositive}) {
        Sample sample = make_sample(row, type, operation, data, ranks, elements);
        sample.wide_wire = wide_wire;
        if (wide_wire && !sample.uses_wide_wire()) continue;
        const auto schedule = schedules.try_emplace(type.bytes, row, sample.request, sample.count, type.bytes).first;
        const Simulated result = simulated_error(row, sample, schedule->second);
        INFO(name_of(sample.request.collective)
             << " " << row.name << " " << type.name << " " << name_of(operation) << " of " << ranks << " ranks, "
             << name_of(data) << ": error " << result.error.of_bound << " of the bound"
             << (wide_wire ? ", float32 wire" : ""));
        REQUIRE(result.error.of_bound <= 1);
        REQUIRE(result.same_everywhere);
      }
    }
  }
}

/// Of the algorithms one in `share`, others after each commit.
void check_bounds(std::initializer_list<int> rank_counts, std::uint64_t elements,
                  std::span<const Operation> operations = kAllOperations, std::size_t share = 1) {
  std::printf("simulated_test: seed %d\n", static_cast<int>(kSeed));
  std::size_t number = 0;
  for (const algorithm::Algorithm* row : reducing_rows()) {
    if (!test::has_its_turn(number++, share)) continue;
    for (const int ranks : rank_counts) {
      check_bounds(*row, ranks, elements, operations, false);
      if (row->wide_wire) check_bounds(*row, ranks, elements, ranks > 300 ? operations.first(1) : operations, true);
    }
  }
}

/// The error of exact sums that are rounded to the type: no result in this type can be nearer.
double least_rms(const Sample& sample) {
  std::vector<std::vector<std::byte>> inputs;
  for (int r = 0; r < sample.request.ranks; ++r) inputs.push_back(sample.input(r));
  const std::vector<Exact> exact = exact_results(sample, inputs);
  std::vector<std::byte> rounded(exact.size() * sample.type->bytes);
  for (std::size_t i = 0; i < exact.size(); ++i)
    store(*sample.type, static_cast<double>(exact[i].value), &rounded[i * sample.type->bytes]);
  return error_of(sample, {1, 1}, exact, rounded).rms;
}

const algorithm::Algorithm& row_named(const char* name, Collective collective) {
  const algorithm::Algorithm* row = algorithm::find(name, {collective, 4, 0, 0});
  REQUIRE(row != nullptr);
  return *row;
}

}  // namespace

TEST_CASE("sums are rounded as often as the document says", "[paths]") {
  for (const algorithm::Algorithm* row : reducing_rows()) {
    for (const int ranks :
         {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 100, 128}) {
      const schedule::Request request{collective_of(*row), ranks, 0, 0};
      const LongestPath counted = counted_path(*row, request), documented = documented_path(*row, request);
      INFO(name_of(request.collective) << " " << row->name << " " << ranks << " ranks: " << counted.operations
                                       << " and " << counted.roundings << " counted");
      CHECK(counted.operations == documented.operations);
      CHECK(counted.roundings == documented.roundings);
      if (row->wide_wire) CHECK((counted_path(*row, request, true) == documented_path(*row, request, true)));
    }
  }
}

TEST_CASE("results of 2 to 128 ranks are within the bound, the same on every rank", "[bounds]") {
  check_bounds({2, 3, 16, 33, 128}, 160);
}

TEST_CASE("results of 255 to 1024 ranks are within the bound, the same on every rank", "[.slow]") {
  check_bounds({255}, 64, kAllOperations, 2);
  // Sums alone, where each takes a second.
  check_bounds({511, 1024}, 64, kAllOperations.first(1), 4);
}

TEST_CASE("sums of 1000 and 1024 ranks are rounded as often as the document says", "[.slow]") {
  for (const algorithm::Algorithm* row : reducing_rows()) {
    for (const int ranks : {255, 256, 257, 1000, 1024}) {
      const schedule::Request request{collective_of(*row), ranks, 0, 0};
      INFO(name_of(request.collective) << " " << row->name << " " << ranks);
      CHECK((counted_path(*row, request) == documented_path(*row, request)));
    }
  }
}

TEST_CASE("what the table calls reproducible is the left fold in rank order", "[order]") {
  for (const algorithm::Algorithm* row : reducing_rows()) {
    if (!row->reproducible) continue;
    for (const int ranks : {3, 8, 100}) {
      for (const FloatType& type : kFloatTypes) {
        const Sample sample = make_sample(*row, type, Operation::kSum, Data::kZeroMean, ranks, 300);
        std::vector<std::vector<std::byte>> inputs;
        std::vector<const void*> sources;
        for (int r = 0; r < ranks; ++r) inputs.push_back(sample.input(r));
        for (const auto& input : inputs) sources.push_back(input.data());
        std::vector<std::byte> folded(inputs[0].size());
        void* to = folded.data();
        reduce_function(type.type, ReduceOp::kSum)({sources.data(), ranks, &to, 1, folded.size() / type.bytes});
        bool same_everywhere = false;
        const CompactSchedule schedule(*row, sample.request, sample.count, type.bytes);
        INFO(name_of(sample.request.collective) << " " << row->name << " " << type.name << ", " << ranks << " ranks");
        CHECK(simulate(sample, schedule, inputs, same_everywhere) == folded);
      }
    }
  }
}

TEST_CASE("max and min are exact", "[bounds]") {
  for (const algorithm::Algorithm* row : reducing_rows()) {
    for (const FloatType& type : kFloatTypes) {
      for (const Operation operation : {Operation::kMax, Operation::kMin}) {
        const Simulated result = simulated_error(*row, make_sample(*row, type, operation, Data::kZeroMean, 24, 100));
        INFO(row->name << " " << type.name << " " << name_of(operation));
        CHECK(result.error.max == 0);
        CHECK(result.same_everywhere);
      }
    }
  }
}

TEST_CASE("one-shot and two-shot sums of bfloat16 are as near as bfloat16 can be, whatever the rank count", "[rms]") {
  const FloatType& bfloat16 = kFloatTypes[0];
  REQUIRE(bfloat16.type == DataType::kBfloat16);
  for (const char* name : {"oneshot", "twoshot"}) {
    for (const int ranks : {2, 3, 5, 8, 20, 64, 200, 1024}) {
      // Every rank of a one-shot all-reduce does what the root of a reduce does.
      const algorithm::Algorithm& row = row_named(name, Collective::kReduce);
      for (const Data data : {Data::kZeroMean, Data::kPositive}) {
        Sample sample = make_sample(row, bfloat16, Operation::kSum, data, ranks, ranks < 100 ? 16384 : 4096);
        const Error error = simulated_error(row, sample).error;
        INFO(name << " " << ranks << " ranks " << name_of(data) << ": " << error.rms << ", relative "
                  << error.relative_rms);
        CHECK(error.rms <= 1.005 * least_rms(sample));
        // Sums of two numbers of one size lie half-way between two results in every second case.
        if (data == Data::kZeroMean || ranks > 2) CHECK(error.relative_rms <= 1.7e-3);
      }
    }
  }
}

TEST_CASE("a float32 wire rounds every algorithm's sums once", "[rms]") {
  for (const algorithm::Algorithm* row : reducing_rows()) {
    if (!row->wide_wire) continue;
    for (const int ranks : {3, 64, 256}) {
      for (const Data data : {Data::kZeroMean, Data::kPositive}) {
        if (collective_of(*row) == Collective::kReduceScatter && ranks > 64) continue;
        Sample sample = make_sample(*row, kFloatTypes[0], Operation::kSum, data, ranks, 1024);
        sample.wide_wire = true;
        const double rms = simulated_error(*row, sample).error.rms;
        INFO(row->name << " " << ranks << " ranks " << name_of(data) << ": " << rms);
        CHECK(rms <= 1.01 * least_rms(sample));
      }
    }
  }
}

TEST_CASE("a ring of 1024 ranks loses a third of bfloat16's positive sums, and none of them with a float32 wire",
          "[rms]") {
  const algorithm::Algorithm& ring = row_named("ring", Collective::kAllReduce);
  Sample sample = make_sample(ring, kFloatTypes[0], Operation::kSum, Data::kPositive, 1024, 1024);
  sample.plain = true;
  const double lost = simulated_error(ring, sample).error.lost;
  INFO("lost " << lost);
  CHECK(lost > 0.29);
  CHECK(lost < 0.33);
  sample.wide_wire = true;
  const double kept = simulated_error(ring, sample).error.lost;
  INFO("with a float32 wire " << kept);
  CHECK(std::abs(kept) < 0.0002);
}
