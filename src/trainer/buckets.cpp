#include "trainer/buckets.h"

namespace tutti::trainer {

GradientBuckets::GradientBuckets(const Layout& layout, std::size_t bucket_bytes) : bucket_of_(layout.tensors().size()) {
  std::size_t end = layout.size();
  bool open = false;
  for (std::size_t t = layout.tensors().size(); t-- > 0;) {
    const std::size_t begin = layout[t].offset;
    if (!open) {
      ranges_.push_back({begin, 0});
      tensors_in_.push_back(0);
    }
    Range& range = ranges_.back();
    range.offset = begin;
    range.count = end - begin;
    ++tensors_in_.back();
    bucket_of_[t] = ranges_.size() - 1;
    open = range.count * sizeof(float) < bucket_bytes;
    if (!open) end = begin;
  }
  begin();
}

void GradientBuckets::begin() { missing_ = tensors_in_; }

std::optional<Range> GradientBuckets::ready(std::size_t tensor_index) {
  const std::size_t bucket = bucket_of_[tensor_index];
  if (--missing_[bucket] > 0) return {};
  return ranges_[bucket];
}

}  // namespace tutti::trainer
