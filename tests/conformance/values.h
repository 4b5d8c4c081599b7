// The values of a case in its data type, and what must come out: exact in any order, by rank, block, position and call.
#pragma once

#include "case.h"

#include <cstdint>

namespace tutti::conformance {

/// The bits of element i of a block of a rank's input in the call of that number.
std::uint64_t input_bits(const Case& c, int call, int rank, std::uint32_t block, std::uint64_t i);
/// The same of a rank's output, by the definition of the collective.
std::uint64_t promised_bits(const Case& c, int call, int rank, std::uint32_t block, std::uint64_t i);
/// Each rank's factor of a PreMulSum.
constexpr std::int64_t factor_of(int rank) { return 1 + rank % 2; }

const bench::ElementType& type_of(const Case& c);
/// The blocks of a rank's input and output; send and receive included.
std::uint32_t input_blocks(const Case& c, int rank);
std::uint32_t output_blocks(const Case& c, int rank);

}  // namespace tutti::conformance
