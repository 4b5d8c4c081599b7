// How long ago something began.
#pragma once

#include <chrono>

namespace tutti {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
inline double ms_since(std::chrono::steady_clock::time_point start) { return 1e3 * seconds_since(start); }
inline double us_since(std::chrono::steady_clock::time_point start) { return 1e6 * seconds_since(start); }

}  // namespace tutti
