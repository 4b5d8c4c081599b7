// The data types as the reduction kernels see them, for the instruction set that this file is compiled for. Only for
// reduce_kernels.cpp: everything is local to the file that includes it.
#pragma once

#include "base/float_formats.h"
#include "base/simd.h"

#include <cstdint>

namespace tutti::TUTTI_SIMD {
namespace {

// A data type is described by:
//   Element, Packed     what memory holds, and a vector of it
//   Lanes, kLanes       a vector of accumulators, and how many of these a Packed fills
//   Arithmetic          the sums, products and so on of Lanes
//   unpack, pack        from a Packed to its accumulators, and back with rounding
//   splat               one element in every lane
//   divide              so many vectors of accumulators by the average's divisor

template <class T, class UnsignedT>
struct IntegerArithmetic {
  using Lanes = Vector<T>;
  using Unsigned = Vector<UnsignedT>;  // its overflow wraps
  [[gnu::always_inline]] static Lanes sum(Lanes a, Lanes b) { return (Lanes)((Unsigned)a + (Unsigned)b); }
  [[gnu::always_inline]] static Lanes product(Lanes a, Lanes b) { return (Lanes)((Unsigned)a * (Unsigned)b); }
  [[gnu::always_inline]] static Lanes max(Lanes a, Lanes b) { return a > b ? a : b; }
  [[gnu::always_inline]] static Lanes min(Lanes a, Lanes b) { return a < b ? a : b; }
};

/// max and min are IEEE 754-2019's maximum and minimum. Equal numbers have equal bits unless they are zeros, so "and"
/// and "or" of the bits pick the right zero; the sum of unordered numbers is a quiet NaN.
template <class T, class UnsignedT, int kBytes = kVectorBytes>
struct FloatArithmetic {
  using Lanes = typename VectorOf<T, kBytes>::Type;
  using Bits = typename VectorOf<UnsignedT, kBytes>::Type;
  [[gnu::always_inline]] static Lanes sum(Lanes a, Lanes b) { return a + b; }
  [[gnu::always_inline]] static Lanes product(Lanes a, Lanes b) { return a * b; }
  [[gnu::always_inline]] static Lanes max(Lanes a, Lanes b) {
    const Lanes same_or_nan = a == b ? (Lanes)((Bits)a & (Bits)b) : a + b;
    return a > b ? a : b > a ? b : same_or_nan;
  }
  [[gnu::always_inline]] static Lanes min(Lanes a, Lanes b) {
    const Lanes same_or_nan = a == b ? (Lanes)((Bits)a | (Bits)b) : a + b;
    return a < b ? a : b < a ? b : same_or_nan;
  }
};

template <class Unsigned>
struct TwiceAsWide;
template <>
struct TwiceAsWide<std::uint8_t> {
  using Type = std::uint16_t;
};
template <>
struct TwiceAsWide<std::uint32_t> {
  using Type = std::uint64_t;
};
template <>
struct TwiceAsWide<std::uint64_t> {
  __extension__ using Type = unsigned __int128;
};

/// Quotients by one number, without division: T. Granlund and P. L. Montgomery, "Division by invariant integers using
/// multiplication" (1994), figure 4.1.
template <class Unsigned>
class Divider {
  using Wide = typename TwiceAsWide<Unsigned>::Type;
  static constexpr int kBits = 8 * sizeof(Unsigned);

 public:
  explicit Divider(int divisor) {
    const auto by = static_cast<std::uint64_t>(divisor);
    int log2 = 0;
    while (std::uint64_t{1} << log2 < by) ++log2;
    // (2^log2 - by) 2^kBits / by + 1, a half at a time; a divisor that no dividend reaches has no bits left.
    const std::uint64_t above = (std::uint64_t{1} << log2) - by;
    const std::uint64_t upper = (above << kBits / 2) / by;
    const std::uint64_t rest = (above << kBits / 2) % by;
    factor_ = static_cast<Unsigned>((upper << kBits / 2) + (rest << kBits / 2) / by + 1);
    first_shift_ = log2 > 0 ? 1 : 0;
    second_shift_ = log2 > 0 ? log2 - 1 : 0;
    none_ = by >> (kBits - 1) >> 1 != 0;
  }

  [[gnu::always_inline]] Unsigned quotient(Unsigned dividend) const {
    const auto high = static_cast<Unsigned>(static_cast<Wide>(static_cast<Wide>(factor_) * dividend) >> kBits);
    const auto rest = static_cast<Unsigned>(static_cast<Unsigned>(dividend - high) >> first_shift_);
    const auto quotient = static_cast<Unsigned>(static_cast<Unsigned>(high + rest) >> second_shift_);
    return none_ ? Unsigned{} : quotient;
  }

