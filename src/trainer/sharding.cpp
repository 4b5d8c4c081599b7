#include "trainer/sharding.h"

#include "trainer/random.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti::trainer {

SampleIds shuffled(std::size_t count, std::uint64_t seed) {
  SampleIds order(count);
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

BatchOrder::BatchOrder(const SampleIds& samples, std::size_t batch_samples, std::uint64_t seed)
    : samples_(samples), batch_samples_(batch_samples), seed_(seed) {
  start_epoch();
}

std::size_t BatchOrder::batches_per_epoch() const { return (samples_.size() + batch_samples_ - 1) / batch_samples_; }

void BatchOrder::start_epoch() {
  order_ = shuffled(samples_.size(), Random(seed_ + epoch_).next());
  for (auto& id : order_) id = samples_[id];
  position_ = 0;
  ++epoch_;
}

std::span<const std::uint32_t> BatchOrder::next() {
  if (position_ == order_.size()) start_epoch();
  const std::size_t count = std::min(batch_samples_, order_.size() - position_);
  const std::span<const std::uint32_t> batch(order_.data() + position_, count);
  position_ += count;
  return batch;
}

std::span<const std::uint32_t> shard(std::span<const std::uint32_t> batch, std::size_t index, std::size_t parts) {
  const std::size_t begin = batch.size() * index / parts;
  const std::size_t end = batch.size() * (index + 1) / parts;
  return batch.subspan(begin, end - begin);
}

}  // namespace tutti::trainer
