#include "trainer/image_classifier.h"

#include <fmt/format.h>

namespace tutti::trainer {

ImageClassifier::ImageClassifier(Backend& backend, const std::vector<std::size_t>& sizes)
    : Model(backend), class_count_(sizes.back()), stack_(backend, sizes, Activation::kRelu, layout_) {}

std::string ImageClassifier::describe() const { return fmt::format("image classifier {}, ReLU", stack_.describe()); }

void ImageClassifier::initialise(float* parameters, Random& random) const { stack_.initialise(parameters, random); }

void ImageClassifier::evaluate(const float* parameters, const PlacedBatch& batch, LossSums* sums) {
  float* logits = stack_.forward(parameters, batch.features, batch.samples);
  backend_.softmax_cross_entropy(logits, batch.labels, batch.samples, class_count_, sums);
}

void ImageClassifier::forward_backward(const float* parameters, const PlacedBatch& batch, float* gradients,
                                       const GradientReady& ready, LossSums* sums) {
  evaluate(parameters, batch, sums);
  stack_.backward(parameters, batch.features, batch.samples, gradients, ready, nullptr);
}

}  // namespace tutti::trainer
