// The random numbers of initialisation, shuffling and sampling: the same on every machine, unlike <random>'s distributions.
#pragma once

#include <cstdint>

namespace tutti::trainer {

/// SplitMix64 (Steele, Lea, Flood 2014): a counter passed through a mixing function.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// Uniform in [-limit, limit).
  float symmetric(float limit) { return static_cast<float>((2.0 * uniform() - 1.0) * limit); }
  /// Uniform in [0, n), n > 0 and below 2^32. The bias of the product is below n / 2^32.
  std::uint64_t below(std::uint64_t n) { return ((next() >> 32) * n) >> 32; }

 private:
  std::uint64_t state_;
};

}  // namespace tutti::trainer
