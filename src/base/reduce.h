// The reduction kernels: add up several sources element by element, in the order given, and write the sum to several
// destinations. One reference, several instruction sets, the same bits from each.
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <cstdint>

namespace tutti {

struct ReduceArgs {
  const void* const* sources = nullptr;
  int source_count = 0;  ///< at least 1
  void* const* destinations = nullptr;
  int destination_count = 0;  ///< may be 0
  std::size_t count = 0;      ///< elements
  /// nullptr, or one entry per source: nullptr or one element of the data type that the source is multiplied with
  /// first (in the accumulator's precision, rounded to the data type). Only for sums.
  const void* const* scales = nullptr;
  /// 0, or: divide the sum by this in the accumulator's precision (average). Only for sums.
  int divisor = 0;
  /// nullptr, or one entry per source (destination): 1 if it is float32, whatever the data type. Only for functions that
  /// reduce_mixed_function gave. Such a source has no scale.
  const std::uint8_t* wide_sources = nullptr;
  const std::uint8_t* wide_destinations = nullptr;
  /// The first so many destinations are large and nobody reads them soon: written past the caches, where they are as
  /// aligned as the first of them relative to a cache line. A hint: the results are the same without. The portable kernels,
  /// calls with float32 among narrow sources or destinations, and calls of which one of these destinations is a source
  /// ignore it.
  /// What the caller stores later is seen after these stores, as with any other.
  int streamed_count = 0;
};

/// Pointers need no alignment. A destination may be exactly a source, and may not overlap one otherwise.
using ReduceFunction = void (*)(const ReduceArgs&);

/// The fastest kernel for this processor; never null. With one source and no scale it is a copy. kAverage is kSum; the
/// caller sets the divisor in the step that completes the sum.
ReduceFunction reduce_function(DataType type, ReduceOp op);

/// As memcpy, with `to` written past the caches where it begins a cache line.
void copy_past_caches(void* to, const void* from, std::size_t bytes);

/// Whether a copy by a string instruction (x86's rep movsb) is fast from some hundred bytes on.
bool has_fast_strings();

/// As reduce_function, for a float of 16 or 8 bits and arguments of which some may be float32. The sum is never rounded
/// but to narrow destinations.
ReduceFunction reduce_mixed_function(DataType type, ReduceOp op);

}  // namespace tutti
