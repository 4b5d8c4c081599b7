// Where an axis has its ticks and what is written at them.
#pragma once

#include <string>
#include <vector>

namespace tutti::plot {

enum class Scale { kLinear, kLog10, kLog2 };
/// kBytes: 512, 4K, 256M, 1G in powers of 1024.
enum class Labels { kPlain, kBytes };

struct Tick {
  double value = 0;
  std::string label;
};

/// The range that the axis covers, and its ticks (at most about ten, all within the range).
struct Ticks {
  double low = 0;
  double high = 1;
  std::vector<Tick> ticks;
};

/// Data that axes can show: what lies between for ticks has to be a number, too.
inline constexpr double kLargest = 1e300;
inline constexpr double kNearestToZero = 1e-300;  ///< but for 0 itself; what is nearer counts as 0

/// For data from `low` to `high` (low <= high, within +-kLargest; kNearestToZero or more for logarithmic scales). The range is the data rounded
/// outwards: to ticks (linear), powers of two (log2), or 1, 2, 5 times a power of ten (log10).
Ticks ticks_for(double low, double high, Scale scale, Labels labels);

}  // namespace tutti::plot
