#include "trainer/image_classifier.h"

#include <fmt/format.h>

namespace tutti::trainer {

ImageClassifier::ImageClassifier(const std::vector<std::size_t>& sizes)
    : class_count_(sizes.back()), stack_(sizes, Activation::kRelu, layout_) {}

std::string ImageClassifier::describe() const { return fmt::format("image classifier {}, ReLU", stack_.describe()); }

void ImageClassifier::initialise(float* parameters, Random& random) const { stack_.initialise(parameters, random); }

LossSums ImageClassifier::evaluate(const float* parameters, const Batch& batch) {
  float* logits = stack_.forward(parameters, batch.features.data(), batch.samples);
  return softmax_cross_entropy(logits, batch.labels.data(), batch.samples, class_count_);
}

LossSums ImageClassifier::forward_backward(const float* parameters, const Batch& batch, float* gradients,
                                           const GradientReady& ready) {
  const LossSums sums = evaluate(parameters, batch);
  stack_.backward(parameters, batch.features.data(), batch.samples, gradients, ready, nullptr);
  return sums;
}

}  // namespace tutti::trainer
