// The layers' and optimisers' kernels: what backend.h says of each primitive, but for the matrix products. A kernel is a struct of its
// arguments, in device memory where they are pointers, with run(thread, shared), which every thread of every block calls; nvcc takes it
// (kernels.cu), and the C++ compiler too.
//
// A Thread gives index() and count() in its block, block() and blocks() in the launch, and sync() for all threads of the block. The threads of a
// block are a power of two, from 32 to kKernelThreads; blocks know nothing of each other. Kernels without shared memory take any number of
// blocks; the others say how many. No sum's order depends on who comes first: launches of the same size give the same bits.
#pragma once

#include "trainer/backend.h"

#include "base/device_call.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tutti::trainer::kernels {

inline constexpr std::uint32_t kKernelThreads = 256;

/// Of kernels whose threads need nothing of each other.
struct Nothing {};

/// For all threads of all blocks: elements from first() on, every stride()th.
template <class Thread>
TUTTI_DEVICE_CALL std::size_t first(const Thread& t) {
  return std::size_t{t.block()} * t.count() + t.index();
}
template <class Thread>
TUTTI_DEVICE_CALL std::size_t stride(const Thread& t) {
  return std::size_t{t.blocks()} * t.count();
}

/// y[s, o] = bias[o]: a product adds to it.
struct BiasRows {
  using Shared = Nothing;
  float* y;
  const float* bias;
  std::size_t samples, out;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared&) const {
    for (std::size_t i = first(t); i < samples * out; i += stride(t)) y[i] = bias[i % out];
  }
};

struct Activate {
  using Shared = Nothing;
  Activation activation;
  float* y;
  std::size_t count;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared&) const {
    for (std::size_t i = first(t); i < count; i += stride(t)) {
      y[i] = activation == Activation::kTanh ? std::tanh(y[i]) : y[i] > 0.0f ? y[i] : 0.0f;
    }
  }
};

struct ActivateGradient {
  using Shared = Nothing;
  Activation activation;
  const float* y;
  float* grad;
  std::size_t count;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared&) const {
    for (std::size_t i = first(t); i < count; i += stride(t)) {
      if (activation == Activation::kTanh) {
        grad[i] *= 1.0f - y[i] * y[i];
      } else if (!(y[i] > 0.0f)) {
        grad[i] = 0.0f;
      }
    }
  }
};

/// A block's sums of rows, for columns next to each other, at most as many as there are threads: out[c] = value(0, c) + value(1, c) + ... Each
/// thread sums a run of rows of one column; then one thread per column adds up the runs, in order.
struct RowSums {
  float part[kKernelThreads];

  template <class Thread, class Value>
  TUTTI_DEVICE_CALL void run(Thread& t, std::size_t rows, std::size_t columns, const Value& value, float* out) {
    const std::size_t parts = t.count() / columns;
    const std::size_t mine = t.index() / columns;
    const std::size_t column = t.index() % columns;
    float sum = 0;
    if (mine < parts) {
      for (std::size_t row = rows * mine / parts; row < rows * (mine + 1) / parts; ++row) sum += value(row, column);
    }
    part[t.index()] = sum;
    t.sync();
    if (t.index() < columns) {
      for (std::size_t p = 1; p < parts; ++p) sum += part[p * columns + column];
      out[column] = sum;
    }
    t.sync();  // so that it can be called again
  }
};

/// sums[c] over x[rows, columns]; a block for each kColumns of them.
struct ColumnSums {
  using Shared = RowSums;
  static constexpr std::size_t kColumns = 32;
  const float* x;
  float* sums;
  std::size_t rows, columns;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared& shared) const {
    const std::size_t begin = t.block() * kColumns;
    const std::size_t left = columns - begin;
    const auto value = [&](std::size_t row, std::size_t column) { return x[row * columns + begin + column]; };
    shared.run(t, rows, left < kColumns ? left : kColumns, value, sums + begin);
  }
};

struct EmbeddingRows {
  using Shared = Nothing;
  const std::uint8_t* bytes;
  const float* table;
  float* x;
  std::size_t count, width;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared&) const {
    for (std::size_t i = first(t); i < count * width; i += stride(t))
      x[i] = table[bytes[i / width] * width + i % width];
  }
};

/// A block for each of the table's 256 rows, which looks through all bytes.
struct EmbeddingSums {
  using Shared = RowSums;
  static constexpr std::size_t kRows = 256;
  const std::uint8_t* bytes;
  const float* x_grad;
  float* table_grad;
  std::size_t count, width;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared& shared) const {
    for (std::size_t begin = 0; begin < width; begin += t.count()) {
      const std::size_t left = width - begin;
      const auto value = [&](std::size_t row, std::size_t column) {
        return bytes[row] == t.block() ? x_grad[row * width + begin + column] : 0.0f;
      };
      shared.run(t, count, left < t.count() ? left : t.count(), value, table_grad + t.block() * width + begin);
    }
  }
};

