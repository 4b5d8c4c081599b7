// What the training loop knows of a model: its parameters, and one pass forward and backward over a batch.
#pragma once

#include "trainer/backend.h"
#include "trainer/layout.h"
#include "trainer/random.h"

#include <cstddef>
#include <functional>
#include <string>

namespace tutti::trainer {

/// Called by the backward pass when the gradient of a tensor is complete, or asked of the back end; each tensor once, the last layer's first.
using GradientReady = std::function<void(std::size_t tensor_index)>;

class Model {
 public:
  /// Computes on the back end, which must outlive it; so are all arrays that it is given, but initialise()'s.
  explicit Model(Backend& backend) : backend_(backend) {}
  Model(const Model&) = delete;  // its layers refer to its layout
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  const Layout& layout() const { return layout_; }
  /// "784-256-10, relu"
  virtual std::string describe() const = 0;
  /// `parameters`: zeros on the host.
  virtual void initialise(float* parameters, Random& random) const = 0;

  /// Adds the batch's loss and hits to *sums; no gradients.
  virtual void evaluate(const float* parameters, const PlacedBatch& batch, LossSums* sums) = 0;
  /// The same, and every gradient (summed over the samples) written, not added, to `gradients`. A batch without samples
  /// gives zeros: its rank still takes part in every all-reduce.
  virtual void forward_backward(const float* parameters, const PlacedBatch& batch, float* gradients,
                                const GradientReady& ready, LossSums* sums) = 0;

 protected:
  Backend& backend_;
  Layout layout_;
};

}  // namespace tutti::trainer
