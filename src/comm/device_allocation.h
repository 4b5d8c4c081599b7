// What CUDA has mapped as one piece, known by its numbers: another one at the same address has others.
#pragma once

#include "cuda/pointers.h"

#include <cstdint>

namespace tutti::comm {

struct DeviceAllocation {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t buffer_id = 0;
  std::uint64_t physical_id = 0;

  static Result<DeviceAllocation> look_up(std::uint64_t begin, std::uint64_t end) {
    const auto* const address = reinterpret_cast<const void*>(begin);
    TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(address));
    TUTTI_TRY_ASSIGN(const std::uint64_t physical, cuda::physical_id(address));
    return DeviceAllocation{begin, end, facts.buffer_id, physical};
  }
  /// Whether the same memory is still there.
  Result<bool> is_there() const {
    TUTTI_TRY_ASSIGN(const DeviceAllocation now, look_up(begin, end));
    return now.buffer_id == buffer_id && now.physical_id == physical_id;
  }
  bool holds(std::uint64_t at, std::uint64_t length) const { return begin <= at && at + length <= end; }
};

}  // namespace tutti::comm
