// What bytes cost between two processes here: rank 0 and a rank of another process measure it together while the
// communicator is initialised, in well under a millisecond where each has a core; the figures are in the settings that all
// ranks plan by.
//
//   partner   write 32 KiB into slots (timed)  ............................................
//   rank 0    .................................  read them (timed), copy the partner's 32 KiB and 64 B by system call (timed)
//   partner   write 32 KiB into slots past the caches (timed)  ..................
//   rank 0    .................................................  read them (timed)
//
// and so on by turns, rank 0 and partner in each other's caches as they are in calls. Medians count.
#pragma once

#include "base/result.h"
#include "planner/rules.h"

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tutti::comm {

/// Where the two meet, in shared memory that starts with zeros.
struct CalibrationBoard {
  alignas(64) std::uint64_t turn = 0;  ///< odd: rank 0's, even: the partner's
  alignas(64) std::uint64_t address = 0;
  double write_us = 0;           ///< by ordinary stores
  double streamed_write_us = 0;  ///< past the caches
};

struct CalibrationArgs {
  CalibrationBoard& board;
  std::byte* slots = nullptr;      ///< `bytes` shared by both; what lies there is lost
  std::size_t bytes = 0;           ///< to move at a time, kCalibrationBytes if slots hold so many
  std::int32_t partner = 0;        ///< rank 0 only: the partner's process; 0: system calls may not copy from it
  std::function<bool()> given_up;  ///< polled: the communicator fails or is aborted
};

inline constexpr std::size_t kCalibrationBytes = 32 << 10;
/// The longest it may take, on either side.
inline constexpr double kCalibrationMsMax = 20;

/// Rank 0's part. Nothing is measured (zeros) if that takes too long or system calls fail; nothing of system calls without them.
planner::MeasuredCosts calibrate(const CalibrationArgs& args);
/// The partner's part.
void help_calibrate(const CalibrationArgs& args);

/// What this process has measured for rank 0 of an earlier communicator: it is not measured again.
planner::MeasuredCosts remembered_costs();
void remember_costs(const planner::MeasuredCosts& costs);

}  // namespace tutti::comm
