// A float32 wire (tuttiConfig_t.wideWire): sums of 16- and 8-bit floats are rounded once, whatever the algorithm, and the
// same on every rank; without it a ring and a tree round at every hop. All ranks in one thread; meson runs it once for each
// algorithm (NCCL_ALGO) and way that messages take.
#include "base/float_formats.h"
#include "in_process.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr unsigned kSeed = 31;

/// `unit`: half the distance from 1 to the next number. `least`: half the smallest number.
struct Type {
  ncclDataType_t code;
  std::size_t bytes;
  double unit;
  double least;
  const char* name;
};
const Type kTypes[] = {{ncclFloat16, 2, 0x1p-11, 0x1p-25, "float16"},
                       {ncclBfloat16, 2, 0x1p-8, 0x1p-134, "bfloat16"},
                       {ncclFloat8e4m3, 1, 0x1p-4, 0x1p-10, "float8e4m3"},
                       {ncclFloat8e5m2, 1, 0x1p-3, 0x1p-17, "float8e5m2"}};
const Type& kBfloat16 = kTypes[1];

std::uint32_t encode(const Type& type, float value) {
  switch (type.code) {
    case ncclFloat16: return tutti::Float16::encode(value);
    case ncclBfloat16: return tutti::Bfloat16::encode(value);
    case ncclFloat8e4m3: return tutti::Float8e4m3::encode(value);
    default: return tutti::Float8e5m2::encode(value);
  }
}
float decode(const Type& type, std::uint32_t code) {
  switch (type.code) {
    case ncclFloat16: return tutti::Float16::decode(code);
    case ncclBfloat16: return tutti::Bfloat16::decode(code);
    case ncclFloat8e4m3: return tutti::Float8e4m3::decode(code);
    default: return tutti::Float8e5m2::decode(code);
  }
}

class Buffer {
 public:
  Buffer(const Type& type, std::size_t count) : type_(&type), bytes_(count * type.bytes, 0xb9) {}
  void* data() { return bytes_.data(); }
  std::size_t count() const { return bytes_.size() / type_->bytes; }
  void put(std::size_t i, float value) {
    const std::uint32_t code = encode(*type_, value);
    std::memcpy(&bytes_[i * type_->bytes], &code, type_->bytes);
  }
  float value(std::size_t i) const {
    std::uint32_t code = 0;
    std::memcpy(&code, &bytes_[i * type_->bytes], type_->bytes);
    return decode(*type_, code);
  }
  bool operator==(const Buffer& other) const { return bytes_ == other.bytes_; }

 private:
  const Type* type_;
  std::vector<unsigned char> bytes_;
};

/// A communicator whose last rank has asked for the float32 wire, or no rank has.
class Ranks {
 public:
  Ranks(int count, bool wide) : comms_(static_cast<std::size_t>(count)) {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int rank = 0; rank < count; ++rank) {
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.wideWire = wide && rank == count - 1;
      CHECK(tuttiCommInitRank(&comms_[static_cast<std::size_t>(rank)], count, id, rank, &config) == ncclSuccess);
    }
    REQUIRE(ncclGroupEnd() == ncclSuccess);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    for (ncclComm_t comm : comms_) ncclCommAbort(comm);
  }
  ncclComm_t operator[](std::size_t rank) const { return comms_[rank]; }
  std::size_t count() const { return comms_.size(); }

 private:
  std::vector<ncclComm_t> comms_;
};

/// Numbers of one sign or of both, of many sizes, hardly any sum of which is exact.
std::vector<Buffer> make_inputs(const Type& type, std::size_t ranks, std::size_t count, bool positive) {
  std::mt19937_64 random(kSeed + count);
  std::vector<Buffer> inputs;
  for (std::size_t r = 0; r < ranks; ++r) {
    inputs.emplace_back(type, count);
    for (std::size_t i = 0; i < count; ++i) {
      const double size = std::ldexp(1 + std::ldexp(static_cast<double>(random() >> 11), -53), int(random() % 4));
      inputs[r].put(i, static_cast<float>(!positive && random() % 3 == 0 ? -size : size));
    }
  }
  return inputs;
}

/// Runs `call(rank)` for every rank in one group.
template <class Call>
void group(const Ranks& ranks, Call call) {
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (std::size_t r = 0; r < ranks.count(); ++r) CHECK(call(r) == ncclSuccess);
  const ncclResult_t result = ncclGroupEnd();
  INFO(ncclGetLastError(nullptr));
  REQUIRE(result == ncclSuccess);
}

/// Each element: the sum in float64 (exact here), and how far a sum that was rounded once may be from it: half a unit in
/// the last place of the result, and what float32 additions lose.
struct Promise {
  double sum = 0;
  double magnitude = 0;
  double most = 0;
};
Promise promise(const Type& type, const std::vector<Buffer>& inputs, std::size_t i, double divisor) {
  Promise p;
  for (const Buffer& input : inputs) {
    p.sum += input.value(i);
    p.magnitude += std::abs(input.value(i));
  }
  const double float32 = static_cast<double>(inputs.size() + 1) * 0x1p-24 * p.magnitude / divisor;
  p.sum /= divisor;
  p.most = type.unit * (std::abs(p.sum) + float32) + float32 + type.least;
  return p;
}

