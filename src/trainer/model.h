// What the training loop knows of a model: its parameters, and one pass forward and backward over a batch.
#pragma once

#include "trainer/dataset.h"
#include "trainer/layers.h"
#include "trainer/layout.h"
#include "trainer/random.h"

#include <cstddef>
#include <functional>
#include <string>

namespace tutti::trainer {

/// Called by the backward pass when the gradient of a tensor is complete; each tensor once, the last layer's first.
using GradientReady = std::function<void(std::size_t tensor_index)>;

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;  // its layers refer to its layout
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  const Layout& layout() const { return layout_; }
  /// "784-256-10, relu"
  virtual std::string describe() const = 0;
  virtual void initialise(float* parameters, Random& random) const = 0;

  /// Loss and hits of the batch, summed over its samples; no gradients.
  virtual LossSums evaluate(const float* parameters, const Batch& batch) = 0;
  /// The same, and every gradient (summed over the samples) written, not added, to `gradients`. A batch without samples
  /// gives zeros: its rank still takes part in every all-reduce.
  virtual LossSums forward_backward(const float* parameters, const Batch& batch, float* gradients,
                                    const GradientReady& ready) = 0;

 protected:
  Layout layout_;
};

}  // namespace tutti::trainer
