// Which devices' kernels may use memory. What contexts let each other (Device::reach) counts for memory of cudaMalloc only: memory of pools
// (cudaMallocAsync) and of cuMemMap (PyTorch's expandable segments) has access lists of its own.
#pragma once

#include "cuda/device.h"

namespace tutti::cuda {

/// Lets kernels of the devices with these numbers load from and store to `bytes` bytes at `address`, where they may not yet; a pool
/// lets them reach all its memory. Nothing to do for memory of cudaMalloc, of the host, and for managed memory. kUnhandledCuda: the
/// message says whose access could not be had, and why.
Status allow_access(const Device& owner, const void* address, std::size_t bytes, std::span<const int> ordinals);

/// The same for what copy_aside() will make on `owner`, where captures keep the access that the pool has when they are made.
Status allow_asides(const Device& owner, std::span<const int> ordinals);

}  // namespace tutti::cuda
