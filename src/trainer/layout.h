// Where each parameter tensor lies in the one flat array that holds them all. Gradients use the same layout, so that a run of
// neighbouring tensors is one range to all-reduce.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tutti::trainer {

struct Tensor {
  std::string name;
  std::size_t offset;  ///< in floats, a multiple of 16: every tensor starts on a cache line
  std::size_t count;
};

class Layout {
 public:
  /// Tensors are added in the order of the forward pass. Returns the tensor's index.
  std::size_t add(std::string name, std::size_t count) {
    tensors_.push_back({std::move(name), size_, count});
    size_ += (count + 15) / 16 * 16;
    return tensors_.size() - 1;
  }

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor& operator[](std::size_t index) const { return tensors_[index]; }
  /// Floats in the whole array; the gaps between tensors stay zero.
  std::size_t size() const { return size_; }
  std::size_t parameter_count() const {
    std::size_t count = 0;
    for (const auto& tensor : tensors_) count += tensor.count;
    return count;
  }

 private:
  std::vector<Tensor> tensors_;
  std::size_t size_ = 0;
};

}  // namespace tutti::trainer
