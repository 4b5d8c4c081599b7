// Sums of two 16-bit floats, every number with each of a set from the edges of the format: the bits of the float32 sum,
// rounded once, from every instruction set, in the loop for two sources and in those for more.
#include "base/float_formats.h"
#include "base/reduce_variants.h"

#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace tutti;

namespace {

using Code = std::uint16_t;
constexpr std::size_t kCodes = 65536;

/// Both signs of zero and infinity, and of small, middle and large mantissas with the first and last exponents and some
/// between.
std::vector<Code> edges(int mantissa_bits) {
  const int one_step = 1 << mantissa_bits;
  const int exponents = 1 << (15 - mantissa_bits);
  std::vector<Code> codes;
  for (int exponent = 0; exponent < exponents; ++exponent) {
    if (exponent > 2 && exponent < exponents - 2 && exponent % (exponents / 8 + 1) != 0) continue;
    for (const int mantissa : {0, 1, one_step / 2, one_step / 2 + 1, one_step - 1}) {
      codes.push_back(static_cast<Code>(exponent * one_step + mantissa));
    }
  }
  const std::size_t positive = codes.size();
  for (std::size_t i = 0; i < positive; ++i) codes.push_back(static_cast<Code>(codes[i] | 0x8000));
  return codes;
}

template <class Format>
float decoded(Code code) {
  return Format::template decode<std::uint32_t>(code);
}
template <class Format>
bool is_nan(Code code) {
  const float value = decoded<Format>(code);
  return value != value;
}

template <class Format>
void check_sums(DataType type, int mantissa_bits) {
  std::vector<Code> all(kCodes);
  for (std::size_t i = 0; i < kCodes; ++i) all[i] = static_cast<Code>(i);
  std::vector<Code> others(kCodes), zeros(kCodes, 0x8000), expected(kCodes), sums(kCodes);  // -0 changes no sum
  std::size_t checked = 0;
  int more = 3;  // in turn: 3 to 8 sources have loops of their own
  for (const Code other : edges(mantissa_bits)) {
    others.assign(kCodes, other);
    for (std::size_t i = 0; i < kCodes; ++i) {
      expected[i] = static_cast<Code>(Format::encode(decoded<Format>(all[i]) + decoded<Format>(other)));
    }
    for (int v = 0; v < kReduceVariants; ++v) {
      const auto variant = static_cast<ReduceVariant>(v);
      if (!is_usable(variant)) continue;
      for (const int sources : {2, more}) {
        std::vector<const void*> from(sources, zeros.data());
        from[0] = all.data();
        from[sources - 1] = others.data();
        void* const to = sums.data();
        ReduceArgs args;
        args.sources = from.data();
        args.source_count = sources;
        args.destinations = &to;
        args.destination_count = 1;
        args.count = kCodes;
        reduce_function_of(variant, type, ReduceOp::kSum)(args);
        for (std::size_t i = 0; i < kCodes; ++i) {
          if (sums[i] == expected[i] || (is_nan<Format>(sums[i]) && is_nan<Format>(expected[i]))) continue;
          FAIL(std::string(name_of(variant)) << " " << std::string(name_of(type)) << ", " << sources << " sources: "
                                             << i << " + " << other << " is " << sums[i] << ", not " << expected[i]);
        }
        checked += kCodes;
      }
    }
    more = more == 9 ? 3 : more + 1;
  }
  CHECK(checked >= 100 * 2 * kCodes);
}

}  // namespace

TEST_CASE("sums of any bfloat16 and one at an edge of the format have the one right rounding", "[reduce]") {
  check_sums<Bfloat16>(DataType::kBfloat16, 7);
}
TEST_CASE("sums of any float16 and one at an edge of the format have the one right rounding", "[reduce]") {
  check_sums<Float16>(DataType::kFloat16, 10);
}
