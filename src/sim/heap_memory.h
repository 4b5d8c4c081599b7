// HeapMemory: areas of plain memory, for ranks that run on the Host machine.
#pragma once

#include "sim/area.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace tutti::sim {

class HeapMemory final : public MemorySource {
 public:
  /// Zeroed, from the beginning of a cache line on, and this object's.
  std::byte* take(std::size_t bytes, const Area&) override {
    const std::size_t size = (bytes / 64 + 1) * 64;
    pieces_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(64, size)), &std::free);
    std::memset(pieces_.back().get(), 0, size);
    return pieces_.back().get();
  }

 private:
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> pieces_;
};

}  // namespace tutti::sim
