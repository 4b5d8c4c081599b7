// The byte-level language model of `--model lm`, after Bengio et al., "A Neural Probabilistic Language Model" (2003): the bytes
// before become vectors from one shared table, side by side they go through hidden layers with tanh, and a softmax over 256
// bytes predicts the next one.
#pragma once

#include "trainer/dense_stack.h"
#include "trainer/model.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::trainer {

class LanguageModel : public Model {
 public:
  LanguageModel(Backend& backend, std::size_t context, std::size_t width, const std::vector<std::size_t>& hidden);

  std::string describe() const override;
  void initialise(float* parameters, Random& random) const override;
  void evaluate(const float* parameters, const PlacedBatch& batch, LossSums* sums) override;
  void forward_backward(const float* parameters, const PlacedBatch& batch, float* gradients, const GradientReady& ready,
                        LossSums* sums) override;

  /// Continues `prompt` (at least `context` bytes) by `count` bytes, drawn from the model's probabilities sharpened by
  /// `temperature` (below 1: likelier bytes get likelier).
  Outcome<std::string> sample(const float* parameters, std::string prompt, std::size_t count, double temperature,
                              Random& random);

 private:
  float* forward(const float* parameters, const std::uint8_t* bytes, std::size_t samples);

  std::size_t context_, width_;
  std::size_t table_;  ///< tensor index
  DenseStack stack_;
  Array<float> vectors_, vectors_grad_;
};

}  // namespace tutti::trainer
