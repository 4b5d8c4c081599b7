// The driver wall: the one way in which the library calls CUDA. The driver's library is opened at run time, so that nothing links
// with CUDA; every call gives a Status with the function's and the error's name. A test that brings a libcuda.so.1 of its own gets
// all calls.
#pragma once

#include "base/result.h"
#include "cuda/context.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

namespace tutti::cuda {

/// "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", kUnhandledCuda.
Error driver_error(const char* function, CUresult result, std::source_location where = std::source_location::current());

template <class Function>
class DriverFunction;

template <class... Args>
class DriverFunction<CUresult(CUDAAPI*)(Args...)> {
 public:
  using Pointer = CUresult(CUDAAPI*)(Args...);

  constexpr explicit DriverFunction(const char* name) : name_(name) {}
  Status operator()(Args... args) const {
    const CUresult result = raw(args...);
    if (result == CUDA_SUCCESS) [[likely]]
      return {};
    return driver_error(name_, result);
  }
  /// Where one error code is an answer.
  CUresult raw(Args... args) const { return pointer_ ? pointer_(args...) : CUDA_ERROR_NOT_FOUND; }
  const char* name() const { return name_; }
  void set(void* address) { pointer_ = reinterpret_cast<Pointer>(address); }

 private:
  const char* name_;
  Pointer pointer_ = nullptr;
};

/// One member per row of driver_functions.def.
struct Driver {
#define TUTTI_DRIVER_FUNCTION(member, function, version) DriverFunction<PFN_##function##_v##version> member{#function};
#include "cuda/driver_functions.def"
#undef TUTTI_DRIVER_FUNCTION

  PFN_cuGetErrorName_v6000 error_name = nullptr;
  PFN_cuGetErrorString_v6000 error_string = nullptr;
};

/// Opened and initialised on first use; a failure is kept. kUnhandledCuda: there is no driver, it is too old, or it has no device: the
/// message says which.
Result<const Driver*> find_driver();

/// Whether find_driver() has found one with a device before; it may be too old for anything but to say what an address is. Opens nothing.
bool driver_is_open();

/// Once it is open.
const Driver& driver();

}  // namespace tutti::cuda
