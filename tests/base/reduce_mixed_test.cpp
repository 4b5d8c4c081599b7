// Reductions with float32 among sources and destinations of 16 or 8 bits, of every instruction set that this machine has,
// against a scalar reference.
#include "base/reduce_mixed.h"
#include "base/reduce_variants.h"
#include "reduce_reference.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace tutti;
using reference::usable_variants;

namespace {

constexpr std::uint64_t kSeed = 23;
constexpr DataType kNarrow[] = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2};

using Buffer = std::vector<unsigned char>;

MixedKernels kernels_of(ReduceVariant variant, DataType type, ReduceOp op) {
  return {reduce_function_of(variant, type, op), reduce_function_of(variant, DataType::kFloat32, op),
          float_conversion_of(variant, type), size_of(type)};
}

float read_wide(const unsigned char* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}
float read(DataType type, const unsigned char* at) {
  switch (type) {
    case DataType::kFloat16: return reference::accumulator<DataType::kFloat16>(at);
    case DataType::kBfloat16: return reference::accumulator<DataType::kBfloat16>(at);
    case DataType::kFloat8e4m3: return reference::accumulator<DataType::kFloat8e4m3>(at);
    default: return reference::accumulator<DataType::kFloat8e5m2>(at);
  }
}
void write(DataType type, unsigned char* at, float value) {
  switch (type) {
    case DataType::kFloat16: return reference::put<DataType::kFloat16>(at, value);
    case DataType::kBfloat16: return reference::put<DataType::kBfloat16>(at, value);
    case DataType::kFloat8e4m3: return reference::put<DataType::kFloat8e4m3>(at, value);
    default: return reference::put<DataType::kFloat8e5m2>(at, value);
  }
}
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

/// Every seventh number has random bits; the others need more bits than a narrow type has.
float random_number(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if (bits % 7 == 0) return std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32));
  return std::ldexp(static_cast<float>(bits >> 40) - 8388608.0f, static_cast<int>(bits % 13) - 26);
}

/// One call at odd addresses: which buffers are wide, what they hold, and the sum as float32.
struct Case {
  DataType type;
  ReduceOp op;
  std::size_t count = 0;
  int divisor = 0;
  std::vector<std::uint8_t> wide_sources;
  std::vector<Buffer> sources;
  std::vector<Buffer> scales;  ///< by source, empty: none
  std::vector<float> expected;

  std::size_t element_bytes(bool wide) const { return wide ? 4 : size_of(type); }
  std::size_t bytes(bool wide) const { return count * element_bytes(wide); }
  std::string name(ReduceVariant variant) const {
    std::string text(name_of(variant));
    for (const std::string& part : {std::string(name_of(type)), std::string(name_of(op))}) text += " " + part;
    text += " count " + std::to_string(count) + " divisor " + std::to_string(divisor) + " sources ";
    for (std::size_t s = 0; s < sources.size(); ++s) text += wide_sources[s] ? 'w' : scales[s].empty() ? 'n' : 's';
    return text;
  }
};

/// The element at `i` of a source, scaled and rounded as numerics.md says.
float operand(const Case& c, std::size_t s, std::size_t i) {
  const unsigned char* at = c.sources[s].data() + 1 + i * c.element_bytes(c.wide_sources[s]);
  if (c.wide_sources[s]) return read_wide(at);
  if (c.scales[s].empty()) return read(c.type, at);
  unsigned char rounded[2];
  write(c.type, rounded, read(c.type, at) * read(c.type, c.scales[s].data()));
  return read(c.type, rounded);
}

