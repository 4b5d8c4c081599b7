// The reduction kernels of every instruction set that this machine has, against a scalar reference.
#include "base/reduce_variants.h"
#include "reduce_reference.h"
#include "turn.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <catch2/catch.hpp>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace tutti;
using reference::usable_variants;

namespace {

using Buffer = std::vector<unsigned char>;
constexpr std::uint64_t kSeed = 7;

/// Every fourth element has random bits (NaN, infinity, subnormal, wrapping integers), every other a number of middle
/// size, so that sums and products mean something.
void fill(std::mt19937_64& random, DataType type, unsigned char* at, std::size_t count) {
  const std::size_t size = size_of(type);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    const float number = (static_cast<float>(bits % 8001) - 4000) / 1024;
    const double wide = static_cast<double>(number) + 1e-9 * static_cast<double>(bits >> 50);
    const float fine = static_cast<float>(wide);
    const std::int64_t integer = static_cast<std::int64_t>(bits % 201) - 100;
    std::uint64_t code = static_cast<std::uint64_t>(integer);
    if (type == DataType::kFloat16) code = Float16::encode(number);
    if (type == DataType::kBfloat16) code = Bfloat16::encode(number);
    if (type == DataType::kFloat8e4m3) code = Float8e4m3::encode(number);
    if (type == DataType::kFloat8e5m2) code = Float8e5m2::encode(number);
    if (type == DataType::kFloat32) code = std::bit_cast<std::uint32_t>(fine);
    if (type == DataType::kFloat64) code = std::bit_cast<std::uint64_t>(wide);
    if (i % 4 == 3) code = random();
    std::memcpy(at + i * size, &code, size);
  }
}

/// One call: its buffers at odd addresses, and what comes of it.
struct Case {
  DataType type;
  ReduceOp op;
  int source_count;
  std::size_t count;
  bool scaled;
  int divisor;
  std::vector<Buffer> sources;
  std::vector<Buffer> scales;
  Buffer expected;

  std::size_t bytes() const { return count * size_of(type); }
  /// No two buffers start at the same place relative to a vector.
  static std::size_t misalignment(int buffer) { return 1 + static_cast<std::size_t>(buffer) * 3 % 13; }
  const unsigned char* source(int s) const { return sources[s].data() + misalignment(s); }
  /// Every third source has no scale.
  const unsigned char* scale(int s) const { return scaled && s % 3 != 2 ? scales[s].data() + 1 : nullptr; }
};

Case make_case(std::mt19937_64& random, DataType type, ReduceOp op, int source_count, std::size_t count, bool scaled,
               int divisor) {
  Case c{type, op, source_count, count, scaled, divisor, {}, {}, {}};
  for (int s = 0; s < source_count; ++s) {
    c.sources.emplace_back(Case::misalignment(s) + c.bytes());
    fill(random, type, c.sources.back().data() + Case::misalignment(s), count);
    c.scales.emplace_back(9);
    fill(random, type, c.scales.back().data() + 1, 1);
  }
  c.expected.resize(c.bytes());
  const reference::Functions expected = reference::functions_of(type);
  std::vector<const unsigned char*> elements(source_count);
  std::vector<const unsigned char*> scales;
  for (int s = 0; scaled && s < source_count; ++s) scales.push_back(c.scale(s));
  for (std::size_t offset = 0; offset < c.bytes(); offset += size_of(type)) {
    for (int s = 0; s < source_count; ++s) elements[s] = c.source(s) + offset;
    expected.reduce_element(op, elements, scales, divisor, c.expected.data() + offset);
  }
  return c;
}

std::string describe(const Case& c, ReduceVariant variant) {
  return std::string(name_of(variant)) + " " + std::string(name_of(c.type)) + " " + std::string(name_of(c.op)) +
         " sources " + std::to_string(c.source_count) + " count " + std::to_string(c.count) + " scaled " +
         std::to_string(c.scaled) + " divisor " + std::to_string(c.divisor);
}

void run(const Case& c, ReduceVariant variant, const std::vector<const void*>& sources,
         const std::vector<void*>& destinations) {
  std::vector<const void*> scales;
  for (int s = 0; s < c.source_count; ++s) scales.push_back(c.scale(s));
  ReduceArgs args;
  args.sources = sources.data();
  args.source_count = c.source_count;
  args.destinations = destinations.data();
  args.destination_count = static_cast<int>(destinations.size());
  args.count = c.count;
  args.scales = c.scaled ? scales.data() : nullptr;
  args.divisor = c.divisor;
  reduce_function_of(variant, c.type, c.op)(args);
}