/// What becomes of one sample.
struct SampleLoss {
  double loss;
  double correct;  ///< 0 or 1
};

/// Adds value[0] .. value[count of threads - 1] of a block in the order of a tree; all of it is in value[0] afterwards.
template <class Thread, class Value>
TUTTI_DEVICE_CALL void sum_tree(Thread& t, Value* value) {
  t.sync();
  for (std::uint32_t half = t.count() / 2; half > 0; half /= 2) {
    if (t.index() < half) value[t.index()] += value[t.index() + half];
    t.sync();
  }
}

/// A block for each sample: its row of logits becomes the gradient, and losses[sample] says the rest.
struct SoftmaxRows {
  struct Shared {
    float value[kKernelThreads];
    std::uint32_t place[kKernelThreads];
  };
  float* logits;
  const std::uint8_t* labels;
  SampleLoss* losses;
  std::size_t classes;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared& shared) const {
    float* const row = logits + t.block() * classes;
    const std::size_t label = labels[t.block()];
    const float label_logit = row[label];
    find_highest(t, shared, row);
    const float highest = shared.value[0];  // subtracted, so that exp() cannot overflow
    const bool is_guessed = shared.place[0] == label;
    t.sync();

    float sum = 0;
    for (std::size_t c = t.index(); c < classes; c += t.count()) {
      row[c] = std::exp(row[c] - highest);
      sum += row[c];
    }
    shared.value[t.index()] = sum;
    sum_tree(t, shared.value);
    const float total = shared.value[0];
    for (std::size_t c = t.index(); c < classes; c += t.count()) row[c] = row[c] / total - (c == label ? 1.0f : 0.0f);
    if (t.index() == 0) {
      const double loss = std::log(static_cast<double>(total)) - static_cast<double>(label_logit - highest);
      losses[t.block()] = {loss, is_guessed ? 1.0 : 0.0};
    }
  }

 private:
  /// The largest of the row, and the first place where it is, for everybody.
  template <class Thread>
  TUTTI_DEVICE_CALL void find_highest(Thread& t, Shared& shared, const float* row) const {
    float best = -INFINITY;
    auto place = static_cast<std::uint32_t>(classes);
    for (std::size_t c = t.index(); c < classes; c += t.count()) {
      if (row[c] > best) {
        best = row[c];
        place = static_cast<std::uint32_t>(c);
      }
    }
    shared.value[t.index()] = best;
    shared.place[t.index()] = place;
    t.sync();
    for (std::uint32_t half = t.count() / 2; half > 0; half /= 2) {
      if (t.index() < half) {
        const std::uint32_t other = t.index() + half;
        const float value = shared.value[other];
        if (value > best || (value == best && shared.place[other] < shared.place[t.index()])) {
          shared.value[t.index()] = best = value;
          shared.place[t.index()] = shared.place[other];
        }
      }
      t.sync();
    }
  }
};

/// One block.
struct LossTotal {
  struct Shared {
    double loss[kKernelThreads];
    double correct[kKernelThreads];
  };
  const SampleLoss* losses;
  LossSums* sums;
  std::size_t samples;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared& shared) const {
    double loss = 0, correct = 0;
    for (std::size_t s = t.index(); s < samples; s += t.count()) {
      loss += losses[s].loss;
      correct += losses[s].correct;
    }
    shared.loss[t.index()] = loss;
    shared.correct[t.index()] = correct;
    sum_tree(t, shared.loss);
    sum_tree(t, shared.correct);
    if (t.index() != 0) return;
    sums->loss += shared.loss[0];
    sums->correct += shared.correct[0];
  }
};

struct Add {
  using Shared = Nothing;
  float* sum;
  const float* part;
  std::size_t count;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared&) const {
    for (std::size_t i = first(t); i < count; i += stride(t)) sum[i] += part[i];
  }
};

struct Sgd {
  using Shared = Nothing;
  SgdStep s;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared&) const {
    for (std::size_t i = first(t); i < s.count; i += stride(t)) {
      const float velocity = s.momentum * s.velocity[i] + s.gradients[i] / s.samples;
      s.velocity[i] = velocity;
      s.parameters[i] -= s.lr * velocity;
    }
  }
};

struct Adam {
  using Shared = Nothing;
  AdamStep s;

  template <class Thread>
  TUTTI_DEVICE_CALL void run(Thread& t, Shared&) const {
    for (std::size_t i = first(t); i < s.count; i += stride(t)) {
      const float gradient = s.gradients[i] / s.samples;
      const float mean = AdamStep::kBeta1 * s.mean[i] + (1.0f - AdamStep::kBeta1) * gradient;
      const float square = AdamStep::kBeta2 * s.square[i] + (1.0f - AdamStep::kBeta2) * gradient * gradient;
      s.mean[i] = mean;
      s.square[i] = square;
      s.parameters[i] -= s.lr * (mean / s.mean_share) / (std::sqrt(square / s.square_share) + AdamStep::kEpsilon);
    }
  }
};

}  // namespace tutti::trainer::kernels
