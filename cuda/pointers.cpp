#include "cuda/pointers.h"

#include "cuda/device.h"
#include "cuda/driver.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <mutex>

namespace tutti::cuda {
namespace {

/// What allocate_for_user() has made, with the device that it keeps open.
struct UserMemory {
  std::mutex mutex;
  std::map<const void*, std::shared_ptr<Device>> allocations;
};
UserMemory& user_memory() {
  static auto* made = new UserMemory;
  return *made;
}

}  // namespace

Result<PointerFacts> pointer_facts(const void* address) {
  PointerFacts facts;
  const Result<const Driver*> found = find_driver();
  if (!found.ok()) return facts;
  unsigned type = 0;
  unsigned managed = 0;
  int device = 0;
  unsigned long long id = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&type, &managed, &device, &id};
  const CUresult result = found.value()->pointer_attributes.raw(std::size(attributes), attributes, values,
                                                                reinterpret_cast<CUdeviceptr>(address));
  // Older drivers refuse what they do not know instead of answering 0.
  if (result == CUDA_ERROR_INVALID_VALUE) return facts;
  if (result != CUDA_SUCCESS) return driver_error(found.value()->pointer_attributes.name(), result);
  if (type == 0) return facts;
  facts.kind = managed != 0                 ? MemoryKind::kManaged
               : type == CU_MEMORYTYPE_HOST ? MemoryKind::kPinnedHost
                                            : MemoryKind::kDevice;
  facts.device = device;
  facts.buffer_id = id;
  return facts;
}

Result<std::uint64_t> physical_id(const void* address) {
  unsigned long long id = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
  void* value = &id;
  const CUresult result =
      driver().pointer_attributes.raw(1, &attribute, &value, reinterpret_cast<CUdeviceptr>(address));
  if (result == CUDA_ERROR_INVALID_VALUE) return std::uint64_t{0};
  if (result != CUDA_SUCCESS) return driver_error(driver().pointer_attributes.name(), result);
  return std::uint64_t{id};
}

Result<AddressRange> address_range(const Device& device, const void* address) {
  const ContextScope scope(static_cast<CUcontext>(device.context()));
  TUTTI_TRY(scope.status());
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  TUTTI_TRY(driver().address_range(&begin, &bytes, reinterpret_cast<CUdeviceptr>(address)));
  return AddressRange{begin, bytes};
}

Result<void*> allocate_for_user(std::size_t bytes) {
  TUTTI_TRY_ASSIGN(const int ordinal, current_device());
  TUTTI_TRY_ASSIGN(std::shared_ptr<Device> device, Device::open(ordinal));
  const ContextScope scope(static_cast<CUcontext>(device->context()));
  TUTTI_TRY(scope.status());
  CUdeviceptr data = 0;
  if (Status made = driver().mem_alloc(&data, bytes == 0 ? 1 : bytes); !made.ok()) {
    return error(Code::kUnhandledCuda,
                 fmt::format("{} bytes of device {}'s memory: {}", bytes, ordinal, made.error().message));
  }
  void* const memory = reinterpret_cast<void*>(data);
  UserMemory& known = user_memory();
  const std::lock_guard lock(known.mutex);
  known.allocations[memory] = std::move(device);
  return memory;
}

Status free_for_user(void* memory) {
  UserMemory& known = user_memory();
  std::shared_ptr<Device> device;
  {
    const std::lock_guard lock(known.mutex);
    const auto found = known.allocations.find(memory);
    if (found == known.allocations.end()) {
      return error(Code::kInvalidArgument,
                   fmt::format("{} was not allocated by ncclMemAlloc, or is freed already", fmt::ptr(memory)));
    }
    device = std::move(found->second);
    known.allocations.erase(found);
  }
  const ContextScope scope(static_cast<CUcontext>(device->context()));
  if (!scope.status().ok()) {
    // It is not freed: the user may try again.
    const std::lock_guard lock(known.mutex);
    known.allocations[memory] = std::move(device);
    return scope.status();
  }
  return driver().mem_free(reinterpret_cast<CUdeviceptr>(memory));
}

bool is_for_user(const void* memory) {
  UserMemory& known = user_memory();
  const std::lock_guard lock(known.mutex);
  return known.allocations.contains(memory);
}

Result<MemoryHandle> export_memory(const void* allocation, void* context) {
  const ContextScope scope(static_cast<CUcontext>(context));
  TUTTI_TRY(scope.status());
  CUipcMemHandle handle{};
  static_assert(sizeof(handle) == sizeof(MemoryHandle));
  TUTTI_TRY(driver().ipc_get_handle(&handle, reinterpret_cast<CUdeviceptr>(allocation)));
  MemoryHandle copy{};
  std::memcpy(&copy, &handle, sizeof copy);
  return copy;
}

Result<ImportedMemory> ImportedMemory::open(const MemoryHandle& handle, void* context) {
  const ContextScope scope(static_cast<CUcontext>(context));
  TUTTI_TRY(scope.status());
  CUipcMemHandle copy{};
  std::memcpy(&copy, &handle, sizeof copy);
  CUdeviceptr data = 0;
  TUTTI_TRY(driver().ipc_open_handle(&data, copy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  ImportedMemory memory;
  memory.context_ = context;
  memory.data_ = reinterpret_cast<std::byte*>(data);
  return memory;
}

ImportedMemory::~ImportedMemory() {
  if (!data_) return;
  const ContextScope scope(static_cast<CUcontext>(context_));
  if (scope.is_gone()) return;
  (void)driver().ipc_close_handle(reinterpret_cast<CUdeviceptr>(data_));
}

}  // namespace tutti::cuda
