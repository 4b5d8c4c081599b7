// A cuBLAS without a GPU: a libcublas.so.13 with the few functions that tutti-train looks for, whose products run in the order of the
// streams of whatever libcuda.so.1 there is; the fake one knows their kernel.
#include "gemm.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using fake_driver::Gemm;

enum Outcome : int { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kExecutionFailed = 13 };

struct Handle {
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction gemm = nullptr;
};

template <class Function>
Function driver(const char* name, int version) {
  static const auto find = reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress"));
  void* function = nullptr;
  (void)find(name, &function, version, 0);
  return reinterpret_cast<Function>(function);
}

}  // namespace

FAKE_EXPORT int cublasCreate_v2(void** handle) {
  // FAKE_CUBLAS=broken: what a cuBLAS says that is newer than the driver.
  const char* const how = std::getenv("FAKE_CUBLAS");
  if (how && std::string_view(how) == "broken") return kNotInitialized;
  Handle made;
  if (driver<PFN_cuModuleLoadData_v2000>("cuModuleLoadData", 2000)(&made.module, "") != CUDA_SUCCESS)
    return kNotInitialized;
  if (driver<PFN_cuModuleGetFunction_v2000>("cuModuleGetFunction", 2000)(&made.gemm, made.module,
                                                                         fake_driver::kGemmKernel) != CUDA_SUCCESS) {
    (void)driver<PFN_cuModuleUnload_v2000>("cuModuleUnload", 2000)(made.module);
    return kNotInitialized;
  }
  *handle = new Handle(made);
  return kSuccess;
}

FAKE_EXPORT int cublasDestroy_v2(void* handle) {
  auto* const mine = static_cast<Handle*>(handle);
  (void)driver<PFN_cuModuleUnload_v2000>("cuModuleUnload", 2000)(mine->module);
  delete mine;
  return kSuccess;
}

FAKE_EXPORT int cublasSetStream_v2(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = static_cast<CUstream>(stream);
  return kSuccess;
}

FAKE_EXPORT int cublasSgemm_v2(void* handle, int operation_a, int operation_b, int m, int n, int k, const float* alpha,
                               const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
  const bool turned_a = operation_a != 0;
  const bool turned_b = operation_b != 0;
  // As cuBLAS's manual has it: columns may not overlap.
  if (*alpha != 1.0f || m < 1 || n < 1 || k < 1 || lda < (turned_a ? k : m) || ldb < (turned_b ? n : k) || ldc < m) {
    return kInvalidValue;
  }
  Gemm gemm{turned_a, turned_b, m, n, k, a, lda, b, ldb, *beta, c, ldc};
  const auto& mine = *static_cast<Handle*>(handle);
  CUlaunchConfig shape{};
  shape.gridDimX = shape.gridDimY = shape.gridDimZ = 1;
  shape.blockDimX = shape.blockDimY = shape.blockDimZ = 1;
  shape.hStream = mine.stream;
  void* parameters[] = {&gemm};
  const auto launch = driver<PFN_cuLaunchKernelEx_v11060>("cuLaunchKernelEx", 11060);
  return launch(&shape, mine.gemm, parameters, nullptr) == CUDA_SUCCESS ? kSuccess : kExecutionFailed;
}

FAKE_EXPORT const char* cublasGetStatusString(int status) {
  switch (status) {
    case kNotInitialized: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kInvalidValue: return "CUBLAS_STATUS_INVALID_VALUE";
    case kExecutionFailed: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS_OF_THE_FAKE";
  }
}
