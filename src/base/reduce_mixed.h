// Reductions of which some sources and destinations are float32 and the others a float of 16 or 8 bits.
#pragma once

#include "base/dtype.h"
#include "base/reduce.h"

#include <cstddef>

namespace tutti {

/// Between a float of 16 or 8 bits and float32, elements in their order. Pointers need no alignment and do not overlap.
struct FloatConversion {
  void (*widen)(void* to, const void* from, std::size_t count) = nullptr;   ///< exact
  void (*narrow)(void* to, const void* from, std::size_t count) = nullptr;  ///< rounds as the reduction kernels do
};

/// What a mixed reduction is made of.
struct MixedKernels {
  ReduceFunction narrow = nullptr;  ///< the operation in the data type
  ReduceFunction wide = nullptr;    ///< the operation in float32
  FloatConversion conversion;
  std::size_t element_bytes = 0;  ///< of the data type
};

/// The reduction that `args` asks for. With nothing wide in it, that is kernels.narrow.
void reduce_mixed(const ReduceArgs& args, const MixedKernels& kernels);

}  // namespace tutti
