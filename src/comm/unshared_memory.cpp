#include "comm/unshared_memory.h"

#include <algorithm>

namespace tutti::comm {

Result<bool> UnsharedMemory::is_known(const DeviceRange& wanted) {
  const auto found = std::ranges::find_if(all_, [&](const One& one) { return one.is_about(wanted); });
  if (found == all_.end()) return false;
  TUTTI_TRY_ASSIGN(const bool is_there, found->first.is_there());
  const bool is_over = !is_there || (found->looks_left != 0 && --found->looks_left == 0);
  if (is_over) all_.erase(found);
  return !is_over;
}

void UnsharedMemory::keep(const DeviceRange& range, const DeviceAllocation& first, bool for_all_in_it,
                          bool lacks_resources) {
  if (all_.size() == kMost) all_.erase(all_.begin());
  all_.push_back({range, first, for_all_in_it, lacks_resources ? kTriedAgain : 0});
}

}  // namespace tutti::comm
