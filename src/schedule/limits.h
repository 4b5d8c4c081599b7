// How large a schedule may be. Text from strangers is refused beyond these, before memory is taken for it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::schedule {

inline constexpr std::uint32_t kRanksMax = 1u << 17;
inline constexpr std::uint32_t kLanesMax = 1u << 10;
inline constexpr std::uint32_t kBlocksMax = 1u << 17;
inline constexpr std::uint32_t kUnitsMax = 1u << 20;
inline constexpr std::size_t kTextBytesMax = std::size_t{64} << 20;

/// The verifier holds every unit of every buffer of every rank, lane after lane, and visits every unit of every endpoint.
/// Every row of the algorithm table fits with 1024 ranks; a hostile schedule costs at most some seconds and a gigabyte.
inline constexpr std::uint32_t kVerifierRanksMax = 1024;
inline constexpr std::uint64_t kVerifierCellsMax = std::uint64_t{1} << 23;
inline constexpr std::uint64_t kVerifierVisitsMax = std::uint64_t{1} << 25;

}  // namespace tutti::schedule
