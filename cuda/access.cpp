#include "cuda/access.h"

#include "cuda/driver.h"

#include <fmt/format.h>

#include <vector>

namespace tutti::cuda {
namespace {

constexpr CUmemAccess_flags kAll = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

CUmemLocation place_of(int ordinal) {
  CUmemLocation place{};
  place.type = CU_MEM_LOCATION_TYPE_DEVICE;
  place.id = ordinal;
  return place;
}

CUmemAccessDesc access_of(int ordinal) {
  CUmemAccessDesc access{};
  access.location = place_of(ordinal);
  access.flags = kAll;
  return access;
}

Status allow_pool(CUmemoryPool pool, std::span<const int> ordinals) {
  std::vector<CUmemAccessDesc> wanted;
  for (const int ordinal : ordinals) {
    CUmemLocation place = place_of(ordinal);
    CUmemAccess_flags has{};
    TUTTI_TRY(driver().pool_get_access(&has, pool, &place));
    if (has != kAll) wanted.push_back(access_of(ordinal));
  }
  return wanted.empty() ? Status() : driver().pool_set_access(pool, wanted.data(), wanted.size());
}

/// Each piece of physical memory that the range lies in by itself.
Status allow_mapped(CUdeviceptr at, CUdeviceptr end, std::span<const int> ordinals) {
  while (at < end) {
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    TUTTI_TRY(driver().address_range(&begin, &bytes, at));
    std::vector<CUmemAccessDesc> wanted;
    for (const int ordinal : ordinals) {
      const CUmemLocation place = place_of(ordinal);
      unsigned long long has = 0;
      TUTTI_TRY(driver().get_access(&has, &place, begin));
      if (has != kAll) wanted.push_back(access_of(ordinal));
    }
    if (!wanted.empty()) TUTTI_TRY(driver().set_access(begin, bytes, wanted.data(), wanted.size()));
    at = begin + bytes;
  }
  return {};
}

Status explained(const char* kind, const char* function, std::span<const int> ordinals, const Status& status) {
  if (status.ok()) return status;
  return error(status.error().code,
               fmt::format("{}, which GPU {} may not reach, and access could not be had ({}); give it by {}, or use "
                           "memory of cudaMalloc or ncclMemAlloc",
                           kind, fmt::join(ordinals, ", "), status.error().message, function));
}

Status allow_pool(CUmemoryPool pool, std::span<const int> ordinals, const char* kind) {
  return explained(kind, "cudaMemPoolSetAccess", ordinals, allow_pool(pool, ordinals));
}

}  // namespace

Status allow_access(const Device& owner, const void* address, std::size_t bytes, std::span<const int> ordinals) {
  const ContextScope scope(static_cast<CUcontext>(owner.context()));
  TUTTI_TRY(scope.status());
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  unsigned type = 0;
  unsigned managed = 0;
  int plain = 0;
  CUmemoryPool pool = nullptr;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&type, &managed, &plain, &pool};
  const CUresult known = driver().pointer_attributes.raw(std::size(attributes), attributes, values, at);
  if (known == CUDA_ERROR_INVALID_VALUE) return {};  // older drivers' answer for what they do not know
  if (known != CUDA_SUCCESS) return driver_error(driver().pointer_attributes.name(), known);
  if (type != CU_MEMORYTYPE_DEVICE || managed != 0 || plain != 0) return {};
  if (pool) return allow_pool(pool, ordinals, "memory of a pool");
  // Where CUDA shares nothing with other processes, memory of cudaMalloc looks like this too.
  CUmemGenericAllocationHandle mapped{};
  const CUresult retained = driver().retain_handle.raw(&mapped, reinterpret_cast<void*>(at));
  if (retained == CUDA_ERROR_INVALID_VALUE) return {};
  if (retained != CUDA_SUCCESS) return driver_error(driver().retain_handle.name(), retained);
  TUTTI_TRY(driver().release_handle(mapped));
  return explained("memory of cuMemMap", "cuMemSetAccess", ordinals, allow_mapped(at, at + bytes, ordinals));
}

Status allow_asides(const Device& owner, std::span<const int> ordinals) {
  const ContextScope scope(static_cast<CUcontext>(owner.context()));
  TUTTI_TRY(scope.status());
  CUdevice device = 0;
  TUTTI_TRY(driver().device_get(&device, owner.facts().ordinal));
  CUmemoryPool pool = nullptr;
  TUTTI_TRY(driver().device_pool(&pool, device));
  return allow_pool(pool, ordinals, "the device's current pool");
}

}  // namespace tutti::cuda
