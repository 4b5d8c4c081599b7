// What a process takes: memory, descriptors, threads, as the kernel counts them.
#pragma once

#include <cstdint>

namespace tutti::bench {

struct Footprint {
  std::uint64_t rss_bytes = 0;
  std::uint64_t pss_bytes = 0;
  std::uint64_t private_bytes = 0;        ///< anonymous pages: heap, stacks, changed data of libraries
  std::uint64_t segment_bytes = 0;        ///< the communicators' shared segments: their size,
  std::uint64_t segment_taken_bytes = 0;  ///< and the part of it that takes memory, whoever touched it
  int descriptors = 0;
  int threads = 0;

  /// Of this process. Figures that the kernel does not give are 0.
  static Footprint now();
  /// What a rank has taken since `before`: its own pages, and its share of the segments.
  double per_rank_bytes(const Footprint& before, int ranks, bool threads) const;
};

}  // namespace tutti::bench
