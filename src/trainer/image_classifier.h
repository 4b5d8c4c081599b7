// The classifier of `--model mlp`: pixels, hidden layers with ReLU, one logit per class.
#pragma once

#include "trainer/dense_stack.h"
#include "trainer/model.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tutti::trainer {

class ImageClassifier : public Model {
 public:
  /// sizes: pixels, hidden layers, classes.
  ImageClassifier(Backend& backend, const std::vector<std::size_t>& sizes);

  std::string describe() const override;
  void initialise(float* parameters, Random& random) const override;
  void evaluate(const float* parameters, const PlacedBatch& batch, LossSums* sums) override;
  void forward_backward(const float* parameters, const PlacedBatch& batch, float* gradients, const GradientReady& ready,
                        LossSums* sums) override;

 private:
  std::size_t class_count_;
  DenseStack stack_;
};

}  // namespace tutti::trainer
