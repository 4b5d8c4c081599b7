// GPU memory that could not be shared with other processes, so that not every call tries it (device_exports.h).
#pragma once

#include "comm/device_allocation.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::comm {

class UnsharedMemory {
 public:
  /// Whether `wanted` cannot be shared either.
  Result<bool> is_known(const DeviceRange& wanted);
  /// `first`: what is at the beginning, another one can be. `for_all_in_it`: nothing in the range can; else nothing that contains it.
  /// `lacks_resources`: the system had too little of something, it is tried again after some calls.
  void keep(const DeviceRange& range, const DeviceAllocation& first, bool for_all_in_it, bool lacks_resources);

 private:
  static constexpr std::size_t kMost = 64;
  static constexpr std::uint32_t kTriedAgain = 100;  ///< buffers of calls
  struct One {
    DeviceRange range;
    DeviceAllocation first;
    bool for_all_in_it = false;
    std::uint32_t looks_left = 0;  ///< 0: it is not tried again

    bool is_about(const DeviceRange& wanted) const {
      const DeviceRange& outer = for_all_in_it ? range : wanted;
      const DeviceRange& inner = for_all_in_it ? wanted : range;
      return outer.begin <= inner.begin && inner.end <= outer.end;
    }
  };
  std::vector<One> all_;
};

}  // namespace tutti::comm
