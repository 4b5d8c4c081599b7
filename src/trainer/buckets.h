// Gradient buckets: which range of the flat gradient can be all-reduced now, while backward goes on with the layers below.
#pragma once

#include "trainer/layout.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti::trainer {

/// A range of floats in the flat array.
struct Range {
  std::size_t offset;
  std::size_t count;
};

/// Backward completes the last tensors first, so a bucket is a run of neighbouring tensors, counted from the end of the array. A
/// bucket is closed when it has reached `bucket_bytes`; a tensor is never cut, so a large one makes a large bucket.
class GradientBuckets {
 public:
  GradientBuckets(const Layout& layout, std::size_t bucket_bytes);

  /// Forgets what was ready; before every backward pass whose gradients are sent.
  void begin();
  /// The tensor's gradient is complete: the whole bucket's range if it was the last one missing there.
  std::optional<Range> ready(std::size_t tensor_index);

  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;            ///< per bucket
  std::vector<std::size_t> tensors_in_;  ///< per bucket
  std::vector<std::size_t> bucket_of_;   ///< per tensor
  std::vector<std::size_t> missing_;     ///< per bucket
};

}  // namespace tutti::trainer
