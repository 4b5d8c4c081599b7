// Built without nvcc.
#include "cuda/kernel_images.h"

namespace tutti::cuda {

std::span<const KernelImage> kernel_images() { return {}; }

}  // namespace tutti::cuda
