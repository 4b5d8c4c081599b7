// The arithmetic of the models, one pair of functions per layer: forward, and backward written by hand. Matrices are row
// major, one row per sample. Gradients are sums over the samples, not means: the step divides once, at the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::trainer {

/// One thread per rank for the matrix products: ranks share the cores, and one thread has one order of summation.
void use_one_blas_thread();

/// y[samples, out] = x[samples, in] * weight[in, out] + bias[out]
void linear_forward(const float* x, const float* weight, const float* bias, float* y, std::size_t samples,
                    std::size_t in, std::size_t out);
/// weight_grad[in, out] = x^T * y_grad and bias_grad[out] = column sums of y_grad. No samples: zeros.
void linear_backward_parameters(const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                std::size_t samples, std::size_t in, std::size_t out);
/// x_grad[samples, in] = y_grad * weight^T
void linear_backward_input(const float* y_grad, const float* weight, float* x_grad, std::size_t samples, std::size_t in,
                           std::size_t out);

enum class Activation : std::uint8_t { kRelu, kTanh };

/// y = activation(y)
void activation_forward(Activation activation, float* y, std::size_t count);
/// grad *= activation'(.), the derivative taken from the output y: max(0, z) has 1 or 0, tanh has 1 - y^2.
void activation_backward(Activation activation, const float* y, float* grad, std::size_t count);

/// x[samples, context * width] = the table rows of the context bytes, side by side. table[256, width].
void embedding_forward(const std::uint8_t* bytes, const float* table, float* x, std::size_t samples,
                       std::size_t context, std::size_t width);
/// table_grad[256, width] = sums of the x_grad pieces that came from each row.
void embedding_backward(const std::uint8_t* bytes, const float* x_grad, float* table_grad, std::size_t samples,
                        std::size_t context, std::size_t width);

struct LossSums {
  double loss = 0;     ///< -log of the probability given to the label, natural logarithm
  double correct = 0;  ///< samples whose label has the largest logit
  LossSums& operator+=(const LossSums& other) {
    loss += other.loss;
    correct += other.correct;
    return *this;
  }
};

/// Softmax and cross entropy. Turns logits[samples, classes] into the gradient of the summed loss, in place:
/// probability - (1 at the label).
LossSums softmax_cross_entropy(float* logits, const std::uint8_t* labels, std::size_t samples, std::size_t classes);

}  // namespace tutti::trainer
