// What an address is to CUDA.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace tutti::cuda {

class Device;

enum class MemoryKind : std::uint8_t {
  kPlainHost,  ///< nothing that CUDA knows
  kPinnedHost,
  kDevice,
  kManaged,
};

struct PointerFacts {
  MemoryKind kind = MemoryKind::kPlainHost;
  int device = 0;               ///< not of plain host memory
  std::uint64_t buffer_id = 0;  ///< of the allocation: another one at the same address has another
};

/// Success with kPlainHost where no driver is there.
Result<PointerFacts> pointer_facts(const void* address);

/// Whether it is this device's memory: half of the questions of pointer_facts(), as calls ask for each buffer. Once a driver is open.
Result<bool> lies_on(const void* address, int device);

/// The physical memory behind an address, which another piece that is mapped there (cuMemMap) has not; 0 where the driver does not tell.
Result<std::uint64_t> physical_id(const void* address);

/// The allocation that an address of the device's memory lies in.
struct AddressRange {
  std::uint64_t begin = 0;
  std::size_t bytes = 0;
};
Result<AddressRange> address_range(const Device& device, const void* address);

/// Memory for users (ncclMemAlloc), on the device that is current. Other processes can map it.
Result<void*> allocate_for_user(std::size_t bytes);
/// The memory of allocate_for_user() that the address lies in, if nobody has freed it.
std::optional<AddressRange> user_range(const void* address);
/// Whether allocate_for_user() made it and nobody has freed it.
bool is_for_user(const void* memory);

/// Such memory that is being freed: the user's again if free() is not called, or fails before the driver has done anything.
class UserMemory {
 public:
  struct Allocation {
    std::size_t bytes = 0;
    std::shared_ptr<Device> device;  ///< kept open
  };
  using Allocations = std::map<const void*, Allocation>;

  /// kInvalidArgument: it is no such memory, or is freed already.
  static Result<UserMemory> take(const void* memory);
  UserMemory(UserMemory&& other) noexcept : its_(std::move(other.its_)) {}
  UserMemory& operator=(UserMemory&& other) noexcept;
  ~UserMemory() { give_back(); }

  int device() const;
  Status free();
  /// Whether the driver has been asked to free it.
  bool is_gone() const { return its_.empty(); }

 private:
  explicit UserMemory(Allocations::node_type its) : its_(std::move(its)) {}
  void give_back();

  Allocations::node_type its_;  ///< as a node, as there may be no memory for another one when it is given back
};

/// How other processes may come to a device's memory. To be asked before it is exported: what the driver refuses is an error of the program's
/// to tools that watch its calls.
enum class Sharing : std::uint8_t {
  kByHandle,       ///< of cudaMalloc
  kByDescriptors,  ///< of cuMemMap, mostly, if it was made for that
  kByNothing,      ///< of a pool
  kUnknown,        ///< the driver does not tell: either may be tried
};
Result<Sharing> sharing_of(const void* address);

/// 64 bytes that another process opens.
struct MemoryHandle {
  std::uint8_t bytes[64];
};
Result<MemoryHandle> export_memory(const void* allocation, Sharing sharing, void* context);

/// Memory of another process, mapped while this lives.
class ImportedMemory {
 public:
  ImportedMemory() = default;
  ImportedMemory(ImportedMemory&& other) noexcept { swap(other); }
  ImportedMemory& operator=(ImportedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~ImportedMemory();
  static Result<ImportedMemory> open(const MemoryHandle& handle, void* context);
  std::byte* data() const { return data_; }

 private:
  void swap(ImportedMemory& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(data_, other.data_);
  }
  void* context_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace tutti::cuda
