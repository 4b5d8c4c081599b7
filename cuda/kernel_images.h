// The kernels' fat binaries, as they are embedded in the library: one per data type.
#pragma once

#include "cuda/kernel_abi.h"

#include <span>

namespace tutti::cuda {

/// Empty where the library was built without nvcc. Load them all when a communicator is made: loading one later would wait for
/// kernels that spin.
std::span<const KernelImage> kernel_images();

}  // namespace tutti::cuda
