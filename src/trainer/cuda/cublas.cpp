#include "trainer/cuda/cublas.h"

#include <fmt/format.h>

#include <dlfcn.h>

#include <array>
#include <optional>
#include <string>

namespace tutti::trainer {
namespace {

// As cublas_v2.h declares them, since CUDA 4.
using CublasStatus = int;
enum Operation : int { kAsIs = 0, kTransposed = 1 };

struct Functions {
  CublasStatus (*create)(void** handle) = nullptr;
  CublasStatus (*destroy)(void* handle) = nullptr;
  CublasStatus (*set_stream)(void* handle, void* stream) = nullptr;
  CublasStatus (*multiply)(void* handle, Operation, Operation, int m, int n, int k, const float* alpha, const float* a,
                           int lda, const float* b, int ldb, const float* beta, float* c, int ldc) = nullptr;
  const char* (*explain)(CublasStatus) = nullptr;
};

Error unusable(std::string why) { return error(Code::kUnhandledCuda, std::move(why)); }

Result<Functions> load(int driver_version) {
  // The newest that this driver can run.
  static constexpr std::array kFiles = {"libcublas.so.13", "libcublas.so.12"};
  void* library = nullptr;
  std::string tried;
  for (const char* file : kFiles) {
    if (file == kFiles.front() && driver_version < 13000) continue;
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library) break;
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", dlerror());
  }
  if (!library) {
    return unusable(fmt::format(
        "no cuBLAS for a driver of CUDA {}.{}, which the matrix products need: {} (LD_LIBRARY_PATH can name the "
        "folder that it is in)",
        driver_version / 1000, driver_version % 1000 / 10, tried));
  }
  Functions f;
  std::string missing;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  };
  get(f.create, "cublasCreate_v2");
  get(f.destroy, "cublasDestroy_v2");
  get(f.set_stream, "cublasSetStream_v2");
  get(f.multiply, "cublasSgemm_v2");
  get(f.explain, "cublasGetStatusString");
  if (missing.empty()) return f;
  return unusable(fmt::format("the cuBLAS that was found has no {}: install one of CUDA 12 or newer", missing));
}

/// Opened once, and never closed.
const Result<Functions>& functions(int driver_version) {
  static const Result<Functions> loaded = load(driver_version);
  return loaded;
}

/// After it has been opened.
const Functions& functions() { return functions(0).value(); }

Status check(CublasStatus outcome, const char* function) {
  if (outcome == 0) [[likely]]
    return {};
  return unusable(fmt::format("{}: {}", function, functions().explain(outcome)));
}

}  // namespace

Cublas::~Cublas() {
  if (handle_) (void)functions().destroy(handle_);
}

Result<Cublas> Cublas::open(void* stream, int driver_version) {
  if (const auto& loaded = functions(driver_version); !loaded.ok()) return loaded.error();
  Cublas made;
  TUTTI_TRY(check(functions().create(&made.handle_), "cublasCreate"));
  TUTTI_TRY(check(functions().set_stream(made.handle_, stream), "cublasSetStream"));
  return made;
}

/// cuBLAS is column major: what it takes for c, a and b are ours transposed, and c^T = b^T * a^T.
Status Cublas::multiply(const Product& p) const {
  const auto size = [](std::size_t n) { return static_cast<int>(n); };
  const float alpha = 1.0f;
  return check(functions().multiply(handle_, p.transposed_b ? kTransposed : kAsIs, p.transposed_a ? kTransposed : kAsIs,
                                    size(p.columns), size(p.rows), size(p.inner), &alpha, p.b,
                                    size(p.transposed_b ? p.inner : p.columns), p.a,
                                    size(p.transposed_a ? p.rows : p.inner), &p.beta, p.c, size(p.columns)),
               "cublasSgemm");
}

}  // namespace tutti::trainer
