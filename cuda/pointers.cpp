#include "cuda/pointers.h"

#include "cuda/device.h"
#include "cuda/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace tutti::cuda {
namespace {

/// What allocate_for_user() has made.
struct UserAllocations {
  std::mutex mutex;
  UserMemory::Allocations all;
};
UserAllocations& user_allocations() {
  static auto* made = new UserAllocations;
  return *made;
}

/// What this process has opened of others. The driver counts handles that a context opens twice, but not if two threads do at once: one is told
/// CUDA_ERROR_ALREADY_MAPPED (580, H100). So each is opened once. While the driver opens or closes one, which may take until a device is
/// idle, only who wants the same one waits.
struct Imports {
  struct Import {
    CUdeviceptr data = 0;
    int holders = 0;
    bool changes = true;  ///< the driver is at it
  };
  using Key = std::pair<void*, std::array<std::uint8_t, sizeof(MemoryHandle)>>;  ///< context and handle
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, Import> all;
};
Imports& imports() {
  static auto* made = new Imports;
  return *made;
}

}  // namespace

Result<PointerFacts> pointer_facts(const void* address) {
  PointerFacts facts;
  if (const auto found = find_driver(); !found.ok() && !driver_is_open()) return facts;
  unsigned type = 0;
  unsigned managed = 0;
  int device = 0;
  unsigned long long id = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&type, &managed, &device, &id};
  const CUresult result = driver().pointer_attributes.raw(std::size(attributes), attributes, values,
                                                          reinterpret_cast<CUdeviceptr>(address));
  // Older drivers refuse what they do not know instead of answering 0.
  if (result == CUDA_ERROR_INVALID_VALUE) return facts;
  if (result != CUDA_SUCCESS) return driver_error(driver().pointer_attributes.name(), result);
  if (type == 0) return facts;
  facts.kind = managed != 0                 ? MemoryKind::kManaged
               : type == CU_MEMORYTYPE_HOST ? MemoryKind::kPinnedHost
                                            : MemoryKind::kDevice;
  facts.device = device;
  facts.buffer_id = id;
  return facts;
}

Result<bool> lies_on(const void* address, int device) {
  unsigned type = 0;
  int ordinal = -1;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &ordinal};
  const CUresult result = driver().pointer_attributes.raw(std::size(attributes), attributes, values,
                                                          reinterpret_cast<CUdeviceptr>(address));
  if (result == CUDA_ERROR_INVALID_VALUE) return false;  // as in pointer_facts()
  if (result != CUDA_SUCCESS) return driver_error(driver().pointer_attributes.name(), result);
  return type == CU_MEMORYTYPE_DEVICE && ordinal == device;
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
  UserMemory::Allocations made;  // before the memory, which would be lost if there were none for this
  made[nullptr];
  CUdeviceptr data = 0;
  // Whole blocks of what CUDA maps: aligned as windows must be, and what is shared with others has nothing else in it.
  constexpr std::size_t kBlock = std::size_t{2} << 20;
  const std::size_t whole =
      bytes > SIZE_MAX - kBlock ? bytes : std::max((bytes + kBlock - 1) / kBlock, std::size_t{1}) * kBlock;
  if (Status allocated = driver().mem_alloc(&data, whole); !allocated.ok()) {
    return error(Code::kUnhandledCuda,
                 fmt::format("{} bytes of device {}'s memory: {}", bytes, ordinal, allocated.error().message));
  }
  void* const memory = reinterpret_cast<void*>(data);
  auto its = made.extract(made.begin());
  its.key() = memory;
  its.mapped() = {whole, std::move(device)};
  UserAllocations& known = user_allocations();
  const std::lock_guard lock(known.mutex);
  known.all.erase(memory);  // somebody else may have freed what was there
  known.all.insert(std::move(its));
  return memory;
}

std::optional<AddressRange> user_range(const void* address) {
  UserAllocations& known = user_allocations();
  const std::lock_guard lock(known.mutex);
  const auto next = known.all.upper_bound(address);
  if (next == known.all.begin()) return std::nullopt;
  const auto& [memory, allocation] = *std::prev(next);
  const auto begin = reinterpret_cast<std::uint64_t>(memory);
  if (reinterpret_cast<std::uint64_t>(address) - begin >= allocation.bytes) return std::nullopt;
  return AddressRange{begin, allocation.bytes};
}

