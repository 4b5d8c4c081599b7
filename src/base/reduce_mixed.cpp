// A tile of elements at a time: narrow sources are widened, the float32 kernel folds them from left to right, and the sum
// is rounded for the narrow destinations. In the order that the kernels have, so that the bits are those of one kernel
// that accumulates in float32.
#include "base/reduce_mixed.h"

#include "base/assert.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

constexpr std::size_t kTile = 1024;  ///< elements: the tiles stay in the first cache

bool is_set(const std::uint8_t* flags, int at) { return flags != nullptr && flags[at] != 0; }
bool any(const std::uint8_t* flags, int count) {
  return flags != nullptr && std::any_of(flags, flags + count, [](std::uint8_t flag) { return flag != 0; });
}

/// One call, tile after tile.
class MixedReduction {
 public:
  MixedReduction(const ReduceArgs& args, const MixedKernels& kernels) : args_(args), kernels_(kernels) {}

  void run() {
    for (begin_ = 0; begin_ < args_.count; begin_ += length_) {
      length_ = std::min(kTile, args_.count - begin_);
      take_first();
      for (int s = 1; s < args_.source_count; ++s) fold(s);
      if (args_.source_count == 1 && args_.divisor != 0) wide(nullptr, args_.divisor);
      for (int d = 0; d < args_.destination_count; ++d) write(d);
    }
  }

 private:
  std::size_t bytes_of(bool is_wide) const { return is_wide ? sizeof(float) : kernels_.element_bytes; }

  void take_first() {
    const void* first = source(0, sum_);
    if (first != sum_) std::memcpy(sum_, first, length_ * sizeof(float));
  }
  void fold(int s) { wide(source(s, next_), s + 1 == args_.source_count ? args_.divisor : 0); }

  /// The source as float32: where it lies, or in `tile`. A scaled one is rounded to the data type first.
  const void* source(int s, float* tile) {
    const bool is_wide = is_set(args_.wide_sources, s);
    const auto* from = static_cast<const std::byte*>(args_.sources[s]) + begin_ * bytes_of(is_wide);
    const void* scale = args_.scales == nullptr ? nullptr : args_.scales[s];
    if (is_wide) {
      TUTTI_ASSERT(scale == nullptr);
      return from;
    }
    const void* elements = from;
    if (scale != nullptr) {
      void* const to = scaled_;
      kernels_.narrow({.sources = &elements,
                       .source_count = 1,
                       .destinations = &to,
                       .destination_count = 1,
                       .count = length_,
                       .scales = &scale});
      elements = scaled_;
    }
    kernels_.conversion.widen(tile, elements, length_);
    return tile;
  }

  /// sum_ = sum_ op next, then divided. Without next it is divided only.
  void wide(const void* next, int divisor) {
    const void* sources[] = {sum_, next};
    void* const to = sum_;
    kernels_.wide({.sources = sources,
                   .source_count = next == nullptr ? 1 : 2,
                   .destinations = &to,
                   .destination_count = 1,
                   .count = length_,
                   .divisor = divisor});
  }

  void write(int d) {
    const bool is_wide = is_set(args_.wide_destinations, d);
    auto* to = static_cast<std::byte*>(args_.destinations[d]) + begin_ * bytes_of(is_wide);
    if (is_wide) {
      std::memcpy(to, sum_, length_ * sizeof(float));
    } else {
      kernels_.conversion.narrow(to, sum_, length_);
    }
  }

  const ReduceArgs& args_;
  const MixedKernels& kernels_;
  std::size_t begin_ = 0;
  std::size_t length_ = 0;
  alignas(64) float sum_[kTile];
  alignas(64) float next_[kTile];
  alignas(64) std::byte scaled_[kTile * 2];
};

}  // namespace

void reduce_mixed(const ReduceArgs& args, const MixedKernels& kernels) {
  if (!any(args.wide_sources, args.source_count) && !any(args.wide_destinations, args.destination_count)) {
    kernels.narrow(args);
  } else {
    MixedReduction(args, kernels).run();
  }
}

}  // namespace tutti