 private:
  Unsigned factor_;
  int first_shift_, second_shift_;
  bool none_;  ///< the divisor is above every dividend
};

template <class T, class UnsignedT>
struct Integer {
  using Element = T;
  using Arithmetic = IntegerArithmetic<T, UnsignedT>;
  using Lanes = Vector<T>;
  using Packed = Lanes;
  static constexpr int kLanes = 1;

  [[gnu::always_inline]] static void unpack(Lanes* lanes, Packed packed) { *lanes = packed; }
  [[gnu::always_inline]] static Packed pack(const Lanes* lanes) { return *lanes; }
  [[gnu::always_inline]] static Lanes splat(const void* element) {
    return (Lanes)(Vector<UnsignedT>{} + load_unaligned<UnsignedT>(element));
  }
  [[gnu::noinline]] static void divide(Lanes* lanes, int count, int divisor) {
    constexpr int kElements = sizeof(Lanes) / sizeof(T);
    const Divider<UnsignedT> by(divisor);
    for (int i = 0; i < count; ++i) {
      T numbers[kElements];  // the compiler makes vectors of a loop over an array, not of one over a vector's elements
      __builtin_memcpy(numbers, lanes + i, sizeof numbers);
      for (T& number : numbers) {
        const auto bits = static_cast<UnsignedT>(number);
        const UnsignedT sign = number < 0 ? ~UnsignedT{} : UnsignedT{};
        const UnsignedT quotient = by.quotient(static_cast<UnsignedT>((bits ^ sign) - sign));
        number = static_cast<T>(static_cast<UnsignedT>((quotient ^ sign) - sign));
      }
      __builtin_memcpy(lanes + i, numbers, sizeof numbers);
    }
  }
};

template <class T, class UnsignedT>
struct WideFloat {
  using Element = T;
  using Arithmetic = FloatArithmetic<T, UnsignedT>;
  using Lanes = Vector<T>;
  using Packed = Lanes;
  static constexpr int kLanes = 1;

  [[gnu::always_inline]] static void unpack(Lanes* lanes, Packed packed) { *lanes = packed; }
  [[gnu::always_inline]] static Packed pack(const Lanes* lanes) { return *lanes; }
  [[gnu::always_inline]] static Lanes splat(const void* element) {
    const UnsignedT bits = load_unaligned<UnsignedT>(element);  // zero + x would lose the sign of -0
    return (Lanes)(Vector<UnsignedT>{} + bits);
  }
  [[gnu::always_inline]] static void divide(Lanes* lanes, int count, int divisor) {
    for (int i = 0; i < count; ++i) lanes[i] /= Lanes{} + static_cast<T>(divisor);
  }
};

/// Computed in float32. A vector is read as 32-bit lanes with 2 or 4 elements in each; the first elements of all lanes
/// are one vector of accumulators, the second ones another. No element moves to another lane, and none has to.
template <class Format, class ElementT>
struct NarrowFloat {
  using Element = ElementT;
  using Arithmetic = FloatArithmetic<float, std::uint32_t>;
  using Lanes = Float32;
  using Packed = Bits32;
  static constexpr int kLanes = 32 / Format::kBits;

