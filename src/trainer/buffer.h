// Floats on a cache-line boundary, zero at first: the same addresses modulo 64 in every run, so that no kernel that looks at
// alignment sums in another order.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace tutti::trainer {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t count)
      : floats_(static_cast<float*>(::operator new (count * sizeof(float), std::align_val_t{64}))), count_(count) {
    std::memset(floats_.get(), 0, count * sizeof(float));
  }

  float* data() { return floats_.get(); }
  const float* data() const { return floats_.get(); }
  std::size_t size() const { return count_; }
  std::span<float> span() { return {floats_.get(), count_}; }

 private:
  struct Free {
    void operator()(float* floats) const { ::operator delete (floats, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Free> floats_;
  std::size_t count_ = 0;
};

}  // namespace tutti::trainer
