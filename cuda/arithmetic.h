// The data types as the kernels see them, for nvcc and for the C++ compiler: element by element what src/base/reduce_types.h computes with
// vectors. The small floats' conversions are the host's own code (base/float_formats.h), except where the GPU has an instruction
// that gives the same numbers.
#pragma once

#include "base/device_call.h"
#include "base/dtype.h"
#include "base/float_formats.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define TUTTI_UNROLL _Pragma("unroll")
#define TUTTI_ROLLED _Pragma("unroll 1")
#else
#define TUTTI_UNROLL _Pragma("GCC unroll 16")
#define TUTTI_ROLLED
#endif

namespace tutti::cuda {

// A type is described by:
//   Element              what memory holds
//   Accumulator          what sums are taken in
//   decode, encode       from one to the other
//   sum, product, max, min, divide   of accumulators

template <class T>
struct IntegerType {
  using Element = T;
  using Accumulator = T;
  using Unsigned = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;  // its overflow wraps

  TUTTI_DEVICE_CALL static T decode(T element) { return element; }
  TUTTI_DEVICE_CALL static T encode(T value) { return value; }
  TUTTI_DEVICE_CALL static T sum(T a, T b) {
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  }
  TUTTI_DEVICE_CALL static T product(T a, T b) {
    return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
  }
  TUTTI_DEVICE_CALL static T max(T a, T b) { return a > b ? a : b; }
  TUTTI_DEVICE_CALL static T min(T a, T b) { return a < b ? a : b; }
  TUTTI_DEVICE_CALL static T divide(T value, int divisor) {
    if constexpr (sizeof(T) == 1)
      return static_cast<T>(int{value} / divisor);
    else
      return value / static_cast<T>(divisor);
  }
};

/// max and min are IEEE 754-2019's maximum and minimum, as on the host: "and" and "or" of the bits of equal numbers pick the right zero,
/// the sum of unordered ones is a quiet NaN.
template <class T, class Bits>
struct FloatArithmetic {
  using Accumulator = T;

  TUTTI_DEVICE_CALL static T sum(T a, T b) { return a + b; }
  TUTTI_DEVICE_CALL static T product(T a, T b) { return a * b; }
  TUTTI_DEVICE_CALL static T max(T a, T b) {
    const T same_or_nan =
        a == b ? __builtin_bit_cast(T, __builtin_bit_cast(Bits, a) & __builtin_bit_cast(Bits, b)) : a + b;
    return a > b ? a : b > a ? b : same_or_nan;
  }
  TUTTI_DEVICE_CALL static T min(T a, T b) {
    const T same_or_nan =
        a == b ? __builtin_bit_cast(T, __builtin_bit_cast(Bits, a) | __builtin_bit_cast(Bits, b)) : a + b;
    return a < b ? a : b < a ? b : same_or_nan;
  }
  TUTTI_DEVICE_CALL static T divide(T value, int divisor) { return value / static_cast<T>(divisor); }
};

template <class T, class Bits>
struct WideFloatType : FloatArithmetic<T, Bits> {
  using Element = T;
  TUTTI_DEVICE_CALL static T decode(T element) { return element; }
  TUTTI_DEVICE_CALL static T encode(T value) { return value; }
};

/// Computed in float32.
template <class Format, class ElementT>
struct NarrowFloatType : FloatArithmetic<float, std::uint32_t> {
  using Element = ElementT;
  TUTTI_DEVICE_CALL static float decode(Element element) { return Format::decode(std::uint32_t{element}); }
  TUTTI_DEVICE_CALL static Element encode(float value) { return static_cast<Element>(Format::encode(value)); }
};

struct Float16Type : NarrowFloatType<Float16, std::uint16_t> {
#ifdef __CUDA_ARCH__
  static __device__ float decode(Element element) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
    return value;
  }
  static __device__ Element encode(float value) {
    Element element;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element) : "f"(value));
    return element;
  }
#endif
};

