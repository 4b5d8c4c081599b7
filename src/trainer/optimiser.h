// Turns gradients into steps: SGD with momentum, and Adam. Element by element, so equal gradients give equal parameters on
// every rank.
#pragma once

#include "trainer/buffer.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti::trainer {

class Optimiser {
 public:
  virtual ~Optimiser() = default;
  /// One update with learning rate `lr`; gradients are means over the batch.
  virtual void step(float* parameters, const float* gradients, std::size_t count, float lr) = 0;
};

/// velocity = momentum * velocity + gradient; parameter -= lr * velocity
class Sgd : public Optimiser {
 public:
  Sgd(std::size_t count, float momentum) : velocity_(count), momentum_(momentum) {}
  void step(float* parameters, const float* gradients, std::size_t count, float lr) override;

 private:
  Buffer velocity_;
  float momentum_;
};

/// Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), algorithm 1 with its default constants.
class Adam : public Optimiser {
 public:
  static constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f;

  explicit Adam(std::size_t count) : mean_(count), square_(count) {}
  void step(float* parameters, const float* gradients, std::size_t count, float lr) override;

 private:
  Buffer mean_, square_;
  std::int64_t steps_ = 0;
};

/// The learning rate of step 0 .. steps-1: falls from `lr` to a tenth of it along half a cosine.
float cosine_learning_rate(double lr, std::int64_t step, std::int64_t steps);

}  // namespace tutti::trainer
