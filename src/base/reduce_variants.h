// The instruction sets that the reduction kernels are built for, and the ways to use them, one by one: for tests and
// benchmarks. Everybody else calls reduce_function (reduce.h).
#pragma once

#include "base/dtype.h"
#include "base/reduce.h"
#include "base/reduce_mixed.h"

#include <cstdint>
#include <string_view>

namespace tutti {

/// In rising order of preference. kAvx512Whole differs from kAvx512 in that it converts float16 16 numbers at a time, not 8;
/// it is left out where the processor is slower so. kAvx512Half, in turn, adds float16 without conversion, where it adds two.
enum class ReduceVariant : std::uint8_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Whole = 3, kAvx512Half = 4 };
inline constexpr int kReduceVariants = 5;

/// "portable", "avx2", "avx512", "avx512-whole", "avx512-half": what TUTTI_SIMD accepts.
std::string_view name_of(ReduceVariant variant);

/// Whether this build has the variant and this processor can run it.
bool is_usable(ReduceVariant variant);

/// The kernel of one variant, which must be usable.
ReduceFunction reduce_function_of(ReduceVariant variant, DataType type, ReduceOp op);
FloatConversion float_conversion_of(ReduceVariant variant, DataType type);

}  // namespace tutti
