// What the reduction kernels must compute, one element at a time and spelled out: the tests compare with this.
#pragma once

#include "base/dtype.h"
#include "base/float_formats.h"
#include "base/reduce_variants.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace tutti::reference {

template <class T>
T fold(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool take_max = op == ReduceOp::kMax;
    if (op == ReduceOp::kMax || op == ReduceOp::kMin) {
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      if (a == b) return std::signbit(a) == take_max ? b : a;  // only zeros differ here
      return (a > b) == take_max ? a : b;
    }
    return op == ReduceOp::kProduct ? a * b : a + b;
  } else {
    using Unsigned = std::uint64_t;  // arithmetic modulo 2^64 is right modulo every smaller power
    if (op == ReduceOp::kMax) return a > b ? a : b;
    if (op == ReduceOp::kMin) return a < b ? a : b;
    if (op == ReduceOp::kProduct) return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  }
}

/// The accumulator that memory's code becomes, and back. The formats' conversions have a test of their own.
template <DataType kType>
auto accumulator(const unsigned char* element) {
  const auto read = [&](auto value) {
    std::memcpy(&value, element, sizeof value);
    return value;
  };
  if constexpr (kType == DataType::kInt8)
    return read(std::int8_t{});
  else if constexpr (kType == DataType::kUint8)
    return read(std::uint8_t{});
  else if constexpr (kType == DataType::kInt32)
    return read(std::int32_t{});
  else if constexpr (kType == DataType::kUint32)
    return read(std::uint32_t{});
  else if constexpr (kType == DataType::kInt64)
    return read(std::int64_t{});
  else if constexpr (kType == DataType::kUint64)
    return read(std::uint64_t{});
  else if constexpr (kType == DataType::kFloat32)
    return read(float{});
  else if constexpr (kType == DataType::kFloat64)
    return read(double{});
  else if constexpr (kType == DataType::kFloat16)
    return Float16::decode<std::uint32_t>(read(std::uint16_t{}));
  else if constexpr (kType == DataType::kBfloat16)
    return Bfloat16::decode<std::uint32_t>(read(std::uint16_t{}));
  else if constexpr (kType == DataType::kFloat8e4m3)
    return Float8e4m3::decode<std::uint32_t>(*element);
  else
    return Float8e5m2::decode<std::uint32_t>(*element);
}

template <DataType kType, class T>
void put(unsigned char* element, T value) {
  const auto write = [&](auto code) { std::memcpy(element, &code, sizeof code); };
  if constexpr (kType == DataType::kFloat16)
    write(static_cast<std::uint16_t>(Float16::encode(value)));
  else if constexpr (kType == DataType::kBfloat16)
    write(static_cast<std::uint16_t>(Bfloat16::encode(value)));
  else if constexpr (kType == DataType::kFloat8e4m3)
    write(static_cast<std::uint8_t>(Float8e4m3::encode(value)));
  else if constexpr (kType == DataType::kFloat8e5m2)
    write(static_cast<std::uint8_t>(Float8e5m2::encode(value)));
  else
    write(value);
}

/// One element of the result: sources[s] and scales[s] (or nullptr) point to one element each.
template <DataType kType>
void reduce_element(ReduceOp op, const std::vector<const unsigned char*>& sources,
                    const std::vector<const unsigned char*>& scales, int divisor, unsigned char* result) {
  using T = decltype(accumulator<kType>(nullptr));
  const auto operand = [&](std::size_t s) {
    const T value = accumulator<kType>(sources[s]);
    if (scales.empty() || scales[s] == nullptr) return value;
    unsigned char rounded[8];
    put<kType>(rounded, fold<T>(ReduceOp::kProduct, value, accumulator<kType>(scales[s])));
    return accumulator<kType>(rounded);
  };
  if (sources.size() == 1 && scales.empty() && divisor == 0) {
    std::memcpy(result, sources[0], size_of(kType));
    return;
  }
  T total = operand(0);
  for (std::size_t s = 1; s < sources.size(); ++s) total = fold<T>(op, total, operand(s));
  if (divisor != 0) {
    if constexpr (std::is_floating_point_v<T>)
      total = total / static_cast<T>(divisor);
    else if constexpr (std::is_unsigned_v<T>)
      total = static_cast<T>(total / static_cast<std::uint64_t>(divisor));
    else
      total = static_cast<T>(total / static_cast<std::int64_t>(divisor));
  }
  put<kType>(result, total);
}

template <DataType kType>
bool same(const unsigned char* a, const unsigned char* b) {
  if (std::memcmp(a, b, size_of(kType)) == 0) return true;
  const auto x = accumulator<kType>(a);
  const auto y = accumulator<kType>(b);
  if constexpr (std::is_floating_point_v<decltype(x + y)>) return x != x && y != y;
  return false;
}

/// The functions above for a type known at run time.
using ReduceElement = void (*)(ReduceOp, const std::vector<const unsigned char*>&,
                               const std::vector<const unsigned char*>&, int, unsigned char*);
using Same = bool (*)(const unsigned char*, const unsigned char*);
struct Functions {
  ReduceElement reduce_element;
  Same same;
};
template <int kType = kDataTypes - 1>
Functions functions_of(DataType type) {
  constexpr auto kThis = static_cast<DataType>(kType);
  if (type == kThis) return {reduce_element<kThis>, same<kThis>};
  if constexpr (kType > 0) return functions_of<kType - 1>(type);
  return {};
}

/// Of the kernels, those that this machine can run.
inline std::vector<ReduceVariant> usable_variants() {
  std::vector<ReduceVariant> usable;
  for (int v = 0; v < kReduceVariants; ++v) {
    if (is_usable(static_cast<ReduceVariant>(v))) usable.push_back(static_cast<ReduceVariant>(v));
  }
  return usable;
}

}  // namespace tutti::reference
