#include "trainer/layers.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace tutti::trainer {
namespace {

blasint blas_size(std::size_t n) { return static_cast<blasint>(n); }

}  // namespace

void use_one_blas_thread() { openblas_set_num_threads(1); }

void linear_forward(const float* x, const float* weight, const float* bias, float* y, std::size_t samples,
                    std::size_t in, std::size_t out) {
  if (samples == 0) return;
  for (std::size_t s = 0; s < samples; ++s) std::copy_n(bias, out, y + s * out);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, blas_size(samples), blas_size(out), blas_size(in), 1.0f, x,
              blas_size(in), weight, blas_size(out), 1.0f, y, blas_size(out));
}

void linear_backward_parameters(const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                std::size_t samples, std::size_t in, std::size_t out) {
  std::fill_n(bias_grad, out, 0.0f);
  if (samples == 0) {
    std::fill_n(weight_grad, in * out, 0.0f);
    return;
  }
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, blas_size(in), blas_size(out), blas_size(samples), 1.0f, x,
              blas_size(in), y_grad, blas_size(out), 0.0f, weight_grad, blas_size(out));
  for (std::size_t s = 0; s < samples; ++s) {
    for (std::size_t o = 0; o < out; ++o) bias_grad[o] += y_grad[s * out + o];
  }
}

void linear_backward_input(const float* y_grad, const float* weight, float* x_grad, std::size_t samples, std::size_t in,
                           std::size_t out) {
  if (samples == 0) return;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, blas_size(samples), blas_size(in), blas_size(out), 1.0f, y_grad,
              blas_size(out), weight, blas_size(out), 0.0f, x_grad, blas_size(in));
}

void activation_forward(Activation activation, float* y, std::size_t count) {
  if (activation == Activation::kRelu) {
    for (std::size_t i = 0; i < count; ++i) y[i] = y[i] > 0.0f ? y[i] : 0.0f;
  } else {
    for (std::size_t i = 0; i < count; ++i) y[i] = std::tanh(y[i]);
  }
}

void activation_backward(Activation activation, const float* y, float* grad, std::size_t count) {
  if (activation == Activation::kRelu) {
    for (std::size_t i = 0; i < count; ++i) grad[i] = y[i] > 0.0f ? grad[i] : 0.0f;
  } else {
    for (std::size_t i = 0; i < count; ++i) grad[i] *= 1.0f - y[i] * y[i];
  }
}

void embedding_forward(const std::uint8_t* bytes, const float* table, float* x, std::size_t samples,
                       std::size_t context, std::size_t width) {
  for (std::size_t i = 0; i < samples * context; ++i) std::copy_n(table + bytes[i] * width, width, x + i * width);
}

void embedding_backward(const std::uint8_t* bytes, const float* x_grad, float* table_grad, std::size_t samples,
                        std::size_t context, std::size_t width) {
  std::fill_n(table_grad, 256 * width, 0.0f);
  for (std::size_t i = 0; i < samples * context; ++i) {
    float* row = table_grad + bytes[i] * width;
    for (std::size_t w = 0; w < width; ++w) row[w] += x_grad[i * width + w];
  }
}

LossSums softmax_cross_entropy(float* logits, const std::uint8_t* labels, std::size_t samples, std::size_t classes) {
  LossSums sums;
  for (std::size_t s = 0; s < samples; ++s) {
    float* row = logits + s * classes;
    const float* best = std::max_element(row, row + classes);
    const std::size_t label = labels[s];
    if (static_cast<std::size_t>(best - row) == label) sums.correct += 1;

    const float highest = *best;  // subtracted, so that exp() cannot overflow
    const float label_logit = row[label] - highest;
    float total = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      row[c] = std::exp(row[c] - highest);
      total += row[c];
    }
    for (std::size_t c = 0; c < classes; ++c) row[c] /= total;
    row[label] -= 1.0f;
    sums.loss += std::log(static_cast<double>(total)) - static_cast<double>(label_logit);
  }
  return sums;
}

}  // namespace tutti::trainer
