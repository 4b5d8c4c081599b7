#include "trainer/optimiser.h"

#include <cmath>
#include <numbers>

namespace tutti::trainer {

void Sgd::step(float* parameters, const float* gradients, std::size_t count, float lr) {
  float* velocity = velocity_.data();
  for (std::size_t i = 0; i < count; ++i) {
    velocity[i] = momentum_ * velocity[i] + gradients[i];
    parameters[i] -= lr * velocity[i];
  }
}

void Adam::step(float* parameters, const float* gradients, std::size_t count, float lr) {
  ++steps_;
  // Both averages start at zero; dividing by what their weights add up to so far removes that pull towards zero.
  const auto t = static_cast<double>(steps_);
  const auto mean_share = static_cast<float>(1.0 - std::pow(double{kBeta1}, t));
  const auto square_share = static_cast<float>(1.0 - std::pow(double{kBeta2}, t));
  float* mean = mean_.data();
  float* square = square_.data();
  for (std::size_t i = 0; i < count; ++i) {
    mean[i] = kBeta1 * mean[i] + (1.0f - kBeta1) * gradients[i];
    square[i] = kBeta2 * square[i] + (1.0f - kBeta2) * gradients[i] * gradients[i];
    parameters[i] -= lr * (mean[i] / mean_share) / (std::sqrt(square[i] / square_share) + kEpsilon);
  }
}

float cosine_learning_rate(double lr, std::int64_t step, std::int64_t steps) {
  const double done = steps > 1 ? static_cast<double>(step) / static_cast<double>(steps - 1) : 0.0;
  return static_cast<float>(lr * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * done))));
}

}  // namespace tutti::trainer