/// The index of the first element that is wrong, or count.
std::size_t first_wrong(const Case& c, const unsigned char* got) {
  const reference::Functions expected = reference::functions_of(c.type);
  for (std::size_t i = 0; i < c.count; ++i) {
    const std::size_t offset = i * size_of(c.type);
    if (!expected.same(got + offset, c.expected.data() + offset)) return i;
  }
  return c.count;
}

/// Three destinations, poisoned, with bytes around them that must survive.
void check_out_of_place(const Case& c, ReduceVariant variant) {
  constexpr unsigned char kPoison = 0xa5;
  constexpr int kDestinations = 3;
  std::vector<Buffer> outputs;
  std::vector<void*> destinations;
  std::vector<const void*> sources;
  for (int d = 0; d < kDestinations; ++d) {
    outputs.emplace_back(Case::misalignment(d + 5) + c.bytes() + 64, kPoison);
    destinations.push_back(outputs[d].data() + Case::misalignment(d + 5));
  }
  for (int s = 0; s < c.source_count; ++s) sources.push_back(c.source(s));
  run(c, variant, sources, destinations);
  for (int d = 0; d < kDestinations; ++d) {
    const std::size_t start = Case::misalignment(d + 5);
    if (first_wrong(c, outputs[d].data() + start) != c.count) {
      INFO("destination " << d << " element " << first_wrong(c, outputs[d].data() + start));
      FAIL(describe(c, variant));
    }
    for (std::size_t i = 0; i < outputs[d].size(); ++i) {
      if ((i < start || i >= start + c.bytes()) && outputs[d][i] != kPoison) {
        INFO("destination " << d << " was written outside, at byte " << i << " of " << outputs[d].size());
        FAIL(describe(c, variant));
      }
    }
  }
}

/// The destination is the source at `place`; a second destination is elsewhere.
void check_in_place(Case c, ReduceVariant variant, int place) {
  Buffer other(c.bytes());
  std::vector<const void*> sources;
  for (int s = 0; s < c.source_count; ++s) sources.push_back(c.source(s));
  void* same = c.sources[place].data() + Case::misalignment(place);
  run(c, variant, sources, {same, other.data()});
  INFO("in place of source " << place);
  if (first_wrong(c, static_cast<unsigned char*>(same)) != c.count) FAIL(describe(c, variant));
  if (first_wrong(c, other.data()) != c.count) FAIL(describe(c, variant) + ", second destination");
}

/// Only these have scales and divisors.
bool is_sum(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

/// How many cases there are; of those that have their turn (turn.h), one in a number that no loop's length has a factor of.
template <class Visit>
std::size_t for_each_case(Visit visit) {
  std::printf("reduce_test: seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  std::size_t cases = 0;
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      for (const int sources : {1, 2, 3, 5, 8}) {
        for (const std::size_t count : {0, 1, 7, 64, 1000, 4099}) {
          for (const bool scaled : {false, true}) {
            for (const int divisor : {0, sources, 300}) {
              if ((scaled || divisor != 0) && !is_sum(static_cast<ReduceOp>(o))) continue;
              if (!test::has_its_turn(cases++, 7)) continue;
              visit(make_case(random, static_cast<DataType>(t), static_cast<ReduceOp>(o), sources, count, scaled,
                              divisor));
            }
          }
        }
      }
    }
  }
  return cases;
}

/// Reduces single elements, given and returned as bits, with every variant; they must agree.
std::uint64_t reduce_bits(DataType type, ReduceOp op, const std::vector<std::uint64_t>& values, int divisor = 0,
                          std::uint64_t scale = 0, bool scaled = false) {
  std::vector<const void*> sources;
  std::vector<const void*> scales(values.size(), scaled ? &scale : nullptr);
  for (const std::uint64_t& value : values) sources.push_back(&value);
  std::vector<std::uint64_t> results;
  for (const ReduceVariant variant : usable_variants()) {
    std::uint64_t result = 0;
    void* destination = &result;
    ReduceArgs args;
    args.sources = sources.data();
    args.source_count = static_cast<int>(values.size());
    args.destinations = &destination;
    args.destination_count = 1;
    args.count = 1;
    args.scales = scaled ? scales.data() : nullptr;
    args.divisor = divisor;
    reduce_function_of(variant, type, op)(args);
    results.push_back(result);
  }
  for (const std::uint64_t result : results) REQUIRE(result == results[0]);
  return results[0];
}

