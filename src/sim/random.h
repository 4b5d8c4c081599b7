// Random numbers of the simulator: the same sequence for a seed on every machine and with every standard library.
#pragma once

#include <cstdint>

namespace tutti::sim {

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class Random {
 public:
  /// Streams of one seed are independent: what one part draws does not shift what another gets.
  explicit Random(std::uint64_t seed = 0, std::uint64_t stream = 0) : state_(seed * 0x9e3779b97f4a7c15u + stream) {
    state_ = next() ^ stream;
  }

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// 0 .. n-1, n not 0.
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(((next() >> 32) * n) >> 32); }
  /// True `parts` times in 256.
  bool chance(std::uint32_t parts) { return (next() >> 56) < parts; }

 private:
  std::uint64_t state_;
};

}  // namespace tutti::sim
