// What a copy within the GPU takes where processes share it.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace tutti::test {

/// How a process asks for it. What goes by the processors that kernels run on waits for the process's turn of them; whether some way needs none,
/// as copies to the host do, is what this is to show.
inline constexpr std::array<std::string_view, 3> kCopyWays = {"cuMemcpyAsync", "cuMemcpy2DAsync",
                                                              "cuMemcpyBatchAsync, beside kernels"};

struct CopyTimes {
  std::array<double, kCopyWays.size()>
      us{};         ///< median of one that is waited for, as process 0 saw it; 0: this driver has no such way
  std::string why;  ///< not empty: there are none
};
/// `processes` at once, each one copy behind the other. To be called before this process uses CUDA.
CopyTimes time_copies(int processes, std::size_t bytes, int repeats);

}  // namespace tutti::test