/// The codes of a float type that the tables below speak of.
struct Special {
  DataType type;
  std::uint64_t one, two, zero, minus_zero, infinity, minus_infinity, nan, smallest, largest;
};
constexpr Special kSpecials[] = {
    {DataType::kFloat16, 0x3c00, 0x4000, 0, 0x8000, 0x7c00, 0xfc00, 0x7e01, 1, 0x7bff},
    {DataType::kBfloat16, 0x3f80, 0x4000, 0, 0x8000, 0x7f80, 0xff80, 0x7fc1, 1, 0x7f7f},
    {DataType::kFloat32, 0x3f800000, 0x40000000, 0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00001, 1, 0x7f7fffff},
    {DataType::kFloat64, 0x3ff0000000000000, 0x4000000000000000, 0, 0x8000000000000000, 0x7ff0000000000000,
     0xfff0000000000000, 0x7ff8000000000001, 1, 0x7fefffffffffffff},
    {DataType::kFloat8e5m2, 0x3c, 0x40, 0, 0x80, 0x7c, 0xfc, 0x7e, 1, 0x7b},
    // No infinity: the largest number stands in for it.
    {DataType::kFloat8e4m3, 0x38, 0x40, 0, 0x80, 0x7e, 0xfe, 0x7f, 1, 0x7e},
};

bool is_nan(const Special& s, std::uint64_t bits) {
  return reference::functions_of(s.type).same(reinterpret_cast<const unsigned char*>(&bits),
                                              reinterpret_cast<const unsigned char*>(&s.nan));
}

}  // namespace

TEST_CASE("every kernel gives the reference's bits, out of place", "[reduce]") {
  const std::vector<ReduceVariant> variants = usable_variants();
  std::size_t tried = 0;
  const std::size_t cases = for_each_case([&](const Case& c) {
    ++tried;
    for (const ReduceVariant variant : variants) check_out_of_place(c, variant);
  });
  std::printf("reduce_test: %zu of %zu cases, %zu instruction sets\n", tried, cases, variants.size());
  CHECK(cases == 12 * 5 * 6 * (2 * 2 * 3 + 3));
  CHECK(tried >= cases / 7);
}

TEST_CASE("every kernel gives the reference's bits, in place", "[reduce]") {
  const std::vector<ReduceVariant> variants = usable_variants();
  for_each_case([&](const Case& c) {
    if (c.count == 64 || c.count == 4099) return;
    for (const ReduceVariant variant : variants) {
      check_in_place(c, variant, 0);
      check_in_place(c, variant, c.source_count - 1);
    }
  });
  CHECK_FALSE(variants.empty());
}

TEST_CASE("the kernels of all instruction sets agree, NaN for NaN", "[reduce]") {
  // The matrix above compares each with the reference; this one feeds nothing but random bits, many of them.
  std::mt19937_64 random(kSeed + 1);
  std::printf("reduce_test: seed %llu\n", static_cast<unsigned long long>(kSeed + 1));
  const std::vector<ReduceVariant> variants = usable_variants();
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      Case c{static_cast<DataType>(t), static_cast<ReduceOp>(o), 3, 20011, false, o == 4 ? 3 : 0, {}, {}, {}};
      std::vector<const void*> sources;
      for (int s = 0; s < c.source_count; ++s) {
        c.sources.emplace_back(c.bytes());
        for (unsigned char& byte : c.sources.back()) byte = static_cast<unsigned char>(random() >> 24);
        sources.push_back(c.sources.back().data());
      }
      c.expected.resize(c.bytes());
      run(c, variants[0], sources, {c.expected.data()});
      for (const ReduceVariant variant : variants) {
        Buffer output(c.bytes(), 0xa5);
        run(c, variant, sources, {output.data()});
        INFO(describe(c, variant) << " element " << first_wrong(c, output.data()));
        REQUIRE(first_wrong(c, output.data()) == c.count);
      }
    }
  }
}

