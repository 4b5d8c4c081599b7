// A stack of linear layers with an activation between them: all of the classifier, and the language model behind its
// embedding.
#pragma once

#include "trainer/model.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tutti::trainer {

class DenseStack {
 public:
  /// sizes: the input, the hidden layers, the output. Adds its tensors to `layout`.
  DenseStack(Backend& backend, std::vector<std::size_t> sizes, Activation activation, Layout& layout);

  /// "784-256-10"
  std::string describe() const;
  /// Uniform weights whose variance keeps the size of signals from layer to layer (He et al. 2015; Glorot and Bengio 2010).
  void initialise(float* parameters, Random& random) const;

  /// x[samples, sizes.front()] to logits[samples, sizes.back()], which live here until the next call and may be overwritten
  /// (softmax_cross_entropy turns them into their gradient).
  float* forward(const float* parameters, const float* x, std::size_t samples);

  /// After forward() with the same x, and with the gradient of the logits in their place. x_grad: nullptr when nobody needs it.
  void backward(const float* parameters, const float* x, std::size_t samples, float* gradients,
                const GradientReady& ready, float* x_grad);

 private:
  struct Layer {
    std::size_t in, out;
    std::size_t weight, bias;  ///< tensor indexes
    Array<float> output, output_grad;

    LinearShape shape(std::size_t samples) const { return {samples, in, out}; }
  };

  void reserve(std::size_t samples);

  Backend& backend_;
  Layout& layout_;
  Activation activation_;
  std::vector<Layer> layers_;
  std::size_t samples_reserved_ = 0;
};

}  // namespace tutti::trainer