/// Elements [first, first + count) of the sums in `output`, which begins with element `first`: how many are too far off.
std::size_t too_far(const Type& type, const std::vector<Buffer>& inputs, const Buffer& output, std::size_t first,
                    double divisor = 1) {
  std::size_t far = 0;
  for (std::size_t i = 0; i < output.count(); ++i) {
    const Promise p = promise(type, inputs, first + i, divisor);
    far += !(std::abs(output.value(i) - p.sum) <= p.most);  // counts a NaN too
  }
  return far;
}

/// How many elements of an all_reduce are further off than one rounding; every rank has the same bits.
std::size_t all_reduce_far(const Ranks& ranks, const Type& type, std::vector<Buffer>& inputs, ncclRedOp_t op,
                           bool in_place) {
  const std::size_t count = inputs[0].count();
  std::vector<Buffer> outputs(ranks.count(), Buffer(type, count));
  if (in_place) outputs = inputs;
  group(ranks, [&](std::size_t r) {
    const void* input = in_place ? outputs[r].data() : inputs[r].data();
    return ncclAllReduce(input, outputs[r].data(), count, type.code, op, ranks[r], nullptr);
  });
  for (const Buffer& output : outputs) CHECK(output == outputs[0]);
  return too_far(type, inputs, outputs[0], 0, op == ncclAvg ? static_cast<double>(ranks.count()) : 1);
}

std::size_t reduce_far(const Ranks& ranks, const Type& type, std::vector<Buffer>& inputs) {
  const std::size_t count = inputs[0].count();
  Buffer output(type, count);
  group(ranks, [&](std::size_t r) {
    return ncclReduce(inputs[r].data(), output.data(), count, type.code, ncclSum, 1, ranks[r], nullptr);
  });
  return too_far(type, inputs, output, 0);
}

std::size_t reduce_scatter_far(const Ranks& ranks, const Type& type, std::vector<Buffer>& inputs) {
  const std::size_t block = inputs[0].count() / ranks.count();
  std::vector<Buffer> outputs(ranks.count(), Buffer(type, block));
  group(ranks, [&](std::size_t r) {
    return ncclReduceScatter(inputs[r].data(), outputs[r].data(), block, type.code, ncclSum, ranks[r], nullptr);
  });
  std::size_t far = 0;
  for (std::size_t r = 0; r < ranks.count(); ++r) far += too_far(type, inputs, outputs[r], r * block);
  return far;
}

/// "" in a run of no algorithm in particular.
std::string algorithm() {
  const char* set = std::getenv("NCCL_ALGO");
  return set == nullptr ? "" : set;
}
bool has_hops() { return algorithm() == "ring" || algorithm() == "tree"; }

std::string explain(const Ranks& ranks, ncclDataType_t type, ncclRedOp_t op) {
  std::string text(1 << 16, '\0');
  REQUIRE(tuttiExplain(ranks[0], tuttiAllReduce, 100000, type, op, 0, text.data(), text.size(), nullptr) ==
          ncclSuccess);
  return text.c_str();
}

}  // namespace

TEST_CASE("with a float32 wire a sum is rounded once, on 2 to 8 ranks, and has the same bits on each") {
  if (algorithm() == "halving_doubling") return;
  std::printf("wire_test: seed %u\n", kSeed);
  for (int n = 2; n <= 8; ++n) {
    const Ranks ranks(n, true);
    for (const Type& type : kTypes) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{130}, std::size_t{5000}, std::size_t{70001}}) {
        if (count > 5000 && n != 5) continue;
        for (const bool positive : {false, true}) {
          std::vector<Buffer> inputs = make_inputs(type, ranks.count(), count, positive);
          INFO(type.name << " ranks " << n << " count " << count << (positive ? " positive" : ""));
          CHECK(all_reduce_far(ranks, type, inputs, ncclSum, positive) == 0);
          CHECK(all_reduce_far(ranks, type, inputs, ncclAvg, !positive) == 0);
          CHECK(reduce_far(ranks, type, inputs) == 0);
          if (count >= 64) CHECK(reduce_scatter_far(ranks, type, inputs) == 0);
        }
      }
    }
  }
}

TEST_CASE("without it a ring and a tree round on the way") {
  if (!has_hops()) return;
  const Ranks ranks(8, false);
  for (const Type& type : kTypes) {
    std::vector<Buffer> inputs = make_inputs(type, 8, 5000, true);
    INFO(type.name);
    CHECK(all_reduce_far(ranks, type, inputs, ncclSum, false) > 100);
    CHECK(reduce_far(ranks, type, inputs) > 100);
  }
}

