#include "element.h"

#include <bit>

namespace tutti::bench {
namespace {

constexpr ElementType kTypes[] = {
    {"int8", "char", ncclInt8, 1, false, true, 0, 0, 127},
    {"uint8", "uchar", ncclUint8, 1, false, false, 0, 0, 255},
    {"int32", "int", ncclInt32, 4, false, true, 0, 0, 1 << 30},
    {"uint32", "uint", ncclUint32, 4, false, false, 0, 0, 1 << 30},
    {"int64", "long", ncclInt64, 8, false, true, 0, 0, std::int64_t{1} << 52},
    {"uint64", "ulong", ncclUint64, 8, false, false, 0, 0, std::int64_t{1} << 52},
    {"half", "float16", ncclFloat16, 2, true, true, 10, 15, 2048},
    {"float", "float32", ncclFloat32, 4, true, true, 23, 127, 1 << 24},
    {"double", "float64", ncclFloat64, 8, true, true, 52, 1023, std::int64_t{1} << 52},
    {"bfloat16", "bf16", ncclBfloat16, 2, true, true, 7, 127, 256},
    {"f8e4m3", "float8e4m3", ncclFloat8e4m3, 1, true, true, 3, 7, 16},
    {"f8e5m2", "float8e5m2", ncclFloat8e5m2, 1, true, true, 2, 15, 8},
};

constexpr Reduction kReductions[] = {
    {"sum", ncclSum}, {"prod", ncclProd}, {"max", ncclMax}, {"min", ncclMin}, {"avg", ncclAvg}, {"mulsum", kScaledSum},
};

}  // namespace

std::span<const ElementType> element_types() { return kTypes; }
std::span<const Reduction> reductions() { return kReductions; }

const ElementType* element_type_named(std::string_view name) {
  for (const ElementType& type : kTypes)
    if (name == type.name || name == type.other_name) return &type;
  return nullptr;
}

const Reduction* reduction_named(std::string_view name) {
  for (const Reduction& reduction : kReductions)
    if (name == reduction.name) return &reduction;
  return nullptr;
}

std::uint64_t bits_of(std::int64_t value, const ElementType& type) {
  if (!type.is_float) return static_cast<std::uint64_t>(value);
  if (value == 0) return 0;
  const std::uint64_t sign = value < 0 ? 1 : 0;
  const std::uint64_t magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  // Whole numbers from 1 on are normal in every type here: a mantissa below 2 times 2 to the exponent.
  const int exponent = std::bit_width(magnitude) - 1;
  const std::uint64_t fraction = magnitude - (std::uint64_t{1} << exponent);
  const std::uint64_t mantissa = exponent <= type.mantissa_bits ? fraction << (type.mantissa_bits - exponent)
                                                                : fraction >> (exponent - type.mantissa_bits);
  const std::uint64_t biased = static_cast<std::uint64_t>(exponent + type.exponent_bias);
  return sign << (type.bytes * 8 - 1) | biased << type.mantissa_bits | mantissa;
}

}  // namespace tutti::bench
