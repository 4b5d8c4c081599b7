// Which samples a rank works on in a step. All ranks know the whole order; nobody sends sample numbers.
#pragma once

#include "trainer/dataset.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::trainer {

/// 0 .. count-1 in an order that depends on the seed alone (Fisher-Yates).
SampleIds shuffled(std::size_t count, std::uint64_t seed);

/// Walks through the samples epoch by epoch, each epoch in a new order, a global batch at a time. The last batch of an epoch is
/// smaller where the batch does not divide the samples, so that an epoch has each sample exactly once.
class BatchOrder {
 public:
  BatchOrder(const SampleIds& samples, std::size_t batch_samples, std::uint64_t seed);

  std::size_t batches_per_epoch() const;
  /// The samples of the next global batch; valid until the next call.
  std::span<const std::uint32_t> next();

 private:
  void start_epoch();

  const SampleIds& samples_;
  std::size_t batch_samples_;
  std::uint64_t seed_;
  std::uint64_t epoch_ = 0;
  std::size_t position_ = 0;
  SampleIds order_;
};

/// Part `index` of `parts` of a batch: neighbours in the order, sizes that differ by one at most (the larger ones anywhere),
/// empty for some parts when there are fewer samples than parts. The parts together are the batch, each sample once.
std::span<const std::uint32_t> shard(std::span<const std::uint32_t> batch, std::size_t index, std::size_t parts);

}  // namespace tutti::trainer
