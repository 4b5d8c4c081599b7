// What docs/numerics.md promises of sums that round: every rank gets the same bits, within the bound there; and in
// reproducible mode exactly the left fold in rank order, whatever the count. All ranks in one thread; meson runs it once for
// each algorithm (NCCL_ALGO). The bounds of each algorithm by itself, and more ranks and operations: tests/numbers.
#include "in_process.h"
#include "../numbers/float_type.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using tutti::test::Ranks;

namespace {

constexpr unsigned kSeed = 11;
constexpr std::uint64_t kPoison = 0xb9b9b9b9b9b9b9b9;

using Type = tutti::numbers::FloatType;
using tutti::numbers::decode;
using tutti::numbers::encode;

ncclDataType_t code_of(const Type& type) { return static_cast<ncclDataType_t>(type.type); }

/// Elements of one type, as bytes.
class Buffer {
 public:
  Buffer(const Type& type, std::size_t count) : type_(&type), bytes_(count * type.bytes) {
    for (std::size_t i = 0; i < count; ++i) put(i, kPoison);
  }
  void* data() { return bytes_.data(); }
  void put(std::size_t i, std::uint64_t bits) { std::memcpy(&bytes_[i * type_->bytes], &bits, type_->bytes); }
  std::uint64_t bits(std::size_t i) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &bytes_[i * type_->bytes], type_->bytes);
    return bits;
  }
  double value(std::size_t i) const { return decode(*type_, bits(i)); }

 private:
  const Type* type_;
  std::vector<unsigned char> bytes_;
};

/// Numbers of both signs and many sizes, hardly any sum of which is exact. Small enough that no sum is too large.
std::vector<Buffer> make_inputs(const Type& type, int ranks, std::size_t count) {
  std::mt19937_64 random(kSeed);
  std::vector<Buffer> inputs;
  for (int r = 0; r < ranks; ++r) {
    inputs.emplace_back(type, count);
    for (std::size_t i = 0; i < count; ++i) {
      const double sign = random() % 3 == 0 ? -1 : 1;
      const double value =
          (1 + std::ldexp(static_cast<double>(random() >> 11), -53)) * std::ldexp(1.0, int(random() % 4));
      inputs.back().put(i, encode(type, sign * value));
    }
  }
  return inputs;
}

std::vector<Buffer> all_reduce(const Ranks& ranks, const Type& type, std::vector<Buffer>& inputs, std::size_t count,
                               ncclRedOp_t op) {
  std::vector<Buffer> outputs(static_cast<std::size_t>(ranks.count()), Buffer(type, count));
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < ranks.count(); ++r) {
    CHECK(ncclAllReduce(inputs[r].data(), outputs[r].data(), count, code_of(type), op, ranks[r], nullptr) ==
          ncclSuccess);
  }
  const ncclResult_t result = ncclGroupEnd();
  INFO(ncclGetLastError(nullptr));
  REQUIRE(result == ncclSuccess);
  return outputs;
}

/// n - 1 additions, each of which may round, and a division for an average. The partial sums are at most the sum of magnitudes.
double bound(const Type& type, const std::vector<Buffer>& inputs, std::size_t i, bool average) {
  const auto n = static_cast<double>(inputs.size());
  const double roundings = n - 1 + (average ? 1 : 0);
  double magnitude = 0;
  for (const Buffer& input : inputs) magnitude += std::abs(input.value(i));
  const auto growth = [](double unit, double times) {
    return std::expm1(times * std::log1p(unit));
  };  // (1 + unit)^times - 1
  const double narrow = growth(type.unit, roundings);
  const double accumulator = type.bytes < 4 ? growth(0x1p-24, n) : 0;  // 16 and 8 bits add in float32
  return ((narrow + accumulator) * magnitude + roundings * type.least) / (average ? n : 1) + (average ? type.least : 0);
}

long double exact(const std::vector<Buffer>& inputs, std::size_t i) {
  long double sum = 0;
  for (const Buffer& input : inputs) sum += input.value(i);
  return sum;
}

