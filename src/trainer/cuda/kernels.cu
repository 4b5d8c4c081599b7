// The kernels of kernels.h for the GPU.
#include "trainer/cuda/kernels.h"

namespace {

class GpuThread {
 public:
  __device__ std::uint32_t index() const { return threadIdx.x; }
  __device__ std::uint32_t count() const { return blockDim.x; }
  __device__ std::uint32_t block() const { return blockIdx.x; }
  __device__ std::uint32_t blocks() const { return gridDim.x; }
  __device__ void sync() const { __syncthreads(); }
};

}  // namespace

#define TUTTI_TRAINER_KERNEL(Kernel, name)                                                 \
  extern "C" __global__ void __launch_bounds__(tutti::trainer::kernels::kKernelThreads)    \
      tutti_train_##name(const __grid_constant__ tutti::trainer::kernels::Kernel kernel) { \
    __shared__ tutti::trainer::kernels::Kernel::Shared shared;                             \
    GpuThread thread;                                                                      \
    kernel.run(thread, shared);                                                            \
  }
#include "trainer/cuda/kernels.def"
