// The small float formats (float16, bfloat16, float8e4m3, float8e5m2): exact conversion to float32, correctly rounded
// conversion back. Branch-free, and written once for a single number and for a vector of them.
#pragma once

#include "base/device_call.h"

#include <cstdint>

namespace tutti {

/// The float and signed types that go with an unsigned 32-bit lane type. The kernels add one for their vector type.
template <class Bits>
struct LaneTypes;
template <>
struct LaneTypes<std::uint32_t> {
  using Float = float;
  using Signed = std::int32_t;
};
template <class Bits>
using FloatLanes = typename LaneTypes<Bits>::Float;

// Everything here is forced inline: this header is compiled for several instruction sets, and a copy that the linker
// could share between them would run the wrong one.

/// Below, for lanes under 2^31: the signed comparison is the one that every instruction set has.
template <class Bits>
[[gnu::always_inline]] TUTTI_DEVICE_CALL inline auto lanes_below(Bits a, Bits b) {
  using Signed = typename LaneTypes<Bits>::Signed;
  return __builtin_bit_cast(Signed, a) < __builtin_bit_cast(Signed, b);
}

/// A format of 16 or 8 bits: sign, exponent, mantissa. With kInfinity, the largest exponent holds infinity and NaNs, as
/// IEEE 754 has it; without, only the code with all bits set is a NaN, and there is no infinity.
/// Rounding is to nearest, ties to even. A finite value that is too large becomes the largest finite one if kSaturates,
/// else infinity. An infinity stays one where the format has it. No step reads or makes a float32 subnormal that
/// matters, so a flush-to-zero mode changes nothing here.
template <int kExponentBits, int kMantissaBits, bool kInfinity, bool kSaturates>
struct SmallFloat {
  static_assert(kInfinity || kSaturates);
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;  ///< from this mantissa to float32's
  static constexpr std::uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  /// The first code that is no finite number.
  static constexpr std::uint32_t kSpecial = kInfinity ? ((1u << kExponentBits) - 1) << kMantissaBits : kMagnitude;
  // As float32: the smallest normal number, the largest finite one, and what is certain to round to infinity.
  static constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(128 - kBias) << 23;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kLargestFinite = ((kSpecial - 1) << kShift) + kRebias;
  static constexpr std::uint32_t kTooLarge = (kSpecial << kShift) + kRebias;

  /// The code in the low bits of each lane (the others may hold anything) as float32: exact.
  template <class Bits>
  [[gnu::always_inline]] TUTTI_DEVICE_CALL static inline FloatLanes<Bits> decode(Bits code) {
    using Float = FloatLanes<Bits>;
    const Bits zero{};
    const Bits magnitude = (code & kMagnitude) << kShift;
    const Bits sign = (code >> (kBits - 1)) << 31;
    const Bits normal = magnitude + kRebias;
    // A subnormal's mantissa is put behind a leading one, which is then subtracted.
    const Bits one = zero + kSmallestNormal;
    const Float tiny = __builtin_bit_cast(Float, magnitude + one) - __builtin_bit_cast(Float, one);
    Bits result = lanes_below(magnitude, zero + (1u << 23)) ? __builtin_bit_cast(Bits, tiny) : normal;
    // A special keeps its mantissa and gets float32's largest exponent; the one without infinity is all NaN.
    result = lanes_below(magnitude, zero + (kSpecial << kShift)) ? result : (magnitude | (zero + 0x7f800000u));
    return __builtin_bit_cast(Float, result | sign);
  }

  /// The nearest code, in the low bits of each lane (the others are zero).
  template <class Bits = std::uint32_t>
  [[gnu::always_inline]] TUTTI_DEVICE_CALL static inline Bits encode(FloatLanes<Bits> value) {
    using Float = FloatLanes<Bits>;
    const Bits zero{};
    const Bits bits = __builtin_bit_cast(Bits, value);
    const Bits magnitude = bits & 0x7fffffffu;
    const Bits sign = (bits >> 31) << (kBits - 1);
    // Added to a number of the right exponent, the float adder itself rounds to this mantissa: the sum's last bits are
    // the mantissa with its leading one, of which a subnormal has less. The exponents follow on top.
    const Bits largest = zero + (kSaturates ? kLargestFinite : kTooLarge);
    const Bits limited = lanes_below(magnitude, largest) ? magnitude : largest;
    const Bits own_exponent = limited & 0x7f800000u;
    const Bits exponent = lanes_below(own_exponent, zero + kSmallestNormal) ? zero + kSmallestNormal : own_exponent;
    const Bits anchor = exponent + (static_cast<std::uint32_t>(kShift) << 23);
    const Float anchored = __builtin_bit_cast(Float, limited) + __builtin_bit_cast(Float, anchor);
    Bits result = (__builtin_bit_cast(Bits, anchored) - anchor) + ((exponent - kSmallestNormal) >> kShift);
    if constexpr (kInfinity && kSaturates) {
      result = lanes_below(magnitude, zero + 0x7f800000u) ? result : zero + kSpecial;
    }
    // A NaN keeps the top of its mantissa in a 16-bit format, is all ones in an 8-bit one, and is always quiet.
    constexpr std::uint32_t kQuietNan = kSpecial | 1u << (kMantissaBits - 1);
    const Bits nan = kBits == 16 ? (((magnitude >> kShift) & kMagnitude) | kQuietNan) : zero + kMagnitude;
    return (value == value ? result : nan) | sign;
  }
};

/// bfloat16 is the upper half of a float32.
struct Bfloat16 {
  static constexpr int kBits = 16;

  template <class Bits>
  [[gnu::always_inline]] TUTTI_DEVICE_CALL static inline FloatLanes<Bits> decode(Bits code) {
    return __builtin_bit_cast(FloatLanes<Bits>, code << 16);
  }

  template <class Bits = std::uint32_t>
  [[gnu::always_inline]] TUTTI_DEVICE_CALL static inline Bits encode(FloatLanes<Bits> value) {
    const Bits zero{};
    const Bits bits = __builtin_bit_cast(Bits, value);
    const Bits rounded = bits + ((bits >> 16 & 1u) + 0x7fffu);
    return (value == value ? rounded : bits | (zero + 0x400000u)) >> 16;
  }
};

using Float16 = SmallFloat<5, 10, true, false>;    ///< IEEE 754 binary16
using Float8e4m3 = SmallFloat<4, 3, false, true>;  ///< OCP E4M3 (E4M3FN): largest 448, NaN 0x7f and 0xff
using Float8e5m2 = SmallFloat<5, 2, true, true>;   ///< OCP E5M2: largest 57344, infinity 0x7c

}  // namespace tutti
