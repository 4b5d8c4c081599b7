// The verifier's view of the buffers of all ranks: one cell per unit, input and output sharing cells when in place.
#pragma once

#include "schedule/schedule.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::schedule::verifier {

/// One lane's share of one round: lanes and rounds never share memory, so one stands for all.
class Memory {
 public:
  Memory(const Schedule& schedule, bool in_place);

  std::uint32_t blocks(int rank, Place place) const;
  /// The cell of a unit that exists.
  std::uint32_t cell(int rank, Place place, std::uint32_t block, std::uint32_t unit) const;
  /// Cells of all ranks; those of aliased inputs are unused.
  std::uint32_t cells() const { return cells_; }
  /// "out[0.2] of rank 3"
  std::string name_of(std::uint32_t cell) const;

 private:
  static constexpr std::uint32_t kNoBlock = ~0u;
  struct Buffers {
    std::uint32_t blocks[3];
    std::uint32_t first_cell[3];
    std::uint32_t aliased_input = kNoBlock;  ///< this input block is the output's cells from aliased_cell on
    std::uint32_t aliased_cell = 0;
  };

  std::uint32_t units_;
  std::uint32_t cells_ = 0;
  std::vector<Buffers> ranks_;
};

/// "in[0.2] of rank 3"
std::string name_of_unit(Place place, std::uint32_t block, std::uint32_t unit, int rank);

}  // namespace tutti::schedule::verifier
