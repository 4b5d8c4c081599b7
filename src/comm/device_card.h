// What each rank tells the others of the memory that it works on, in the control segment.
#pragma once

#include <cstdint>

namespace tutti::comm {

struct DeviceCard {
  std::int32_t device = -1;  ///< kHostMemory, or the device's number in that rank's process
  std::uint32_t multiprocessors = 0;
  std::uint8_t uuid[16] = {};
  char bus_id[16] = {};
  std::uint64_t segment = 0;  ///< DeviceRank's memory for the others: its address at that rank ...
  std::uint64_t segment_bytes = 0;
  std::uint8_t handle[64] = {};  ///< ... and what other processes open it with
  std::uint32_t exported = 0;    ///< 1: handle counts
  std::uint32_t reserved = 0;
};

}  // namespace tutti::comm
