// What the API layer asks about devices: whether there are any, whose memory an address is, and memory for users.
#pragma once

#include "base/result.h"
#include "comm/comm.h"

#include <cstddef>

namespace tutti::comm {

/// Success if there is one; else why not.
Status find_devices();
/// Whether this process has used one, or looked for it, and found it, be its driver too old. Costs nothing.
bool devices_are_known();

/// A device that a thread's communicators may work on: that of the context that is current. Failure: why there is none.
Result<int> usable_device();
Result<int> usable_device_count();

/// kHostMemory or a device.
int device_of(const Communicator& communicator);

/// kInvalidArgument unless calls of the communicator can use the address: on a device not plain host memory, nor memory of another
/// device; on host memory nothing that only a device reaches.
Status check_memory(const Communicator& communicator, const void* address, const char* name);
/// Whether kernels can load from there.
Result<bool> is_device_visible(const void* address);

/// A window of all ranks (NCCL_WIN_COLL_SYMMETRIC). Nothing to do on host memory, or where all ranks share a process.
Status add_window(Communicator& communicator, const void* memory, std::size_t bytes);
/// The same for what is registered otherwise: it may be worked on in place by calls of which all ranks' buffers may.
void add_registered(Communicator& communicator, const void* memory, std::size_t bytes);
/// The end of either, when the streams are done with it.
void remove_window(Communicator& communicator, const void* memory, std::size_t bytes);
void remove_registered(Communicator& communicator, const void* memory, std::size_t bytes);

/// ncclMemAlloc on a device, and its end.
Result<void*> allocate_device_memory(std::size_t bytes);
Status free_device_memory(void* memory);
bool is_device_allocation(const void* memory);

}  // namespace tutti::comm