struct Bfloat16Type : NarrowFloatType<Bfloat16, std::uint16_t> {
#ifdef __CUDA_ARCH__
  static __device__ Element encode(float value) {
    Element element;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element) : "f"(value));
    return element;
  }
#endif
};

/// The table: a row for each data type.
template <DataType>
struct TypeOf;
// clang-format off
template <> struct TypeOf<DataType::kInt8> { using Type = IntegerType<std::int8_t>; };
template <> struct TypeOf<DataType::kUint8> { using Type = IntegerType<std::uint8_t>; };
template <> struct TypeOf<DataType::kInt32> { using Type = IntegerType<std::int32_t>; };
template <> struct TypeOf<DataType::kUint32> { using Type = IntegerType<std::uint32_t>; };
template <> struct TypeOf<DataType::kInt64> { using Type = IntegerType<std::int64_t>; };
template <> struct TypeOf<DataType::kUint64> { using Type = IntegerType<std::uint64_t>; };
template <> struct TypeOf<DataType::kFloat16> { using Type = Float16Type; };
template <> struct TypeOf<DataType::kFloat32> { using Type = WideFloatType<float, std::uint32_t>; };
template <> struct TypeOf<DataType::kFloat64> { using Type = WideFloatType<double, std::uint64_t>; };
template <> struct TypeOf<DataType::kBfloat16> { using Type = Bfloat16Type; };
template <> struct TypeOf<DataType::kFloat8e4m3> { using Type = NarrowFloatType<Float8e4m3, std::uint8_t>; };
template <> struct TypeOf<DataType::kFloat8e5m2> { using Type = NarrowFloatType<Float8e5m2, std::uint8_t>; };
// clang-format on

// The operations.
struct Sum {
  template <class Type, class A>
  TUTTI_DEVICE_CALL static A apply(A a, A b) {
    return Type::sum(a, b);
  }
};
struct Product {
  template <class Type, class A>
  TUTTI_DEVICE_CALL static A apply(A a, A b) {
    return Type::product(a, b);
  }
};
struct Max {
  template <class Type, class A>
  TUTTI_DEVICE_CALL static A apply(A a, A b) {
    return Type::max(a, b);
  }
};
struct Min {
  template <class Type, class A>
  TUTTI_DEVICE_CALL static A apply(A a, A b) {
    return Type::min(a, b);
  }
};

/// Elements side by side in a register or two. `Bits`: std::uint64_t, or any unsigned type that elements fill.
template <class Type, class Bits = std::uint64_t>
struct Packing {
  using Element = typename Type::Element;
  using Accumulator = typename Type::Accumulator;
  static constexpr int kCount = sizeof(Bits) / sizeof(Element);
  using Code =
      std::conditional_t<sizeof(Element) == 1, std::uint8_t,
                         std::conditional_t<sizeof(Element) == 2, std::uint16_t,
                                            std::conditional_t<sizeof(Element) == 4, std::uint32_t, std::uint64_t>>>;

  TUTTI_DEVICE_CALL static void unpack(Bits bits, Accumulator* to) {
    TUTTI_UNROLL
    for (int i = 0; i < kCount; ++i) to[i] = Type::decode(element(bits, i));
  }
  TUTTI_DEVICE_CALL static Bits pack(const Accumulator* from) {
    Bits bits = 0;
    TUTTI_UNROLL
    for (int i = 0; i < kCount; ++i) bits |= placed(Type::encode(from[i]), i);
    return bits;
  }
  TUTTI_DEVICE_CALL static Element element(Bits bits, int i) {
    return __builtin_bit_cast(Element, static_cast<Code>(bits >> (i * 8 * static_cast<int>(sizeof(Element)))));
  }
  TUTTI_DEVICE_CALL static Bits placed(Element element, int i) {
    return static_cast<Bits>(__builtin_bit_cast(Code, element)) << (i * 8 * static_cast<int>(sizeof(Element)));
  }
};

}  // namespace tutti::cuda
