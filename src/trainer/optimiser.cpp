#include "trainer/optimiser.h"

#include <cmath>
#include <numbers>

namespace tutti::trainer {

Sgd::Sgd(Backend& backend, std::size_t count, float momentum)
    : Optimiser(backend, count), velocity_(backend.zeros<float>(count)), momentum_(momentum) {}

void Sgd::step(float* parameters, const float* gradients, std::size_t samples, float lr) {
  backend_.step(SgdStep{.parameters = parameters,
                        .gradients = gradients,
                        .velocity = velocity_.data(),
                        .count = count_,
                        .samples = static_cast<float>(samples),
                        .lr = lr,
                        .momentum = momentum_});
}

Adam::Adam(Backend& backend, std::size_t count)
    : Optimiser(backend, count), mean_(backend.zeros<float>(count)), square_(backend.zeros<float>(count)) {}

void Adam::step(float* parameters, const float* gradients, std::size_t samples, float lr) {
  ++steps_;
  // Both averages start at zero; dividing by what their weights add up to so far removes that pull towards zero.
  const auto t = static_cast<double>(steps_);
  backend_.step(AdamStep{.parameters = parameters,
                         .gradients = gradients,
                         .mean = mean_.data(),
                         .square = square_.data(),
                         .count = count_,
                         .samples = static_cast<float>(samples),
                         .lr = lr,
                         .mean_share = static_cast<float>(1.0 - std::pow(double{AdamStep::kBeta1}, t)),
                         .square_share = static_cast<float>(1.0 - std::pow(double{AdamStep::kBeta2}, t))});
}

float cosine_learning_rate(double lr, std::int64_t step, std::int64_t steps) {
  const double done = steps > 1 ? static_cast<double>(step) / static_cast<double>(steps - 1) : 0.0;
  return static_cast<float>(lr * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * done))));
}

}  // namespace tutti::trainer