TEST_CASE("max and min propagate NaN and order the zeros, in any order of sources", "[reduce]") {
  for (const Special& s : kSpecials) {
    INFO(name_of(s.type));
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      for (const std::uint64_t other : {s.one, s.zero, s.infinity, s.minus_infinity, s.nan}) {
        CHECK(is_nan(s, reduce_bits(s.type, op, {s.nan, other})));
        CHECK(is_nan(s, reduce_bits(s.type, op, {other, s.nan})));
        CHECK(is_nan(s, reduce_bits(s.type, op, {other, s.nan, s.one})));
      }
    }
    CHECK(reduce_bits(s.type, ReduceOp::kMax, {s.zero, s.minus_zero}) == s.zero);
    CHECK(reduce_bits(s.type, ReduceOp::kMax, {s.minus_zero, s.zero}) == s.zero);
    CHECK(reduce_bits(s.type, ReduceOp::kMin, {s.zero, s.minus_zero}) == s.minus_zero);
    CHECK(reduce_bits(s.type, ReduceOp::kMin, {s.minus_zero, s.zero}) == s.minus_zero);
    CHECK(reduce_bits(s.type, ReduceOp::kMax, {s.minus_zero, s.minus_zero}) == s.minus_zero);
    CHECK(reduce_bits(s.type, ReduceOp::kMin, {s.zero, s.zero}) == s.zero);
    CHECK(reduce_bits(s.type, ReduceOp::kMax, {s.one, s.infinity}) == s.infinity);
    CHECK(reduce_bits(s.type, ReduceOp::kMin, {s.minus_infinity, s.one}) == s.minus_infinity);
    CHECK(reduce_bits(s.type, ReduceOp::kMin, {s.smallest, s.one}) == s.smallest);
  }
}

TEST_CASE("sums and products of special floats follow IEEE 754", "[reduce]") {
  for (const Special& s : kSpecials) {
    INFO(name_of(s.type));
    CHECK(is_nan(s, reduce_bits(s.type, ReduceOp::kSum, {s.one, s.nan})));
    CHECK(is_nan(s, reduce_bits(s.type, ReduceOp::kProduct, {s.zero, s.nan})));
    CHECK(reduce_bits(s.type, ReduceOp::kSum, {s.minus_zero, s.minus_zero}) == s.minus_zero);
    CHECK(reduce_bits(s.type, ReduceOp::kSum, {s.minus_zero, s.zero}) == s.zero);
    CHECK(reduce_bits(s.type, ReduceOp::kSum, {s.smallest, s.zero}) == s.smallest);
    CHECK(reduce_bits(s.type, ReduceOp::kSum, {s.smallest, s.smallest}) == 2 * s.smallest);
    if (s.infinity == s.largest) continue;
    CHECK(reduce_bits(s.type, ReduceOp::kSum, {s.infinity, s.one}) == s.infinity);
    CHECK(is_nan(s, reduce_bits(s.type, ReduceOp::kSum, {s.infinity, s.minus_infinity})));
    CHECK(is_nan(s, reduce_bits(s.type, ReduceOp::kProduct, {s.infinity, s.zero})));
  }
}

#if defined(__x86_64__)
TEST_CASE("a caller's flush-to-zero, rounding and trap modes change nothing, and stay as they were", "[reduce]") {
  // The control register: flush to zero, denormals are zeros, rounding towards zero, traps on.
  constexpr unsigned kFast = 0xe040;
  const unsigned before = _mm_getcsr();
  std::uint64_t tiny[2] = {}, rounded = 0;
  _mm_setcsr(kFast);
  {
    // Catch itself must not run in these modes.
    const std::uint64_t small = 1, large = 0x3f800001, half = 0x33800000;
    std::uint64_t* const results[] = {&tiny[0], &tiny[1], &rounded};
    const std::uint64_t* const pairs[][2] = {{&small, &small}, {&small, &small}, {&large, &half}};
    const DataType types[] = {DataType::kFloat32, DataType::kFloat64, DataType::kFloat32};
    for (int i = 0; i < 3; ++i) {
      const void* sources[] = {pairs[i][0], pairs[i][1]};
      void* destination = results[i];
      reduce_function(types[i], ReduceOp::kSum)({sources, 2, &destination, 1, 1, nullptr, 0});
    }
  }
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  CHECK(tiny[0] == 2);
  CHECK(tiny[1] == 2);
  CHECK(rounded == 0x3f800002);  // a tie goes to the even neighbour, here up
  CHECK((after & 0xffc0) == kFast);
}
#endif

