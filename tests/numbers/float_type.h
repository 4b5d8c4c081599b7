// The float types as the tests of rounding see them: their precision, and numbers to and from bits.
#pragma once

#include "base/dtype.h"
#include "base/float_formats.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tutti::numbers {

/// `unit`: half the distance from 1 to the next number. `least`: half the smallest number.
struct FloatType {
  DataType type;
  std::size_t bytes;
  double unit;
  double least;
  const char* name;

  /// Computed in float32, rounded to the type afterwards.
  bool narrow() const { return bytes < 4; }
};

inline constexpr FloatType kFloatTypes[] = {
    {DataType::kBfloat16, 2, 0x1p-8, 0x1p-134, "bfloat16"},
    {DataType::kFloat16, 2, 0x1p-11, 0x1p-25, "float16"},
    {DataType::kFloat8e4m3, 1, 0x1p-4, 0x1p-10, "float8e4m3"},
    {DataType::kFloat8e5m2, 1, 0x1p-3, 0x1p-17, "float8e5m2"},
    {DataType::kFloat32, 4, 0x1p-24, 0x1p-150, "float32"},
    {DataType::kFloat64, 8, 0x1p-53, 0, "float64"},
};

/// Rounded to the type by way of float32, where the type is narrower.
inline std::uint64_t encode(const FloatType& type, double value) {
  const auto narrow = static_cast<float>(value);
  std::uint64_t bits = 0;
  switch (type.type) {
    case DataType::kFloat16: return Float16::encode(narrow);
    case DataType::kBfloat16: return Bfloat16::encode(narrow);
    case DataType::kFloat8e4m3: return Float8e4m3::encode(narrow);
    case DataType::kFloat8e5m2: return Float8e5m2::encode(narrow);
    case DataType::kFloat32: std::memcpy(&bits, &narrow, 4); return bits;
    default: std::memcpy(&bits, &value, 8); return bits;
  }
}

inline double decode(const FloatType& type, std::uint64_t bits) {
  const auto code = static_cast<std::uint32_t>(bits);
  float narrow = 0;
  double wide = 0;
  switch (type.type) {
    case DataType::kFloat16: return Float16::decode(code);
    case DataType::kBfloat16: return Bfloat16::decode(code);
    case DataType::kFloat8e4m3: return Float8e4m3::decode(code);
    case DataType::kFloat8e5m2: return Float8e5m2::decode(code);
    case DataType::kFloat32: std::memcpy(&narrow, &bits, 4); return narrow;
    default: std::memcpy(&wide, &bits, 8); return wide;
  }
}

inline double load(const FloatType& type, const std::byte* from) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, type.bytes);
  return decode(type, bits);
}

inline void store(const FloatType& type, double value, std::byte* to) {
  const std::uint64_t bits = encode(type, value);
  std::memcpy(to, &bits, type.bytes);
}

}  // namespace tutti::numbers
