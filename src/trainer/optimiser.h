// Turns gradients into steps: SGD with momentum, and Adam. Element by element, so equal gradients give equal parameters on
// every rank.
#pragma once

#include "trainer/backend.h"

#include <cstddef>
#include <cstdint>

namespace tutti::trainer {

class Optimiser {
 public:
  /// The back end must outlive it.
  Optimiser(Backend& backend, std::size_t count) : backend_(backend), count_(count) {}
  virtual ~Optimiser() = default;
  /// One update with learning rate `lr`; gradients are sums over `samples`. Both are the back end's.
  virtual void step(float* parameters, const float* gradients, std::size_t samples, float lr) = 0;

 protected:
  Backend& backend_;
  std::size_t count_;
};

/// velocity = momentum * velocity + gradient; parameter -= lr * velocity
class Sgd : public Optimiser {
 public:
  Sgd(Backend& backend, std::size_t count, float momentum);
  void step(float* parameters, const float* gradients, std::size_t samples, float lr) override;

 private:
  Array<float> velocity_;
  float momentum_;
};

/// Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), algorithm 1 with its default constants.
class Adam : public Optimiser {
 public:
  Adam(Backend& backend, std::size_t count);
  void step(float* parameters, const float* gradients, std::size_t samples, float lr) override;

 private:
  Array<float> mean_, square_;
  std::int64_t steps_ = 0;
};

/// The learning rate of step 0 .. steps-1: falls from `lr` to a tenth of it along half a cosine.
float cosine_learning_rate(double lr, std::int64_t step, std::int64_t steps);

}  // namespace tutti::trainer
