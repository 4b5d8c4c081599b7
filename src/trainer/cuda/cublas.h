// The cuBLAS wall: the library opened at run time, and the one product that the layers need. As the driver's wall (cuda/driver.h): nothing
// links with it, and a test that brings a libcublas.so of its own gets all calls.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tutti::trainer {

/// c[rows, columns] = a * b + beta * c, row major; `a` is [rows, inner], or [inner, rows] read transposed; `b` likewise. Float32 throughout.
struct Product {
  std::size_t rows, columns, inner;
  const float *a, *b;
  float* c;
  bool transposed_a, transposed_b;
  float beta;
};

/// A handle: of the context that was current when it was opened, for one stream. Products of one handle on one stream have the same bits
/// in every run, says cuBLAS's manual.
class Cublas {
 public:
  Cublas() = default;
  Cublas(Cublas&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Cublas& operator=(Cublas&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Cublas();
  /// kUnhandledCuda: no libcublas that fits the driver of CUDA `driver_version` (13000: 13.0) can be opened, or it refuses; the message says
  /// what was looked for.
  static Result<Cublas> open(void* stream, int driver_version);

  /// All sizes above 0, and below 2^31.
  Status multiply(const Product& product) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace tutti::trainer