/// Only these have scales and divisors.
bool is_sum(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

Case make_case(std::mt19937_64& random, DataType type, ReduceOp op, int sources, std::size_t count, int divisor) {
  Case c{type, op, count, divisor, {}, {}, {}, {}};
  for (int s = 0; s < sources; ++s) {
    const bool wide = random() % 2 == 0;
    c.wide_sources.push_back(wide);
    Buffer& buffer = c.sources.emplace_back(1 + c.bytes(wide));
    for (std::size_t i = 0; i < count; ++i) {
      const float number = random_number(random);
      if (wide) {
        std::memcpy(buffer.data() + 1 + 4 * i, &number, 4);
      } else {
        write(type, buffer.data() + 1 + i * size_of(type), number);
      }
    }
    Buffer& scale = c.scales.emplace_back();
    if (wide || random() % 2 == 0 || !is_sum(op)) continue;
    scale.resize(2);
    write(type, scale.data(), random_number(random));
  }
  for (std::size_t i = 0; i < count; ++i) {
    float total = operand(c, 0, i);
    for (std::size_t s = 1; s < c.sources.size(); ++s) total = reference::fold<float>(op, total, operand(c, s, i));
    c.expected.push_back(divisor == 0 ? total : total / static_cast<float>(divisor));
  }
  return c;
}

void run(const Case& c, ReduceVariant variant, const std::vector<void*>& destinations,
         const std::uint8_t* wide_destinations) {
  std::vector<const void*> sources;
  std::vector<const void*> scales;
  for (std::size_t s = 0; s < c.sources.size(); ++s) {
    sources.push_back(c.sources[s].data() + 1);
    scales.push_back(c.scales[s].empty() ? nullptr : c.scales[s].data());
  }
  reduce_mixed({.sources = sources.data(),
                .source_count = static_cast<int>(sources.size()),
                .destinations = destinations.data(),
                .destination_count = static_cast<int>(destinations.size()),
                .count = c.count,
                .scales = is_sum(c.op) ? scales.data() : nullptr,
                .divisor = c.divisor,
                .wide_sources = c.wide_sources.data(),
                .wide_destinations = wide_destinations},
               kernels_of(variant, c.type, c.op));
}

/// The expected sums in a destination's type, and poison around them.
Buffer expected_buffer(const Case& c, bool wide, unsigned char poison) {
  Buffer expected(3 + c.bytes(wide) + 64, poison);
  for (std::size_t i = 0; i < c.count; ++i) {
    unsigned char* at = expected.data() + 3 + i * c.element_bytes(wide);
    if (wide) {
      std::memcpy(at, &c.expected[i], 4);
    } else {
      write(c.type, at, c.expected[i]);
    }
  }
  return expected;
}

/// True if they are equal, any NaN for any NaN, poison included.
bool equal(const Case& c, bool wide, const Buffer& got, const Buffer& expected) {
  Buffer patched = got;
  for (std::size_t i = 0; i < c.count; ++i) {
    const std::size_t at = 3 + i * c.element_bytes(wide);
    const float a = wide ? read_wide(&got[at]) : read(c.type, &got[at]);
    const float b = wide ? read_wide(&expected[at]) : read(c.type, &expected[at]);
    if (same(a, b)) std::memcpy(&patched[at], &expected[at], c.element_bytes(wide));
  }
  return patched == expected;
}

/// Two destinations of each kind.
void check(const Case& c, ReduceVariant variant) {
  constexpr unsigned char kPoison = 0xc3;
  constexpr std::uint8_t kWide[] = {0, 1, 1, 0};
  std::vector<Buffer> outputs;
  for (const std::uint8_t wide : kWide) outputs.emplace_back(3 + c.bytes(wide) + 64, kPoison);
  std::vector<void*> destinations;
  for (Buffer& output : outputs) destinations.push_back(output.data() + 3);
  run(c, variant, destinations, kWide);
  for (std::size_t d = 0; d < outputs.size(); ++d) {
    INFO("destination " << d << (kWide[d] ? ", wide" : ", narrow"));
    if (!equal(c, kWide[d], outputs[d], expected_buffer(c, kWide[d], kPoison))) FAIL(c.name(variant));
  }
}

/// One number through a conversion and back into a float.
float converted(ReduceVariant variant, DataType type, float value) {
  unsigned char code[2] = {};
  float_conversion_of(variant, type).narrow(code, &value, 1);
  float back = 0;
  float_conversion_of(variant, type).widen(&back, code, 1);
  return back;
}

}  // namespace

TEST_CASE("every code of 16 and 8 bits widens to its number and narrows back", "[reduce][mixed]") {
  for (const ReduceVariant variant : usable_variants()) {
    for (const DataType type : kNarrow) {
      const std::size_t size = size_of(type);
      const std::size_t count = std::size_t{1} << (8 * size);
      Buffer codes(count * size);
      for (std::size_t i = 0; i < count; ++i) std::memcpy(&codes[i * size], &i, size);
      std::vector<float> numbers(count);
      Buffer back(count * size);
      float_conversion_of(variant, type).widen(numbers.data(), codes.data(), count);
      float_conversion_of(variant, type).narrow(back.data(), numbers.data(), count);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const float expected = read(type, &codes[i * size]);
        wrong += !same(numbers[i], expected) || !same(read(type, &back[i * size]), expected);
      }
      INFO(name_of(variant) << " " << name_of(type));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("narrowing rounds to nearest even and saturates as the reduction kernels do", "[reduce][mixed]") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const ReduceVariant variant : usable_variants()) {
    INFO(name_of(variant));
    CHECK(converted(variant, DataType::kBfloat16, 257) == 256);
    CHECK(converted(variant, DataType::kBfloat16, 259) == 260);
    CHECK(converted(variant, DataType::kFloat16, 65520) == infinity);
    CHECK(converted(variant, DataType::kFloat16, 65519) == 65504);
    CHECK(converted(variant, DataType::kFloat8e4m3, 1e9f) == 448);
    CHECK(converted(variant, DataType::kFloat8e4m3, -infinity) == -448);
    CHECK(converted(variant, DataType::kFloat8e5m2, 1e9f) == 57344);
    CHECK(converted(variant, DataType::kFloat8e5m2, infinity) == infinity);
    for (const DataType type : kNarrow) CHECK(std::isnan(converted(variant, type, std::nanf(""))));
  }
}

