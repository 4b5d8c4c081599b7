#include "trainer/host_backend.h"

#include <fmt/format.h>

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tutti::trainer {
namespace {

blasint blas_size(std::size_t n) { return static_cast<blasint>(n); }

/// c[rows, columns] = a * b + beta * c, over `inner`.
struct Product {
  std::size_t rows, columns, inner;
  float beta;
};
enum class Read : std::uint8_t { kAsIs, kTransposed };

void multiply(Product p, Read read_a, const float* a, Read read_b, const float* b, float* c) {
  const bool turn_a = read_a == Read::kTransposed;
  const bool turn_b = read_b == Read::kTransposed;
  cblas_sgemm(CblasRowMajor, turn_a ? CblasTrans : CblasNoTrans, turn_b ? CblasTrans : CblasNoTrans, blas_size(p.rows),
              blas_size(p.columns), blas_size(p.inner), 1.0f, a, blas_size(turn_a ? p.rows : p.inner), b,
              blas_size(turn_b ? p.inner : p.columns), p.beta, c, blas_size(p.columns));
}

}  // namespace

Outcome<std::unique_ptr<Backend>> HostBackend::make() {
  // One thread per rank for the matrix products: ranks share the cores, and one thread has one order of summation.
  openblas_set_num_threads(1);
  std::unique_ptr<HostBackend> backend(new HostBackend);
  if (tuttiStreamCreate(&backend->stream_) != ncclSuccess) {
    return Failure{fmt::format("making a stream: {}", ncclGetLastError(nullptr))};
  }
  return std::unique_ptr<Backend>(std::move(backend));
}

HostBackend::~HostBackend() {
  if (stream_ != nullptr) (void)tuttiStreamDestroy(stream_);
}

std::shared_ptr<void> HostBackend::allocate_shared(std::size_t bytes) {
  void* memory = nullptr;
  if (tuttiMemAlloc(&memory, bytes, nullptr) == ncclSuccess) {
    return {memory, [](void* shared) { (void)tuttiMemFree(shared); }};
  }
  if (!failure_) {
    failure_ = Failure{fmt::format("{} bytes of memory for the ranks to share: {}", bytes, ncclGetLastError(nullptr))};
  }
  return nullptr;
}

void HostBackend::upload(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void HostBackend::download(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

PlacedBatch HostBackend::place(const Batch& batch) {
  return {batch.samples, batch.features.data(), batch.bytes.data(), batch.labels.data()};
}

void HostBackend::linear_forward(const float* x, const float* weight, const float* bias, float* y, LinearShape shape) {
  if (shape.samples == 0) return;
  for (std::size_t s = 0; s < shape.samples; ++s) std::copy_n(bias, shape.out, y + s * shape.out);
  multiply({shape.samples, shape.out, shape.in, 1.0f}, Read::kAsIs, x, Read::kAsIs, weight, y);
}

void HostBackend::linear_backward_parameters(const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                             LinearShape shape) {
  std::fill_n(bias_grad, shape.out, 0.0f);
  if (shape.samples == 0) {
    std::fill_n(weight_grad, shape.in * shape.out, 0.0f);
    return;
  }
  multiply({shape.in, shape.out, shape.samples, 0.0f}, Read::kTransposed, x, Read::kAsIs, y_grad, weight_grad);
  for (std::size_t s = 0; s < shape.samples; ++s) {
    for (std::size_t o = 0; o < shape.out; ++o) bias_grad[o] += y_grad[s * shape.out + o];
  }
}

void HostBackend::linear_backward_input(const float* y_grad, const float* weight, float* x_grad, LinearShape shape) {
  if (shape.samples == 0) return;
  multiply({shape.samples, shape.in, shape.out, 0.0f}, Read::kAsIs, y_grad, Read::kTransposed, weight, x_grad);
}

void HostBackend::activation_forward(Activation activation, float* y, std::size_t count) {
  if (activation == Activation::kRelu) {
    for (std::size_t i = 0; i < count; ++i) y[i] = y[i] > 0.0f ? y[i] : 0.0f;
  } else {
    for (std::size_t i = 0; i < count; ++i) y[i] = std::tanh(y[i]);
  }
}

void HostBackend::activation_backward(Activation activation, const float* y, float* grad, std::size_t count) {
  if (activation == Activation::kRelu) {
    for (std::size_t i = 0; i < count; ++i) grad[i] = y[i] > 0.0f ? grad[i] : 0.0f;
  } else {
    for (std::size_t i = 0; i < count; ++i) grad[i] *= 1.0f - y[i] * y[i];
  }
}

void HostBackend::embedding_forward(const std::uint8_t* bytes, const float* table, float* x, std::size_t count,
                                    std::size_t width) {
  for (std::size_t i = 0; i < count; ++i) std::copy_n(table + bytes[i] * width, width, x + i * width);
}

void HostBackend::embedding_backward(const std::uint8_t* bytes, const float* x_grad, float* table_grad,
                                     std::size_t count, std::size_t width) {
  std::fill_n(table_grad, 256 * width, 0.0f);
  for (std::size_t i = 0; i < count; ++i) {
    float* row = table_grad + bytes[i] * width;
    for (std::size_t w = 0; w < width; ++w) row[w] += x_grad[i * width + w];
  }
}

void HostBackend::softmax_cross_entropy(float* logits, const std::uint8_t* labels, std::size_t samples,
                                        std::size_t classes, LossSums* sums) {
  LossSums batch;
  for (std::size_t s = 0; s < samples; ++s) {
    float* row = logits + s * classes;
    const float* best = std::max_element(row, row + classes);
    const std::size_t label = labels[s];
    if (static_cast<std::size_t>(best - row) == label) batch.correct += 1;

    const float highest = *best;  // subtracted, so that exp() cannot overflow
    const float label_logit = row[label] - highest;
    float total = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      row[c] = std::exp(row[c] - highest);
      total += row[c];
    }
    for (std::size_t c = 0; c < classes; ++c) row[c] /= total;
    row[label] -= 1.0f;
    batch.loss += std::log(static_cast<double>(total)) - static_cast<double>(label_logit);
  }
  // The batch's own sum first: so ranks that each compute a part add up to the same bits.
  sums->loss += batch.loss;
  sums->correct += batch.correct;
}

void HostBackend::add(float* sum, const float* part, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
}

void HostBackend::step(const SgdStep& step) {
  const SgdStep sgd = step;  // a copy of its own, which no store through a pointer can change
  for (std::size_t i = 0; i < sgd.count; ++i) {
    sgd.velocity[i] = sgd.momentum * sgd.velocity[i] + sgd.gradients[i] / sgd.samples;
    sgd.parameters[i] -= sgd.lr * sgd.velocity[i];
  }
}

void HostBackend::step(const AdamStep& step) {
  const AdamStep adam = step;
  for (std::size_t i = 0; i < adam.count; ++i) {
    const float gradient = adam.gradients[i] / adam.samples;
    const float mean = AdamStep::kBeta1 * adam.mean[i] + (1.0f - AdamStep::kBeta1) * gradient;
    const float square = AdamStep::kBeta2 * adam.square[i] + (1.0f - AdamStep::kBeta2) * gradient * gradient;
    adam.mean[i] = mean;
    adam.square[i] = square;
    adam.parameters[i] -=
        adam.lr * (mean / adam.mean_share) / (std::sqrt(square / adam.square_share) + AdamStep::kEpsilon);
  }
}

/// What failed in a collective, the communicator knows.
void HostBackend::after_collectives() {
  const auto start = std::chrono::steady_clock::now();
  if (tuttiStreamSynchronize(stream_) != ncclSuccess && !failure_) {
    failure_ = Failure{fmt::format("waiting for the other ranks: {}", ncclGetLastError(nullptr))};
  }
  stood_still_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Problem HostBackend::wait() {
  after_collectives();
  return failure_;
}

}  // namespace tutti::trainer
