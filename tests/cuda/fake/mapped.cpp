// Memory by cuMemCreate and cuMemMap, and pools: which devices may use it is said for each.
#include "calls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace fake_driver {
namespace {

constexpr std::size_t kGranularity = 2 << 20;

struct Physical {
  std::size_t bytes = 0;
  int device = 0;
  int fd = -1;
  int holders = 1;
  bool shareable = false;
  std::uint64_t number = world().next_id++;
};
Physical* physical_of(CUmemGenericAllocationHandle handle) { return reinterpret_cast<Physical*>(handle); }
/// What is mapped where.
std::map<std::uintptr_t, Physical*>& mapped() {
  static auto* made = new std::map<std::uintptr_t, Physical*>;
  return *made;
}
void let_go(Physical* physical) {
  if (--physical->holders != 0) return;
  close(physical->fd);
  --world().counts.device_allocations;
  world().counts.device_bytes -= static_cast<std::int64_t>(physical->bytes);
  delete physical;
}

CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr wanted, unsigned long long) {
  FAKE_CALL("cuMemAddressReserve");
  void* const made =
      mmap(reinterpret_cast<void*>(wanted), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(made);
  return CUDA_SUCCESS;
}
CUresult unreserve(CUdeviceptr address, std::size_t bytes) {
  FAKE_END("cuMemAddressFree");
  munmap(reinterpret_cast<void*>(address), bytes);
  return failure;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                unsigned long long) {
  FAKE_CALL("cuMemCreate");
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  // The name tells another process whose memory it is.
  const std::string name = "fake-cuda-" + std::to_string(prop->location.id);
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool shareable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{bytes, prop->location.id, fd, 1, shareable});
  ++world().counts.device_allocations;
  world().counts.device_bytes += static_cast<std::int64_t>(bytes);
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  FAKE_END("cuMemRelease");
  let_go(physical_of(handle));
  return failure;
}
CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  FAKE_CALL("cuMemMap");
  Physical* const physical = physical_of(handle);
  if (offset != 0 || bytes != physical->bytes) return CUDA_ERROR_INVALID_VALUE;
  void* const memory =
      mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->fd, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  Allocation made;
  made.bytes = bytes;
  made.kind = Allocation::Kind::kMapped;
  made.device = physical->device;
  made.id = 1;  // says nothing of what is mapped
  made.block = physical->number;
  world().allocations[address] = made;
  mapped()[address] = physical;
  ++physical->holders;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  FAKE_END("cuMemUnmap");
  wait_until_idle(lock);
  const auto found = mapped().find(address);
  if (found == mapped().end() || found->second->bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
       0);
  let_go(found->second);
  mapped().erase(found);
  world().allocations.erase(address);
  return failure;
}
CUresult retain(CUmemGenericAllocationHandle* handle, void* address) {
  FAKE_CALL("cuMemRetainAllocationHandle");
  std::uintptr_t begin = 0;
  const Allocation* const memory = find_allocation(reinterpret_cast<std::uintptr_t>(address), &begin);
  if (!memory || memory->kind != Allocation::Kind::kMapped) return refuse_export();
  Physical* const physical = mapped().at(begin);
  ++physical->holders;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}

CUresult export_handle(void* descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long) {
  FAKE_CALL("cuMemExportToShareableHandle");
  const Physical* const physical = physical_of(handle);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !physical->shareable) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(descriptor) = fd;
  return CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle* handle, void* number, CUmemAllocationHandleType type) {
  FAKE_CALL("cuMemImportFromShareableHandle");
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(static_cast<int>(reinterpret_cast<std::uintptr_t>(number)), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  const std::string name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  constexpr std::string_view kName = "/memfd:fake-cuda-";
  struct stat facts = {};
  if (!name.starts_with(kName) || fstat(fd, &facts) != 0) {
    close(fd);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = std::atoi(name.c_str() + kName.size());
  const auto bytes = static_cast<std::size_t>(facts.st_size);
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{bytes, device, fd, 1, true});
  ++world().counts.device_allocations;
  world().counts.device_bytes += static_cast<std::int64_t>(bytes);
  return CUDA_SUCCESS;
}

unsigned long long flags_of(bool may) {
  return may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}
CUresult get_access(unsigned long long* flags, const CUmemLocation* place, CUdeviceptr address) {
  FAKE_CALL("cuMemGetAccess");
  const Allocation* const memory = find_allocation(address);
  if (!memory || memory->kind != Allocation::Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  *flags = flags_of(memory->readers.contains(place->id));
  return CUDA_SUCCESS;
}
/// Whole pieces of physical memory only.
CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* wanted, std::size_t count) {
  FAKE_CALL("cuMemSetAccess");
  wait_until_idle(lock);
  for (CUdeviceptr at = address; at < address + bytes;) {
    const auto found = world().allocations.find(at);
    if (found == world().allocations.end() || found->second.kind != Allocation::Kind::kMapped ||
        at + found->second.bytes > address + bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const int device = wanted[i].location.id;
      if (device != found->second.device && !world().peers) return CUDA_ERROR_INVALID_DEVICE;
      if (wanted[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) found->second.readers.insert(device);
    }
    at += found->second.bytes;
  }
  return CUDA_SUCCESS;
}

int device_of(CUmemoryPool pool) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(pool)) - 1; }

CUresult device_pool(CUmemoryPool* pool, CUdevice device) {
  FAKE_CALL("cuDeviceGetMemPool");
  *pool = pool_of(device);
  return CUDA_SUCCESS;
}
CUresult pool_get_access(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* place) {
  FAKE_CALL("cuMemPoolGetAccess");
  const int owner = device_of(pool);
  *flags = static_cast<CUmemAccess_flags>(flags_of(place->id == owner || world().pools[owner].contains(place->id)));
  return CUDA_SUCCESS;
}
CUresult pool_set_access(CUmemoryPool pool, const CUmemAccessDesc* wanted, std::size_t count) {
  FAKE_CALL("cuMemPoolSetAccess");
  if (!world().peers) return CUDA_ERROR_INVALID_DEVICE;
  for (std::size_t i = 0; i < count; ++i) world().pools[device_of(pool)].insert(wanted[i].location.id);
  return CUDA_SUCCESS;
}

template <class Function>
void* entry(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

/// Its number, and one more, as none is null.
CUmemoryPool pool_of(int device) { return reinterpret_cast<CUmemoryPool>(static_cast<std::uintptr_t>(device) + 1); }

std::vector<Entry> mapped_entries() {
  return {{"cuMemAddressReserve", entry(reserve)},
          {"cuMemAddressFree", entry(unreserve)},
          {"cuMemCreate", entry(create)},
          {"cuMemRelease", entry(release)},
          {"cuMemMap", entry(map)},
          {"cuMemUnmap", entry(unmap)},
          {"cuMemRetainAllocationHandle", entry(retain)},
          {"cuMemExportToShareableHandle", entry(export_handle)},
          {"cuMemImportFromShareableHandle", entry(import_handle)},
          {"cuMemGetAccess", entry(get_access)},
          {"cuMemSetAccess", entry(set_access)},
          {"cuDeviceGetMemPool", entry(device_pool)},
          {"cuMemPoolGetAccess", entry(pool_get_access)},
          {"cuMemPoolSetAccess", entry(pool_set_access)}};
}

}  // namespace fake_driver
