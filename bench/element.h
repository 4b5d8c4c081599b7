// Data types and reductions as tutti-perf names them, and one element's value as bits.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tutti::bench {

struct ElementType {
  const char* name;        ///< nccl-tests' name: "float"
  const char* other_name;  ///< also accepted: "float32"
  ncclDataType_t type;
  int bytes;
  bool is_float;
  bool is_signed;
  int mantissa_bits;  ///< stored ones; floats only
  int exponent_bias;
  /// Whole numbers up to this are exact in the type, and so are their sums as long as these stay below it.
  std::int64_t exact_max;
};

struct Reduction {
  const char* name;
  ncclRedOp_t op;  ///< ncclNumOps: "mulsum", each rank's own PreMulSum
};
inline constexpr ncclRedOp_t kScaledSum = ncclNumOps;

std::span<const ElementType> element_types();
std::span<const Reduction> reductions();
const ElementType* element_type_named(std::string_view name);
const Reduction* reduction_named(std::string_view name);

/// The bits of a whole number that is exact in the type; integers wrap.
std::uint64_t bits_of(std::int64_t value, const ElementType& type);

}  // namespace tutti::bench
