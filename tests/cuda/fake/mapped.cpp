// Memory by cuMemCreate and cuMemMap, and pools: which devices may use it is said for each.
#include "calls.h"

#include <sys/mman.h>
#include <unistd.h>

namespace fake_driver {
namespace {

constexpr std::size_t kGranularity = 2 << 20;

struct Physical {
  std::size_t bytes = 0;
  int device = 0;
  int fd = -1;
  int holders = 1;
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

CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  FAKE_CALL("cuMemAddressReserve");
  void* const made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{bytes, prop->location.id, fd, 1});
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
  made.id = world().next_id++;
  world().allocations[address] = made;
  mapped()[address] = physical;
  ++physical->holders;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  FAKE_END("cuMemUnmap");
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
  if (!memory || memory->kind != Allocation::Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  Physical* const physical = mapped().at(begin);
  ++physical->holders;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
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
          {"cuMemGetAccess", entry(get_access)},
          {"cuMemSetAccess", entry(set_access)},
          {"cuDeviceGetMemPool", entry(device_pool)},
          {"cuMemPoolGetAccess", entry(pool_get_access)},
          {"cuMemPoolSetAccess", entry(pool_set_access)}};
}

}  // namespace fake_driver