TEST_CASE("small numbers are not lost next to a large one") {
  if (algorithm() != "ring") return;
  for (const bool wide : {false, true}) {
    const Ranks ranks(8, wide);
    std::vector<Buffer> inputs(8, Buffer(kBfloat16, 4096));
    for (std::size_t r = 0; r < 8; ++r) {
      for (std::size_t i = 0; i < 4096; ++i) inputs[r].put(i, r == i % 8 ? 256.0f : 1.0f);
    }
    Buffer output(kBfloat16, 4096);
    group(ranks, [&](std::size_t r) {
      Buffer& to = r == 3 ? output : inputs[r];
      return ncclAllReduce(inputs[r].data(), to.data(), 4096, ncclBfloat16, ncclSum, ranks[r], nullptr);
    });
    std::size_t right = 0;
    for (std::size_t i = 0; i < 4096; ++i) right += output.value(i) == 264;  // 263, rounded to even
    INFO((wide ? "float32 wire" : "bfloat16 wire"));
    CHECK((right == 4096) == wide);
  }
}

TEST_CASE("each rank's scale is applied first and rounded, then the sum once") {
  if (algorithm() == "halving_doubling") return;
  const Ranks ranks(5, true);
  const std::size_t count = 3000;
  std::vector<Buffer> inputs = make_inputs(kBfloat16, 5, count, true);
  std::vector<Buffer> scaled(5, Buffer(kBfloat16, count));
  std::vector<ncclRedOp_t> ops(5);
  for (std::size_t r = 0; r < 5; ++r) {
    Buffer scale(kBfloat16, 1);
    scale.put(0, 1.0f + 0.3f * static_cast<float>(r));
    for (std::size_t i = 0; i < count; ++i) scaled[r].put(i, inputs[r].value(i) * scale.value(0));
    REQUIRE(ncclRedOpCreatePreMulSum(&ops[r], scale.data(), ncclBfloat16, ncclScalarHostImmediate, ranks[r]) ==
            ncclSuccess);
  }
  std::vector<Buffer> outputs(5, Buffer(kBfloat16, count));
  group(ranks, [&](std::size_t r) {
    return ncclAllReduce(inputs[r].data(), outputs[r].data(), count, ncclBfloat16, ops[r], ranks[r], nullptr);
  });
  for (const Buffer& output : outputs) CHECK(output == outputs[0]);
  CHECK(too_far(kBfloat16, scaled, outputs[0], 0) == 0);
}

TEST_CASE("a split keeps the float32 wire, also without the rank that asked for it") {
  if (!has_hops()) return;
  const Ranks ranks(4, true);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t children[4] = {};
  group(ranks, [&](std::size_t r) { return ncclCommSplit(ranks[r], int(r) / 2, int(r), &children[r], &config); });
  for (ncclComm_t child : children) {
    char text[4096];
    CHECK(tuttiExplain(child, tuttiAllReduce, 1000, ncclBfloat16, ncclSum, 0, text, sizeof text, nullptr) ==
          ncclSuccess);
    CHECK_THAT(text, Catch::Contains("\nwire: partial sums of bfloat16 travel as float32"));
  }
  for (ncclComm_t child : children) CHECK(ncclCommAbort(child) == ncclSuccess);
}

TEST_CASE("the plan says when partial sums are float32, and nothing else is concerned") {
  if (algorithm() == "halving_doubling") return;
  const Ranks wide(4, true);
  const Ranks narrow(4, false);
  CHECK_THAT(explain(wide, ncclBfloat16, ncclSum),
             Catch::Contains("\nwire: partial sums of bfloat16 travel as float32"));
  CHECK_THAT(explain(wide, ncclBfloat16, ncclSum), !Catch::Contains("halving_doubling"));
  for (const auto& [type, op] :
       {std::pair{ncclBfloat16, ncclMax}, std::pair{ncclFloat32, ncclSum}, std::pair{ncclInt32, ncclSum}}) {
    CHECK(explain(wide, type, op) == explain(narrow, type, op));
  }
  CHECK_THAT(explain(narrow, ncclBfloat16, ncclSum), !Catch::Contains("wire:"));
}

TEST_CASE("an algorithm that rounds on the way contradicts a float32 wire") {
  if (algorithm() != "halving_doubling") return;
  const Ranks ranks(4, true);
  std::vector<Buffer> inputs(4, Buffer(kBfloat16, 1000));
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(ncclAllReduce(inputs[r].data(), inputs[r].data(), 1000, ncclBfloat16, ncclSum, ranks[r], nullptr) ==
          ncclSuccess);
  }
  tutti::test::check_refused(ncclGroupEnd(), ncclInvalidUsage,
                             {"halving_doubling", "float32 wire", "ring, tree, oneshot, twoshot"});
}

TEST_CASE("TUTTI_WIRE is the default of communicators that do not say otherwise") {
  const char* set = std::getenv("TUTTI_WIRE");
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitAll(&comm, 1, nullptr) == ncclSuccess);
  char text[4096];
  REQUIRE(tuttiExplain(comm, tuttiAllReduce, 1000, ncclBfloat16, ncclSum, 0, text, sizeof text, nullptr) ==
          ncclSuccess);
  INFO(text);
  CHECK((std::strstr(text, "\nwire: ") != nullptr) == (set != nullptr && std::string(set) == "float32"));
  CHECK(ncclCommAbort(comm) == ncclSuccess);
  const Ranks otherwise(2, false);
  CHECK_THAT(explain(otherwise, ncclBfloat16, ncclSum), !Catch::Contains("wire:"));
}
