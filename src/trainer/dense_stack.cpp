#include "trainer/dense_stack.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace tutti::trainer {

DenseStack::DenseStack(Backend& backend, std::vector<std::size_t> sizes, Activation activation, Layout& layout)
    : backend_(backend), layout_(layout), activation_(activation) {
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    const std::size_t weight = layout.add(fmt::format("linear{}.weight", i), sizes[i] * sizes[i + 1]);
    const std::size_t bias = layout.add(fmt::format("linear{}.bias", i), sizes[i + 1]);
    layers_.push_back({sizes[i], sizes[i + 1], weight, bias, {}, {}});
  }
}

std::string DenseStack::describe() const {
  std::string text = fmt::format("{}", layers_.front().in);
  for (const auto& layer : layers_) text += fmt::format("-{}", layer.out);
  return text;
}

void DenseStack::initialise(float* parameters, Random& random) const {
  for (const auto& layer : layers_) {
    const bool last = &layer == &layers_.back();
    const float gain = activation_ == Activation::kRelu && !last ? 6.0f : 3.0f;
    const float limit = std::sqrt(gain / static_cast<float>(layer.in));
    const Tensor& weight = layout_[layer.weight];
    for (std::size_t i = 0; i < weight.count; ++i) parameters[weight.offset + i] = random.symmetric(limit);
    // Biases stay zero.
  }
}

void DenseStack::reserve(std::size_t samples) {
  if (samples <= samples_reserved_) return;
  for (auto& layer : layers_) {
    layer.output = backend_.zeros<float>(samples * layer.out);
    layer.output_grad = backend_.zeros<float>(samples * layer.out);
  }
  samples_reserved_ = samples;
}

float* DenseStack::forward(const float* parameters, const float* x, std::size_t samples) {
  reserve(samples);
  for (auto& layer : layers_) {
    float* y = layer.output.data();
    backend_.linear_forward(x, parameters + layout_[layer.weight].offset, parameters + layout_[layer.bias].offset, y,
                            layer.shape(samples));
    if (&layer != &layers_.back()) backend_.activation_forward(activation_, y, samples * layer.out);
    x = y;
  }
  return layers_.back().output.data();
}

void DenseStack::backward(const float* parameters, const float* x, std::size_t samples, float* gradients,
                          const GradientReady& ready, float* x_grad) {
  const float* y_grad = layers_.back().output.data();  // the logits' gradient took the logits' place
  for (std::size_t i = layers_.size(); i-- > 0;) {
    Layer& layer = layers_[i];
    const float* input = i == 0 ? x : layers_[i - 1].output.data();
    backend_.linear_backward_parameters(input, y_grad, gradients + layout_[layer.weight].offset,
                                        gradients + layout_[layer.bias].offset, layer.shape(samples));
    // Both gradients of this layer are complete: others may send them while the next layer is worked on.
    ready(layer.bias);
    ready(layer.weight);

    float* input_grad = i == 0 ? x_grad : layers_[i - 1].output_grad.data();
    if (input_grad == nullptr) continue;
    backend_.linear_backward_input(y_grad, parameters + layout_[layer.weight].offset, input_grad, layer.shape(samples));
    if (i > 0) backend_.activation_backward(activation_, input, input_grad, samples * layer.in);
    y_grad = input_grad;
  }
}

}  // namespace tutti::trainer