TEST_CASE("mixed reductions give the reference's bits in every instruction set", "[reduce][mixed]") {
  std::printf("reduce_mixed_test: seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  for (const DataType type : kNarrow) {
    for (int o = 0; o < kReduceOps; ++o) {
      for (const int sources : {1, 2, 3, 9}) {
        for (const std::size_t count : {0, 1, 17, 1024, 2500}) {
          for (const int divisor : {0, 3}) {
            if (divisor != 0 && !is_sum(static_cast<ReduceOp>(o))) continue;
            const Case c = make_case(random, type, static_cast<ReduceOp>(o), sources, count, divisor);
            for (const ReduceVariant variant : usable_variants()) check(c, variant);
          }
        }
      }
    }
  }
}

TEST_CASE("a mixed reduction in place of a source of its own width", "[reduce][mixed]") {
  std::mt19937_64 random(kSeed + 1);
  for (const DataType type : kNarrow) {
    for (int i = 0; i < 20; ++i) {
      Case c = make_case(random, type, ReduceOp::kSum, 3, 2049, 0);
      if (!c.wide_sources[0] && !c.wide_sources[1] && !c.wide_sources[2]) continue;
      const Buffer expected = expected_buffer(c, c.wide_sources[1], 0);
      const std::uint8_t wide = c.wide_sources[1];
      run(c, usable_variants().back(), {c.sources[1].data() + 1}, &wide);
      Buffer got(expected.size(), 0);
      std::memcpy(got.data() + 3, c.sources[1].data() + 1, c.bytes(wide));
      if (!equal(c, wide, got, expected)) FAIL(c.name(usable_variants().back()));
    }
  }
}

TEST_CASE("with nothing wide, a mixed function is the kernel of the type", "[reduce][mixed]") {
  // 256 + 1 + 1 in bfloat16: 258 in float32, rounded once; a copy keeps a NaN's bits.
  const std::uint16_t values[] = {0x4380, 0x3f80, 0x3f80, 0xffa5};
  const void* sources[] = {&values[0], &values[1], &values[2]};
  std::uint16_t result = 0;
  void* destination = &result;
  const ReduceFunction sum = reduce_mixed_function(DataType::kBfloat16, ReduceOp::kAverage);
  sum({.sources = sources, .source_count = 3, .destinations = &destination, .destination_count = 1, .count = 1});
  CHECK(result == 0x4381);
  sources[0] = &values[3];
  sum({.sources = sources, .source_count = 1, .destinations = &destination, .destination_count = 1, .count = 1});
  CHECK(result == 0xffa5);
}

TEST_CASE("partial sums in float32 lose nothing where bfloat16 would", "[reduce][mixed]") {
  // 512 ones, one after the other through a float32 message: in bfloat16 the sum would stop at 256.
  const std::uint16_t one = 0x3f80;
  float partial = 1;
  std::uint16_t result = 0;
  const std::uint8_t wide_sources[] = {1, 0};
  const std::uint8_t wide = 1;
  const ReduceFunction sum = reduce_mixed_function(DataType::kBfloat16, ReduceOp::kSum);
  for (int i = 1; i < 512; ++i) {
    const void* sources[] = {&partial, &one};
    const bool last = i == 511;
    void* destination = last ? static_cast<void*>(&result) : &partial;
    sum({.sources = sources,
         .source_count = 2,
         .destinations = &destination,
         .destination_count = 1,
         .count = 1,
         .wide_sources = wide_sources,
         .wide_destinations = last ? nullptr : &wide});
  }
  CHECK(result == 0x4400);  // 512
}

#if defined(__x86_64__)
TEST_CASE("a caller's flush-to-zero mode changes no conversion", "[reduce][mixed]") {
  const unsigned mode = _mm_getcsr();
  for (const ReduceVariant variant : usable_variants()) {
    _mm_setcsr(mode | 0x8040);  // flush to zero, denormals are zeros
    const float tiny = converted(variant, DataType::kFloat16, 0x1p-24f);
    const float rounded = converted(variant, DataType::kFloat8e5m2, 0x1.8p-16f);
    _mm_setcsr(mode);
    CHECK(tiny == 0x1p-24f);
    CHECK(rounded == 0x1p-15f);
  }
}
#endif