TEST_CASE("a sum that is too large is infinite, or the largest number in the 8-bit formats", "[reduce]") {
  for (const Special& s : kSpecials) {
    INFO(name_of(s.type));
    const bool saturates = s.type == DataType::kFloat8e4m3 || s.type == DataType::kFloat8e5m2;
    const std::uint64_t expected = saturates ? s.largest : s.infinity;
    CHECK(reduce_bits(s.type, ReduceOp::kSum, {s.largest, s.largest}) == expected);
    CHECK(reduce_bits(s.type, ReduceOp::kAverage, {s.largest, s.largest}, 2) ==
          (size_of(s.type) <= 2 && s.type != DataType::kBfloat16 ? s.largest : s.infinity));
  }
}

TEST_CASE("16- and 8-bit floats are rounded once, at the end", "[reduce]") {
  // 1 and two times half of its last place: rounding on the way would lose both halves (ties to even).
  CHECK(reduce_bits(DataType::kFloat16, ReduceOp::kSum, {0x3c00, 0x1000, 0x1000}) == 0x3c01);
  CHECK(reduce_bits(DataType::kBfloat16, ReduceOp::kSum, {0x3f80, 0x3b80, 0x3b80}) == 0x3f81);
  CHECK(reduce_bits(DataType::kFloat8e4m3, ReduceOp::kSum, {0x38, 0x18, 0x18}) == 0x39);
  CHECK(reduce_bits(DataType::kFloat8e5m2, ReduceOp::kSum, {0x3c, 0x30, 0x30}) == 0x3d);
  // From left to right: in float32, (2^24 + 1) - 2^24 is 0, and 2^24 - 2^24 + 1 is 1.
  CHECK(reduce_bits(DataType::kFloat32, ReduceOp::kSum, {0x4b800000, 0x3f800000, 0xcb800000}) == 0);
  CHECK(reduce_bits(DataType::kFloat32, ReduceOp::kSum, {0x4b800000, 0xcb800000, 0x3f800000}) == 0x3f800000);
}

TEST_CASE("a scale is applied first and rounded to the data type", "[reduce]") {
  // (1 + 25/1024) (1 + 16/1024) = 1 + 41.39/1024, which float16 rounds to 1 + 41/1024; minus 1 + 16/1024 is 25/1024.
  CHECK(reduce_bits(DataType::kFloat16, ReduceOp::kSum, {0x3c19, 0xbc00}, 0, 0x3c10, true) == 0x2640);
  CHECK(reduce_bits(DataType::kFloat16, ReduceOp::kSum, {0x3c19}, 0, 0x3c10, true) == 0x3c29);
  CHECK(reduce_bits(DataType::kFloat32, ReduceOp::kSum, {0x3f800000, 0x40000000}, 0, 0x40400000, true) == 0x41100000);
  CHECK(reduce_bits(DataType::kUint8, ReduceOp::kSum, {200, 3}, 0, 2, true) == ((400 & 255) + 6));
  CHECK(reduce_bits(DataType::kInt64, ReduceOp::kSum, {5}, 0, static_cast<std::uint64_t>(-3), true) ==
        static_cast<std::uint64_t>(-15));
}

namespace {

/// Averages of what is in `dividends`, compared with the language's division.
template <class T>
void check_quotients(DataType type, const std::vector<T>& dividends, int divisor) {
  std::vector<T> quotients(dividends.size()), expected(dividends.size());
  for (std::size_t i = 0; i < dividends.size(); ++i) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    expected[i] = static_cast<T>(static_cast<Wide>(dividends[i]) / static_cast<Wide>(divisor));
  }
  const void* source = dividends.data();
  void* destination = quotients.data();
  ReduceArgs args;
  args.sources = &source;
  args.source_count = 1;
  args.destinations = &destination;
  args.destination_count = 1;
  args.count = dividends.size();
  args.divisor = divisor;
  for (const ReduceVariant variant : usable_variants()) {
    std::fill(quotients.begin(), quotients.end(), T{1});
    reduce_function_of(variant, type, ReduceOp::kAverage)(args);
    INFO(name_of(type) << " divisor " << divisor << " " << name_of(variant));
    CHECK(quotients == expected);
  }
}

