// A matrix product as work of the fake driver's streams: what the fake cuBLAS launches.
#pragma once

namespace fake_driver {

inline constexpr const char* kGemmKernel = "fake_gemm";

/// cublasSgemm's arguments, column major: c[m, n] = a[m, k] * b[k, n] + beta * c.
struct Gemm {
  bool transposed_a, transposed_b;
  int m, n, k;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float beta;
  float* c;
  int ldc;
};

}  // namespace fake_driver
