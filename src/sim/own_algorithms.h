// Schedules for the simulator alone: right ones that use what the protocol promises and no row of the table needs.
#pragma once

#include "algorithm/algorithm.h"

#include <span>

namespace tutti::sim {

/// "pull_chain": a broadcast down a line of ranks, each of which pulls what the one before it has pulled into its output. A pull
/// of data that the call itself makes has to wait for its message; all pulls of the table read inputs.
std::span<const algorithm::Algorithm> own_algorithms();

/// The table's rows, and behind them the own ones.
const algorithm::Algorithm& algorithm_at(std::size_t index);
std::size_t algorithm_count();
bool is_own(const algorithm::Algorithm& algorithm);

}  // namespace tutti::sim
