// Where a rank computes: the memory of its arrays, and the arithmetic of the models and optimisers on it, one function per primitive, forward
// and backward written by hand. Two implementations: host_backend.h, cuda/cuda_backend.h.
//
// Matrices are row major, one row per sample. Gradients are sums over the samples, not means: the step divides once, at the end.
//
// Nothing here fails at once. What is asked for may still be under way when a function returns; the first failure is kept, nothing is done
// after it, and wait() says what it was.
#pragma once

#include "trainer/array.h"
#include "trainer/dataset.h"
#include "trainer/outcome.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::trainer {

enum class Activation : std::uint8_t { kRelu, kTanh };

/// Sums over samples.
struct LossSums {
  double loss = 0;     ///< -log of the probability given to the label, natural logarithm
  double correct = 0;  ///< samples whose label has the largest logit; of equal ones the first counts
};

/// A linear layer over a batch.
struct LinearShape {
  std::size_t samples, in, out;
};

/// A batch where the layers can read it.
struct PlacedBatch {
  std::size_t samples = 0;
  const float* features = nullptr;
  const std::uint8_t* bytes = nullptr;
  const std::uint8_t* labels = nullptr;
};

/// The gradients are sums over `samples`.
struct SgdStep {
  float* parameters;
  const float* gradients;
  float* velocity;
  std::size_t count;
  float samples, lr, momentum;
};
struct AdamStep {
  float* parameters;
  const float* gradients;
  float *mean, *square;
  std::size_t count;
  float samples, lr;
  float mean_share, square_share;  ///< what the averages' weights add up to so far
  static constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual tuttiDevice_t device() const = 0;
  /// For people: "the host", "NVIDIA H100".
  virtual std::string name() const = 0;

  // Memory. Arrays must be gone before the back end.

  template <class T>
  Array<T> zeros(std::size_t count) {
    return {allocate(count * sizeof(T)), count};
  }
  /// The same in memory that the ranks' collectives reach best.
  template <class T>
  Array<T> shared_zeros(std::size_t count) {
    return {allocate_shared(count * sizeof(T)), count};
  }
  /// From the host; `from` may change when it returns.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  /// To the host; there after wait().
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  /// Valid until the next call, or until the batch changes.
  virtual PlacedBatch place(const Batch& batch) = 0;

  // Layers.

  /// y[samples, out] = x[samples, in] * weight[in, out] + bias[out]
  virtual void linear_forward(const float* x, const float* weight, const float* bias, float* y, LinearShape shape) = 0;
  /// weight_grad[in, out] = x^T * y_grad and bias_grad[out] = column sums of y_grad. No samples: zeros.
  virtual void linear_backward_parameters(const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                          LinearShape shape) = 0;
  /// x_grad[samples, in] = y_grad * weight^T
  virtual void linear_backward_input(const float* y_grad, const float* weight, float* x_grad, LinearShape shape) = 0;

  /// y = activation(y)
  virtual void activation_forward(Activation activation, float* y, std::size_t count) = 0;
  /// grad *= activation'(.), the derivative taken from the output y: max(0, z) has 1 or 0, tanh has 1 - y^2.
  virtual void activation_backward(Activation activation, const float* y, float* grad, std::size_t count) = 0;

  /// x[count, width] = the table row of each byte. table[256, width].
  virtual void embedding_forward(const std::uint8_t* bytes, const float* table, float* x, std::size_t count,
                                 std::size_t width) = 0;
  /// table_grad[256, width] = sums of the x_grad rows that came from each table row.
  virtual void embedding_backward(const std::uint8_t* bytes, const float* x_grad, float* table_grad, std::size_t count,
                                  std::size_t width) = 0;

  /// Softmax and cross entropy. Turns logits[samples, classes] into the gradient of the summed loss, in place:
  /// probability - (1 at the label). Adds to *sums.
  virtual void softmax_cross_entropy(float* logits, const std::uint8_t* labels, std::size_t samples,
                                     std::size_t classes, LossSums* sums) = 0;

  // Steps.

  /// sum += part
  virtual void add(float* sum, const float* part, std::size_t count) = 0;
  /// velocity = momentum * velocity + gradient; parameter -= lr * velocity
  virtual void step(const SgdStep& sgd) = 0;
  virtual void step(const AdamStep& adam) = 0;

  // The order of computing and collectives.

  /// Where collectives on this memory go.
  virtual cudaStream_t collectives() const = 0;
  /// What is given to collectives() from now on comes after all that has been computed so far.
  virtual void before_collectives() = 0;
  /// What is computed from now on comes after all that collectives() was given so far.
  virtual void after_collectives() = 0;
  /// Until all is done, or failed.
  virtual Problem wait() = 0;
  /// Milliseconds in which computing stood still for collectives, up to the last wait(); counts from 0 after each call.
  virtual double stood_still_ms() = 0;

 private:
  /// Zeros; a failure gives nullptr.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  virtual std::shared_ptr<void> allocate_shared(std::size_t bytes) = 0;
};

}  // namespace tutti::trainer