/// ((r0 + r1) + r2) + ... in the accumulator's type, rounded once.
template <class Accumulator>
std::uint64_t left_fold(const Type& type, const std::vector<Buffer>& inputs, std::size_t i) {
  volatile auto sum = static_cast<Accumulator>(inputs[0].value(i));
  for (std::size_t r = 1; r < inputs.size(); ++r) sum = sum + static_cast<Accumulator>(inputs[r].value(i));
  return encode(type, static_cast<double>(sum));
}

bool is_reproducible() {
  const char* set = std::getenv("TUTTI_REPRODUCIBLE");
  return set != nullptr && std::string(set) == "1";
}

void check_sums(const Ranks& ranks, const Type& type, std::size_t count) {
  std::vector<Buffer> inputs = make_inputs(type, ranks.count(), count);
  for (const ncclRedOp_t op : {ncclSum, ncclAvg}) {
    const std::vector<Buffer> outputs = all_reduce(ranks, type, inputs, count, op);
    std::size_t differ = 0, far = 0, other_fold = 0;
    for (std::size_t i = 0; i < count; ++i) {
      for (const Buffer& output : outputs) differ += output.bits(i) != outputs[0].bits(i);
      const long double wanted = exact(inputs, i) / (op == ncclAvg ? ranks.count() : 1);
      // Not "above": a NaN must count too.
      far += !(std::abs(outputs[0].value(i) - wanted) <= bound(type, inputs, i, op == ncclAvg));
      if (op != ncclSum) continue;
      const std::uint64_t fold =
          code_of(type) == ncclFloat64 ? left_fold<double>(type, inputs, i) : left_fold<float>(type, inputs, i);
      other_fold += outputs[0].bits(i) != fold;
    }
    INFO(type.name << " count " << count << " ranks " << ranks.count() << (op == ncclAvg ? " average" : " sum"));
    CHECK(differ == 0);
    CHECK(far == 0);
    if (is_reproducible()) CHECK(other_fold == 0);
  }
}

}  // namespace

TEST_CASE(
    "sums that round: the same bits on every rank, within the bound, and in rank order where that was asked for") {
  std::printf("rounding_test: seed %u\n", kSeed);
  for (const int count : {2, 3, 4, 5, 8}) {
    const Ranks ranks(count);
    for (const Type& type : tutti::numbers::kFloatTypes) {
      for (const std::size_t elements : {std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{70001}}) {
        if (elements > 1000 && count != 4) continue;
        check_sums(ranks, type, elements);
      }
    }
  }
}

TEST_CASE("a communicator's own word on reproducible wins over TUTTI_REPRODUCIBLE") {
  if (!is_reproducible()) return;
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comm = nullptr;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.reproducible = 0;
  REQUIRE(tuttiCommInitRank(&comm, 1, id, 0, &config) == ncclSuccess);
  char text[4096];
  REQUIRE(tuttiExplain(comm, tuttiAllReduce, 1000, ncclFloat, ncclSum, 0, text, sizeof text, nullptr) == ncclSuccess);
  INFO(text);
  CHECK(std::strstr(text, "reproducible") == nullptr);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("a communicator that asks for reproducible sums refuses an algorithm that cannot give them") {
  const char* algorithm = std::getenv("NCCL_ALGO");
  if (algorithm == nullptr) return;
  const std::string name = algorithm;
  const bool can = name.empty() || name == "oneshot" || name == "twoshot";
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comms[2] = {};
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    config.reproducible = r;  // one that asks is enough
    CHECK(tuttiCommInitRank(&comms[r], 2, id, r, &config) == ncclSuccess);
  }
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  // Tiny, too: an announce line adds in rank order, but a forced algorithm is forced.
  for (const std::size_t count : {std::size_t{3}, std::size_t{1000}}) {
    std::vector<float> data(2 * count, 1);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 2; ++r) {
      float* at = data.data() + static_cast<std::size_t>(r) * count;
      CHECK(ncclAllReduce(at, at, count, ncclFloat, ncclSum, comms[r], nullptr) == ncclSuccess);
    }
    const ncclResult_t result = ncclGroupEnd();
    const std::string reason = ncclGetLastError(nullptr);
    INFO(name << " count " << count << ": " << reason);
    CHECK(result == (can ? ncclSuccess : ncclInvalidUsage));
    if (!can) CHECK_THAT(reason, Catch::Contains(name) && Catch::Contains("reproducible"));
  }
  for (ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
}
