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
  explicit ImageClassifier(const std::vector<std::size_t>& sizes);

  std::string describe() const override;
  void initialise(float* parameters, Random& random) const override;
  LossSums evaluate(const float* parameters, const Batch& batch) override;
  LossSums forward_backward(const float* parameters, const Batch& batch, float* gradients,
                            const GradientReady& ready) override;

 private:
  std::size_t class_count_;
  DenseStack stack_;
};

}  // namespace tutti::trainer
