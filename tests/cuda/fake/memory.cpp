// Memory and what is known of addresses.
#include "calls.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>

namespace fake_driver {
namespace {

using Kind = Allocation::Kind;

bool is_host(const Allocation& memory) { return memory.kind == Kind::kHost || memory.kind == Kind::kRegistered; }

CUresult mem_alloc(CUdeviceptr* address, std::size_t bytes) {
  FAKE_CALL("cuMemAlloc");
  FAKE_SAFE();
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  const World& w = world();
  if (w.memory != 0 && w.counts.device_bytes + static_cast<std::int64_t>(bytes) > w.memory)
    return CUDA_ERROR_OUT_OF_MEMORY;
  std::uintptr_t made = 0;
  const CUresult result = make_allocation(&made, bytes, Kind::kDevice);
  *address = made;
  return result;
}
CUresult mem_free(CUdeviceptr address) {
  FAKE_END("cuMemFree");
  FAKE_SAFE();
  const Allocation* const memory = find_allocation(address);
  wait_until_idle(lock, memory ? memory->device : -1);
  // It waits for the device, at least as far as that comes by itself.
  work_until(lock, [] {
    for (Queue* queue : world().queues) {
      if (!queue->work.empty()) return !work_some();
    }
    return true;
  });
  const CUresult freed = free_allocation(address, Kind::kDevice);
  return freed == CUDA_SUCCESS ? failure : freed;
}
CUresult host_alloc(void** address, std::size_t bytes, unsigned) {
  FAKE_CALL("cuMemHostAlloc");
  FAKE_SAFE();
  std::uintptr_t made = 0;
  const CUresult result = make_allocation(&made, bytes, Kind::kHost);
  *address = reinterpret_cast<void*>(made);
  return result;
}
CUresult host_free(void* address) {
  FAKE_END("cuMemFreeHost");
  FAKE_SAFE();
  const CUresult freed = free_allocation(reinterpret_cast<std::uintptr_t>(address), Kind::kHost);
  return freed == CUDA_SUCCESS ? failure : freed;
}
CUresult host_register(void* address, std::size_t bytes, unsigned) {
  FAKE_CALL("cuMemHostRegister");
  FAKE_SAFE();
  World& w = world();
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  if (bytes == 0 || begin % 4096 != 0 || bytes % 4096 != 0) return CUDA_ERROR_INVALID_VALUE;
  if (find_allocation(begin)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  w.allocations[begin] = {bytes, Kind::kRegistered, current_device(), w.next_id++, -1};
  ++w.counts.registrations;
  return CUDA_SUCCESS;
}
CUresult host_unregister(void* address) {
  FAKE_END("cuMemHostUnregister");
  FAKE_SAFE();
  wait_until_idle(lock);
  const auto found = world().allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == world().allocations.end() || found->second.kind != Kind::kRegistered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  world().allocations.erase(found);
  --world().counts.registrations;
  return failure;
}
CUresult host_device_pointer(CUdeviceptr* device, void* host, unsigned) {
  FAKE_CALL("cuMemHostGetDevicePointer");
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

CUresult pointer_attributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr address) {
  FAKE_CALL("cuPointerGetAttributes");
  const Allocation* const found = find_allocation(address);
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(values[i]) = !found            ? 0u
                                             : is_host(*found) ? unsigned{CU_MEMORYTYPE_HOST}
                                                               : unsigned{CU_MEMORYTYPE_DEVICE};
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(values[i]) = 0; break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(values[i]) = found ? found->device : -2; break;
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(values[i]) = found ? address : 0; break;
      case CU_POINTER_ATTRIBUTE_BUFFER_ID: *static_cast<unsigned long long*>(values[i]) = found ? found->id : 0; break;
      case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *static_cast<unsigned long long*>(values[i]) = !found ? 0 : found->block != 0 ? found->block : found->id;
        break;
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *static_cast<int*>(values[i]) = found && found->kind == Kind::kDevice ? 1 : 0;
        break;
      case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *static_cast<CUmemoryPool*>(values[i]) =
            found && found->kind == Kind::kPool ? pool_of(found->device) : CUmemoryPool{};
        break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}
CUresult address_range(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address) {
  FAKE_CALL("cuMemGetAddressRange");
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  std::uintptr_t start = 0;
  const Allocation* const found = find_allocation(address, &start);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  *begin = start;
  *bytes = found->bytes;
  return CUDA_SUCCESS;
}

struct Handle {
  std::uint64_t magic;
  std::int32_t pid;
  std::int32_t fd;
  std::int32_t device;
  std::uint64_t bytes;
  std::uint64_t id;

  bool operator==(const Handle&) const = default;
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle));
/// What this process has open. The driver lets a context open a handle again, but not always: better never.
std::map<CUdeviceptr, Handle>& open_handles() {
  static auto* made = new std::map<CUdeviceptr, Handle>;
  return *made;
}
constexpr std::uint64_t kMagic = 0x66616b65'63756461;

CUresult ipc_get_handle(CUipcMemHandle* handle, CUdeviceptr address) {
  FAKE_CALL("cuIpcGetMemHandle");
  const char* const shares = std::getenv("FAKE_CUDA_IPC");
  if (shares && *shares == '0') return CUDA_ERROR_NOT_SUPPORTED;
  const Allocation* const found = find_allocation(address);
  if (!found || found->kind != Kind::kDevice) return refuse_export();
  const Handle made{kMagic, getpid(), found->fd, found->device, found->bytes, found->id};
  static_assert(sizeof made <= sizeof handle->reserved);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->reserved, &made, sizeof made);
  return CUDA_SUCCESS;
}
CUresult ipc_open_handle(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  FAKE_CALL("cuIpcOpenMemHandle");
  FAKE_SAFE();
  wait_until_idle(lock);
  Handle from{};
  std::memcpy(&from, handle.reserved, sizeof from);
  if (from.magic != kMagic) return CUDA_ERROR_INVALID_VALUE;
  if (from.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // a handle is for other processes
  if (!reaches(current_device(), from.device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  for (const auto& [at, handle_there] : open_handles()) {
    if (handle_there == from && world().allocations.at(at).device == current_device()) return CUDA_ERROR_ALREADY_MAPPED;
  }
  const int fd = open(fmt::format("/proc/{}/fd/{}", from.pid, from.fd).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
  void* const memory = map_memory(fd, from.bytes);
  if (memory == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  World& w = world();
  *address = reinterpret_cast<CUdeviceptr>(memory);
  w.allocations[*address] = {from.bytes, Kind::kImport, current_device(), w.next_id++, fd};
  ++w.counts.imports;
  open_handles()[*address] = from;
  return CUDA_SUCCESS;
}
CUresult ipc_close_handle(CUdeviceptr address) {
  FAKE_END("cuIpcCloseMemHandle");
  FAKE_SAFE();
  wait_until_idle(lock, current_device());
  const CUresult closed = free_allocation(address, Kind::kImport);
  if (closed == CUDA_SUCCESS) open_handles().erase(address);
  return closed == CUDA_SUCCESS ? failure : closed;
}

template <class Function>
void* entry(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::vector<Entry> memory_entries() {
  return {{"cuMemAlloc", entry(mem_alloc)},
          {"cuMemFree", entry(mem_free)},
          {"cuMemHostAlloc", entry(host_alloc)},
          {"cuMemFreeHost", entry(host_free)},
          {"cuMemHostRegister", entry(host_register)},
          {"cuMemHostUnregister", entry(host_unregister)},
          {"cuMemHostGetDevicePointer", entry(host_device_pointer)},
          {"cuPointerGetAttributes", entry(pointer_attributes)},
          {"cuMemGetAddressRange", entry(address_range)},
          {"cuIpcGetMemHandle", entry(ipc_get_handle)},
          {"cuIpcOpenMemHandle", entry(ipc_open_handle)},
          {"cuIpcCloseMemHandle", entry(ipc_close_handle)}};
}

}  // namespace fake_driver
