// GPU memory as it was when it was shared with other processes: what CUDA has mapped as one piece is known by its numbers, another one at the same
// address has others. Nothing here opens, holds or frees memory.
#pragma once

#include "cuda/mapped_memory.h"
#include "cuda/pointers.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti::comm {

/// Addresses, whatever is there.
struct DeviceRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const DeviceRange&, const DeviceRange&) = default;
};

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

/// Allocations one behind the other: a single one of cudaMalloc, or pieces of cuMemMap.
struct DeviceExtent {
  std::vector<DeviceAllocation> pieces;  ///< empty: none

  static Result<DeviceExtent> look_up(const cuda::SharedPieces& shared) {
    DeviceExtent found;
    std::uint64_t at = shared.begin;
    for (const std::size_t bytes : shared.bytes) {
      TUTTI_TRY_ASSIGN(const DeviceAllocation piece, DeviceAllocation::look_up(at, at + bytes));
      found.pieces.push_back(piece);
      at += bytes;
    }
    return found;
  }
  std::uint64_t begin() const { return pieces.empty() ? 0 : pieces.front().begin; }
  std::uint64_t end() const { return pieces.empty() ? 0 : pieces.back().end; }
  bool holds(std::uint64_t at, std::uint64_t length) const { return begin() <= at && at + length <= end(); }
  /// Whether the same memory is still there anywhere.
  Result<bool> is_any_there() const {
    for (const DeviceAllocation& piece : pieces) {
      TUTTI_TRY_ASSIGN(const bool is_there, piece.is_there());
      if (is_there) return true;
    }
    return false;
  }
  /// Whether the same memory is still there, wherever the range is.
  Result<bool> is_there(std::uint64_t at, std::uint64_t length) const {
    if (!holds(at, length)) return false;
    for (const DeviceAllocation& piece : pieces) {
      if (piece.end <= at || piece.begin >= at + std::max<std::uint64_t>(length, 1)) continue;
      TUTTI_TRY_ASSIGN(const bool is_there, piece.is_there());
      if (!is_there) return false;
    }
    return true;
  }
};

}  // namespace tutti::comm
