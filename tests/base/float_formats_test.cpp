// The small float formats against their definition: every code, every midpoint between neighbours, and random float32s.
#include "base/float_formats.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>

using namespace tutti;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A format spelled out: what the code under test is compared with.
struct Definition {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
  bool saturates;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  std::uint32_t special() const { return has_infinity ? ((1u << exponent_bits) - 1) << mantissa_bits : sign_bit() - 1; }
  bool is_nan(std::uint32_t code) const {
    const std::uint32_t magnitude = code & (sign_bit() - 1);
    return has_infinity ? magnitude > special() : magnitude == special();
  }
  double value(std::uint32_t code) const {
    const std::uint32_t magnitude = code & (sign_bit() - 1);
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const int mantissa = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
    double result = exponent == 0 ? std::ldexp(mantissa, 1 - bias() - mantissa_bits)
                                  : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
    if (has_infinity && magnitude == special()) result = kInfinity;
    return code & sign_bit() ? -result : result;
  }
  /// Rounds by dividing by the last place and asking the standard library for the nearest even integer.
  double rounded(float x) const {
    if (x == 0 || std::isinf(x)) return std::isinf(x) && !has_infinity ? std::copysign(value(special() - 1), x) : x;
    const int exponent = std::max(std::ilogb(x), 1 - bias());
    const double last_place = std::ldexp(1.0, exponent - mantissa_bits);
    const double result = std::nearbyint(static_cast<double>(x) / last_place) * last_place;
    const double largest = value(special() - 1);
    if (std::abs(result) <= largest) return std::copysign(result, x);
    return std::copysign(saturates ? largest : kInfinity, x);
  }
};

template <class Format>
void check_code(const Definition& definition, std::uint32_t code) {
  const float value = Format::decode(code);
  const float with_garbage = Format::decode(code | ~((definition.sign_bit() << 1) - 1));
  const std::uint32_t back = Format::encode(value);
  INFO("code " << code << " value " << value << " back " << back);
  if (definition.is_nan(code)) {
    REQUIRE(std::isnan(value));
    REQUIRE(std::isnan(with_garbage));
    REQUIRE(definition.is_nan(back));
    REQUIRE(back < definition.sign_bit() << 1);
    return;
  }
  REQUIRE(static_cast<double>(value) == definition.value(code));
  REQUIRE(std::signbit(value) == std::signbit(definition.value(code)));
  REQUIRE(std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(with_garbage));
  REQUIRE(back == code);
}

template <class Format>
void check_rounding(const Definition& definition, float x) {
  const std::uint32_t code = Format::encode(x);
  INFO("float32 " << std::bit_cast<std::uint32_t>(x) << " = " << x << " code " << code);
  REQUIRE(code < definition.sign_bit() << 1);
  if (std::isnan(x)) {
    REQUIRE(definition.is_nan(code));
  } else {
    REQUIRE_FALSE(definition.is_nan(code));
    REQUIRE(definition.value(code) == definition.rounded(x));
  }
  REQUIRE(((code & definition.sign_bit()) != 0) == std::signbit(x));
}

template <class Format>
void check_format(const Definition& definition) {
  for (std::uint32_t code = 0; code < definition.sign_bit() << 1; ++code) check_code<Format>(definition, code);

  // Midpoints: exact in float32, to the even neighbour; one float32 to either side, to the nearer one.
  for (std::uint32_t code = 0; code + 1 < definition.special(); ++code) {
    const float middle = static_cast<float>((definition.value(code) + definition.value(code + 1)) / 2);
    INFO("between codes " << code << " and " << code + 1);
    REQUIRE(static_cast<double>(middle) * 2 == definition.value(code) + definition.value(code + 1));
    for (const std::uint32_t sign : {0u, definition.sign_bit()}) {
      const float signed_middle = sign != 0 ? -middle : middle;
      REQUIRE(Format::encode(signed_middle) == ((code + (code & 1)) | sign));
      REQUIRE(Format::encode(std::nextafter(signed_middle, 0.0f)) == (code | sign));
      REQUIRE(Format::encode(std::nextafter(signed_middle, sign != 0 ? -kInfinity : kInfinity)) == ((code + 1) | sign));
    }
  }

  const std::uint64_t seed = 20;
  std::printf("float_formats_test: seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200000; ++i) {
    check_rounding<Format>(definition, std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  for (const float edge : {0.0f, 1e-45f, 1.17549435e-38f, 3.4028235e38f, kInfinity, std::nanf("")}) {
    check_rounding<Format>(definition, edge);
    check_rounding<Format>(definition, -edge);
  }
  // A NaN whose mantissa is only in the bits that the format drops must not become infinity.
  check_rounding<Format>(definition, std::bit_cast<float>(0x7f800001u));
  check_rounding<Format>(definition, std::bit_cast<float>(0xffffffffu));
}

}  // namespace

TEST_CASE("float16 converts exactly and rounds to nearest even", "[formats]") {
  check_format<Float16>({5, 10, true, false});
  CHECK(Float16::encode(65519.996f) == 0x7bff);
  CHECK(Float16::encode(65520.0f) == 0x7c00);
}

TEST_CASE("bfloat16 converts exactly and rounds to nearest even", "[formats]") {
  check_format<Bfloat16>({8, 7, true, false});
  CHECK(Bfloat16::encode(3.4028235e38f) == 0x7f80);
}

TEST_CASE("float8e4m3 saturates at 448 and has no infinity", "[formats]") {
  check_format<Float8e4m3>({4, 3, false, true});
  CHECK(Float8e4m3::decode(0x7eu) == 448.0f);
  CHECK(Float8e4m3::encode(464.0f) == 0x7e);
  CHECK(Float8e4m3::encode(1e30f) == 0x7e);
  CHECK(Float8e4m3::encode(-kInfinity) == 0xfe);
  CHECK(Float8e4m3::encode(std::nanf("")) == 0x7f);
}

TEST_CASE("float8e5m2 saturates at 57344 but keeps an infinity", "[formats]") {
  check_format<Float8e5m2>({5, 2, true, true});
  CHECK(Float8e5m2::decode(0x7bu) == 57344.0f);
  CHECK(Float8e5m2::encode(61440.0f) == 0x7b);
  CHECK(Float8e5m2::encode(3.4028235e38f) == 0x7b);
  CHECK(Float8e5m2::encode(kInfinity) == 0x7c);
  CHECK(Float8e5m2::encode(-kInfinity) == 0xfc);
  CHECK(Float8e5m2::encode(std::nanf("")) == 0x7f);
}