/// Numbers around the multiples of the divisor, around the powers of two, and some more.
template <class T>
std::vector<T> dividends_of(int divisor, std::mt19937_64& random) {
  std::vector<T> all;
  const auto add = [&all](std::uint64_t middle) {
    for (std::uint64_t bits = middle - 2; bits != middle + 3; ++bits) all.push_back(static_cast<T>(bits));
  };
  for (int bit = 0; bit < 64; ++bit) add(std::uint64_t{1} << bit);
  for (int i = 0; i < 32; ++i) add(static_cast<T>(random()) / static_cast<std::uint64_t>(divisor) * divisor);
  for (int i = 0; i < 32; ++i) all.push_back(static_cast<T>(random()));
  return all;
}

}  // namespace

TEST_CASE("an average of integers is the language's quotient", "[reduce]") {
  std::mt19937_64 random(kSeed);
  std::vector<std::int8_t> all_signed;
  std::vector<std::uint8_t> all_unsigned;
  for (int i = 0; i < 256; ++i) {
    all_signed.push_back(static_cast<std::int8_t>(i));
    all_unsigned.push_back(static_cast<std::uint8_t>(i));
  }
  for (int divisor = 1; divisor <= 1030; ++divisor) {
    check_quotients(DataType::kInt8, all_signed, divisor);
    check_quotients(DataType::kUint8, all_unsigned, divisor);
    check_quotients(DataType::kInt32, dividends_of<std::int32_t>(divisor, random), divisor);
    check_quotients(DataType::kUint32, dividends_of<std::uint32_t>(divisor, random), divisor);
    check_quotients(DataType::kInt64, dividends_of<std::int64_t>(divisor, random), divisor);
    check_quotients(DataType::kUint64, dividends_of<std::uint64_t>(divisor, random), divisor);
  }
}

TEST_CASE("integers wrap, and an average truncates towards zero", "[reduce]") {
  CHECK(reduce_bits(DataType::kInt8, ReduceOp::kSum, {0x7f, 1}) == 0x80);
  CHECK(reduce_bits(DataType::kUint8, ReduceOp::kSum, {0xff, 2}) == 1);
  CHECK(reduce_bits(DataType::kInt32, ReduceOp::kSum, {0x7fffffff, 1}) == 0x80000000);
  CHECK(reduce_bits(DataType::kInt32, ReduceOp::kProduct, {0x10001, 0x10001}) == 0x20001);
  CHECK(reduce_bits(DataType::kInt64, ReduceOp::kSum, {0x7fffffffffffffff, 1}) == 0x8000000000000000);
  CHECK(reduce_bits(DataType::kUint64, ReduceOp::kProduct, {0x100000001, 0x100000001}) == 0x200000001);
  CHECK(reduce_bits(DataType::kInt8, ReduceOp::kMax, {0x80, 1}) == 1);
  CHECK(reduce_bits(DataType::kUint8, ReduceOp::kMax, {0x80, 1}) == 0x80);
  CHECK(reduce_bits(DataType::kUint64, ReduceOp::kMin, {0x8000000000000000, 1}) == 1);
  CHECK(reduce_bits(DataType::kInt64, ReduceOp::kMin, {0x8000000000000000, 1}) == 0x8000000000000000);
  // -7 / 2 = -3; the sum wraps before it is divided; unsigned values divide as unsigned.
  CHECK(reduce_bits(DataType::kInt32, ReduceOp::kAverage, {0xfffffffc, 0xfffffffd}, 2) == 0xfffffffd);
  CHECK(reduce_bits(DataType::kInt8, ReduceOp::kAverage, {100, 100}, 2) == 0xe4);
  CHECK(reduce_bits(DataType::kUint8, ReduceOp::kAverage, {100, 100}, 2) == 100);
  CHECK(reduce_bits(DataType::kUint32, ReduceOp::kAverage, {0xfffffffe, 0}, 2) == 0x7fffffff);
}

TEST_CASE("the default kernel is one of the usable ones", "[reduce]") {
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      bool found = false;
      for (const ReduceVariant variant : usable_variants()) {
        const auto type = static_cast<DataType>(t);
        const auto op = static_cast<ReduceOp>(o);
        found = found || reduce_function(type, op) == reduce_function_of(variant, type, op);
      }
      CHECK(found);
    }
  }
}