  [[gnu::always_inline]] static void unpack(Lanes* lanes, Packed packed) {
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; ++i) lanes[i] = Format::decode(packed >> (i * Format::kBits));
  }
  [[gnu::always_inline]] static Packed pack(const Lanes* lanes) {
    Packed packed = Format::template encode<Bits32>(lanes[0]);
#pragma GCC unroll 4
    for (int i = 1; i < kLanes; ++i) packed |= Format::template encode<Bits32>(lanes[i]) << (i * Format::kBits);
    return packed;
  }
  [[gnu::always_inline]] static Lanes splat(const void* element) {
    return Format::decode(Bits32{} + load_unaligned<Element>(element));
  }
  [[gnu::always_inline]] static void divide(Lanes* lanes, int count, int divisor) {
    for (int i = 0; i < count; ++i) lanes[i] /= Lanes{} + static_cast<float>(divisor);
  }
};

#if TUTTI_SIMD_HALF
/// The processor's conversions give the same numbers as Float16's. As many at a time as Codes has.
template <class Floats, class Codes>
struct ConvertedHalf {
  struct Arithmetic : FloatArithmetic<float, std::uint32_t, sizeof(Floats)> {
    [[gnu::always_inline]] static Floats sum(Floats a, Floats b) { return sum_of_halves(a, b); }
  };
  using Element = std::uint16_t;
  using Lanes = Floats;
  using Packed = Codes;
  static constexpr int kLanes = 1;
  [[gnu::always_inline]] static void unpack(Lanes* lanes, Packed packed) { *lanes = decode_half(packed); }
  [[gnu::always_inline]] static Packed pack(const Lanes* lanes) { return encode_half(*lanes); }
  [[gnu::always_inline]] static Lanes splat(const void* element) {
    return decode_half(Packed{} + load_unaligned<Element>(element));
  }
  [[gnu::always_inline]] static void divide(Lanes* lanes, int count, int divisor) {
    for (int i = 0; i < count; ++i) lanes[i] /= Lanes{} + static_cast<float>(divisor);
  }
};
using FloatOf16 = ConvertedHalf<EightFloats, EightHalves>;
using WholeFloatOf16 = ConvertedHalf<Float32, Halves>;  // with AVX2 the same

struct BfloatOf16 : NarrowFloat<Bfloat16, std::uint16_t> {
  /// From a register: else a compiler may load it for each half, and a load across two cache lines takes twice as long.
  [[gnu::always_inline]] static void unpack(Lanes* lanes, Packed packed) {
    asm("" : "+v"(packed));
    NarrowFloat::unpack(lanes, packed);
  }
  [[gnu::always_inline]] static Packed pack(const Lanes* lanes) { return join_bfloats(lanes[0], lanes[1]); }
};

/// Reads the 8-bit formats by way of float16, which holds all their numbers. (Writing them so would round twice.)
template <class Format>
struct FloatOf8 : NarrowFloat<Format, std::uint8_t> {
  using Lanes = Float32;

  /// The code in the low byte of each word.
  [[gnu::always_inline]] static void decode_words(Lanes* lanes, Words codes) {
    constexpr bool kSameExponent = Format::kBias == Float16::kBias;
    Words halves = codes << 8;
    if constexpr (!kSameExponent) {
      const Words magnitude = codes & 0x7f;
      const Words nan = magnitude == Format::kSpecial ? Words{} + 0x7c00 : Words{};
      halves = (magnitude << 7) | nan | (halves & 0x8000);
    }
    lanes[0] = decode_half(low_half(halves));
    lanes[1] = decode_half(high_half(halves));
    if constexpr (!kSameExponent) {
      constexpr float kRest = 1 << (Float16::kBias - Format::kBias);
      lanes[0] *= kRest;
      lanes[1] *= kRest;
    }
  }
  [[gnu::always_inline]] static void unpack(Lanes* lanes, Bits32 packed) {
    decode_words(lanes, (Words)packed);
    decode_words(lanes + 2, (Words)packed >> 8);
  }
  [[gnu::always_inline]] static Bits32 pack(const Lanes* lanes) {
    const auto encode = [&](int i) __attribute__((always_inline)) { return Format::template encode<Bits32>(lanes[i]); };
    return (Bits32)(join_words(encode(0), encode(1)) | join_words(encode(2), encode(3)) << 8);
  }
};

#if TUTTI_SIMD_ADDS_HALVES
/// Without conversion, and with the same bits: a sum in float32 that is rounded once more is rounded as one that never was, as float32's 24 bits are as
/// many as twice float16's 11 and two (S. A. Figueroa, "When is double rounding innocuous?", 1995). Subnormal numbers are what they are.
struct AddedHalf {
  struct Arithmetic {
    [[gnu::always_inline]] static Words sum(Words a, Words b) { return add_halves(a, b); }
  };
  using Element = std::uint16_t;
  using Lanes = Words;
  using Packed = Words;
  static constexpr int kLanes = 1;
  [[gnu::always_inline]] static void unpack(Lanes* lanes, Packed packed) { *lanes = packed; }
  [[gnu::always_inline]] static Packed pack(const Lanes* lanes) { return *lanes; }
};
#else
using AddedHalf = WholeFloatOf16;
#endif

#else
using FloatOf16 = NarrowFloat<Float16, std::uint16_t>;
using WholeFloatOf16 = FloatOf16;
using AddedHalf = FloatOf16;
using BfloatOf16 = NarrowFloat<Bfloat16, std::uint16_t>;
template <class Format>
using FloatOf8 = NarrowFloat<Format, std::uint8_t>;
#endif

}  // namespace
}  // namespace tutti::TUTTI_SIMD
