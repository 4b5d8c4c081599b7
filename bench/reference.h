// The values that tutti-perf sends and the values it must get back, computed without the library.
//
// A value depends on rank, block and position. Sums and products are exact in every order and in every type, so that
// results are compared bit for bit: whole numbers, small enough that no partial sum rounds. Integers use all their bits
// where the operation wraps. Data that is only moved is random bits.
#pragma once

#include "collective.h"
#include "element.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::bench {

class Reference {
 public:
  Reference(const Collective& collective, const ElementType& type, const Reduction& reduction, int ranks, int root)
      : collective_(collective), type_(type), reduction_(reduction), ranks_(ranks), root_(root) {}

  /// Values repeat after so many elements: a prime, so that a block in the wrong place differs.
  static constexpr std::size_t kPeriod = 16381;

  /// The first min(count, kPeriod) elements of a block of a rank's input, and of the output that this rank must get.
  std::vector<std::byte> input(int rank, std::size_t block, std::size_t count) const;
  std::vector<std::byte> expected(int rank, std::size_t block, std::size_t count) const;

  /// The scalar of a rank's "mulsum".
  static std::int64_t scale(int rank) { return 1 + rank % 2; }

 private:
  std::uint64_t input_bits(int rank, std::uint64_t block, std::uint64_t position) const;
  std::uint64_t reduced_bits(std::uint64_t block, std::uint64_t position) const;
  std::int64_t value(int rank, std::uint64_t block, std::uint64_t position) const;
  std::int64_t addend(int rank, std::uint64_t key, std::int64_t exact_max) const;
  std::int64_t share_of_average(int rank, std::uint64_t key) const;
  std::int64_t narrowed(std::uint64_t bits) const;

  const Collective& collective_;
  const ElementType& type_;
  const Reduction& reduction_;
  int ranks_;
  int root_;
};

}  // namespace tutti::bench