bool is_for_user(const void* memory) {
  UserAllocations& known = user_allocations();
  const std::lock_guard lock(known.mutex);
  return known.all.contains(memory);
}

Result<UserMemory> UserMemory::take(const void* memory) {
  UserAllocations& known = user_allocations();
  const std::lock_guard lock(known.mutex);
  if (auto its = known.all.extract(memory)) return UserMemory(std::move(its));
  return error(Code::kInvalidArgument,
               fmt::format("{} was not allocated by ncclMemAlloc, or is freed already", fmt::ptr(memory)));
}

UserMemory& UserMemory::operator=(UserMemory&& other) noexcept {
  give_back();
  its_ = std::move(other.its_);
  return *this;
}

void UserMemory::give_back() {
  if (!its_) return;
  UserAllocations& known = user_allocations();
  const std::lock_guard lock(known.mutex);
  known.all.insert(std::move(its_));
}

int UserMemory::device() const { return its_.mapped().device->facts().ordinal; }

Status UserMemory::free() {
  Allocations::node_type freed;  // its device outlives the scope
  const ContextScope scope(static_cast<CUcontext>(its_.mapped().device->context()));
  if (!scope.is_gone()) TUTTI_TRY(scope.status());
  freed = std::move(its_);
  return scope.is_gone() ? Status() : driver().mem_free(reinterpret_cast<CUdeviceptr>(freed.key()));
}

Result<Sharing> sharing_of(const void* address) {
  int plain = 0;
  CUmemoryPool pool = nullptr;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&plain, &pool};
  const CUresult result = driver().pointer_attributes.raw(std::size(attributes), attributes, values,
                                                          reinterpret_cast<CUdeviceptr>(address));
  if (result == CUDA_ERROR_INVALID_VALUE) return Sharing::kUnknown;
  if (result != CUDA_SUCCESS) return driver_error(driver().pointer_attributes.name(), result);
  if (plain != 0) return Sharing::kByHandle;
  return pool ? Sharing::kByNothing : Sharing::kByDescriptors;
}

Result<MemoryHandle> export_memory(const void* allocation, Sharing sharing, void* context) {
  if (sharing == Sharing::kByDescriptors || sharing == Sharing::kByNothing) {
    return error(Code::kInvalidArgument, "it is no memory of cudaMalloc");
  }
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
  Imports& table = imports();
  std::unique_lock lock(table.mutex);
  const Imports::Key key{context, std::to_array(handle.bytes)};
  table.changed.wait(lock, [&] {
    const auto found = table.all.find(key);
    return found == table.all.end() || !found->second.changes;
  });
  const auto [own, is_new] = table.all.try_emplace(key);
  if (is_new) {
    CUipcMemHandle copy{};
    std::memcpy(&copy, &handle, sizeof copy);
    CUdeviceptr data = 0;
    lock.unlock();
    // No text before others know: there may be no memory for one.
    const CUresult opened = driver().ipc_open_handle.raw(&data, copy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    lock.lock();
    table.changed.notify_all();
    if (opened != CUDA_SUCCESS) {
      table.all.erase(own);
      return driver_error(driver().ipc_open_handle.name(), opened);
    }
    own->second.data = data;
    own->second.changes = false;
  }
  ++own->second.holders;
  ImportedMemory memory;
  memory.context_ = context;
  memory.data_ = reinterpret_cast<std::byte*>(own->second.data);
  return memory;
}

ImportedMemory::~ImportedMemory() {
  if (!data_) return;
  const auto data = reinterpret_cast<CUdeviceptr>(data_);
  Imports& table = imports();
  std::unique_lock lock(table.mutex);
  const auto own = std::ranges::find_if(table.all, [&](const auto& one) {
    return one.first.first == context_ && one.second.data == data && !one.second.changes;
  });
  if (--own->second.holders != 0) return;
  own->second.changes = true;
  lock.unlock();
  {
    const ContextScope scope(static_cast<CUcontext>(context_));
    if (!scope.is_gone()) (void)driver().ipc_close_handle(data);
  }
  lock.lock();
  table.all.erase(own);
  table.changed.notify_all();
}

}  // namespace tutti::cuda
