// The kernels of one data type: TUTTI_DTYPE_NAME is its name. meson.build compiles this once for each.
#include "cuda/device_thread.cuh"
#include "cuda/fold_kernel.h"
#include "cuda/lanes_kernel.h"
#include "cuda/lines_kernel.h"

#define TUTTI_PASTE(a, b) a##b
#define TUTTI_KERNEL_NAME(kind, dtype) TUTTI_PASTE(tutti_##kind##_, dtype)

namespace {

namespace data_types {
#define TUTTI_DATA_TYPE(enumerator, name) using name = tutti::cuda::TypeOf<tutti::DataType::enumerator>::Type;
#include "cuda/data_types.def"
#undef TUTTI_DATA_TYPE
}  // namespace data_types

using tutti::cuda::DeviceThread;
using Type = data_types::TUTTI_DTYPE_NAME;

}  // namespace

extern "C" __global__ void __launch_bounds__(tutti::cuda::kThreads, 1)
    TUTTI_KERNEL_NAME(fold, TUTTI_DTYPE_NAME)(const __grid_constant__ tutti::cuda::FoldLaunch launch) {
  __shared__ tutti::cuda::FoldShared shared;
  DeviceThread thread;
  tutti::cuda::FoldKernel<DeviceThread, Type>(thread, launch, shared).run();
}

extern "C" __global__ void __launch_bounds__(tutti::cuda::kThreads, 1)
    TUTTI_KERNEL_NAME(lines, TUTTI_DTYPE_NAME)(const __grid_constant__ tutti::cuda::LinesLaunch launch) {
  DeviceThread thread;
  tutti::cuda::LinesKernel<DeviceThread, Type>(thread, launch).run();
}

extern "C" __global__ void __launch_bounds__(tutti::cuda::kThreads, 1)
    TUTTI_KERNEL_NAME(lanes, TUTTI_DTYPE_NAME)(const __grid_constant__ tutti::cuda::LanesLaunch launch) {
  __shared__ tutti::cuda::LanesShared shared;
  DeviceThread thread;
  tutti::cuda::LanesKernel<DeviceThread, Type>(thread, launch, shared).run();
}

#if TUTTI_WITH_MEASUREMENTS
extern "C" __global__ void tutti_nothing() {}

extern "C" __global__ void __launch_bounds__(tutti::cuda::kThreads, 1)
    tutti_copy(const __grid_constant__ tutti::cuda::CopyLaunch launch) {
  DeviceThread thread;
  tutti::cuda::Copy<DeviceThread>(thread, {blockIdx.x, gridDim.x}).run(launch.from, &launch.to, 1, launch.bytes);
}
#endif
