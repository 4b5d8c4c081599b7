#include "comm/device_memory.h"

#include "comm/communicator.h"
#include "comm/device_rank.h"
#include "cuda/pointers.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <chrono>

namespace tutti::comm {

Status find_devices() { return cuda::find_devices(); }
bool devices_are_known() { return cuda::devices_are_known(); }
Result<int> usable_device() { return cuda::current_device(); }
Result<int> usable_device_count() { return cuda::device_count(); }
int device_of(const Communicator& communicator) { return communicator.options().device; }

Status check_memory(const Communicator& communicator, const void* address, const char* name) {
  if (!address || !cuda::devices_are_known()) return {};
  const int device = communicator.options().device;
  if (device != kHostMemory) {
    TUTTI_TRY_ASSIGN(const bool is_own, cuda::lies_on(address, device));
    if (is_own) return {};
  }
  TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(address));
  if (device == kHostMemory) {
    if (facts.kind != cuda::MemoryKind::kDevice) return {};
    const Status usable = cuda::find_devices();
    return error(Code::kInvalidArgument,
                 fmt::format("{} {} is memory of GPU {}, but the communicator works on host memory; {}", name,
                             fmt::ptr(address), facts.device,
                             usable.ok() ? "make it with TUTTI_DEVICE=cuda or tuttiSetDevice(tuttiDeviceCuda)"
                                         : usable.error().message));
  }
  if (facts.kind == cuda::MemoryKind::kPlainHost) {
    return error(
        Code::kInvalidArgument,
        fmt::format("{} {} is host memory that GPUs cannot reach, and the communicator works on GPU {}; pass "
                    "memory of cudaMalloc, cudaMallocManaged, cudaHostAlloc, cudaHostRegister or ncclMemAlloc, or make "
                    "the communicator with TUTTI_DEVICE=host or tuttiSetDevice(tuttiDeviceHost)",
                    name, fmt::ptr(address), device));
  }
  if (facts.kind == cuda::MemoryKind::kDevice && facts.device != device) {
    return error(Code::kInvalidArgument, fmt::format("{} {} is memory of GPU {}, but this rank is on GPU {}", name,
                                                     fmt::ptr(address), facts.device, device));
  }
  return {};
}

Result<bool> is_device_visible(const void* address) {
  TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(address));
  return facts.kind != cuda::MemoryKind::kPlainHost;
}

Status add_window(Communicator& communicator, const void* memory, std::size_t bytes) {
  const auto ipc = communicator.device() ? communicator.device()->ipc() : nullptr;
  if (!ipc) return {};
  ipc->end_registrations();
  return ipc->places().windows().add(memory, bytes);
}

void add_registered(Communicator& communicator, const void* memory, std::size_t bytes) {
  const auto ipc = communicator.device() ? communicator.device()->ipc() : nullptr;
  if (!ipc) return;
  ipc->end_registrations();
  ipc->places().exports().add(memory, bytes);
}

void remove_window(Communicator& communicator, const void* memory, std::size_t bytes) {
  const auto ipc = communicator.device() ? communicator.device()->ipc() : nullptr;
  if (!ipc) return;
  ipc->places().windows().end(memory, bytes);
  ipc->end_registration(true, memory, bytes);
}

void remove_registered(Communicator& communicator, const void* memory, std::size_t bytes) {
  const auto ipc = communicator.device() ? communicator.device()->ipc() : nullptr;
  if (!ipc) return;
  ipc->places().exports().end(memory, bytes);
  ipc->end_registration(false, memory, bytes);
}

Result<void*> allocate_device_memory(std::size_t bytes) {
  TUTTI_TRY_ASSIGN(const int device, cuda::current_device());
  DeviceExports::tidy(device);
  // Ranks that free memory and allocate other do so at about the same time: what is freed here others may have open for a moment yet, and
  // another thread may be the one that frees it then.
  bool kept = DeviceExports::keeps_memory(device);
  Result<void*> made = cuda::allocate_for_user(bytes);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  executor::Backoff backoff(true);
  while (!made.ok() && kept && std::chrono::steady_clock::now() < until) {
    backoff.wait();
    DeviceExports::tidy(device);
    kept = DeviceExports::keeps_memory(device);
    made = cuda::allocate_for_user(bytes);
  }
  return made;
}
Status free_device_memory(void* memory) { return DeviceExports::free_memory(memory); }
bool is_device_allocation(const void* memory) { return cuda::is_for_user(memory); }

}  // namespace tutti::comm
