// The parts of the floor's worker: the collectives by hand (compare_floor.cpp), the cache-line exchange
// (compare_lines.cpp), the probes (compare_probe.cpp).
#pragma once

#include "compare_worker.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace tutti::compare {

constexpr std::size_t kLineBytes = 64;

/// A counter that one rank writes and others wait for, alone in its pair of cache lines (processors fetch pairs).
struct alignas(2 * kLineBytes) Flag {
  std::uint64_t value;
};

/// Payload and the number of the call it belongs to, in one cache line: whoever sees the number sees the payload.
struct alignas(kLineBytes) Line {
  unsigned char payload[56];
  std::uint64_t call;
};

constexpr std::size_t kLinesMax = 16;
constexpr std::size_t kLinePayloadMax = kLinesMax * sizeof(Line::payload);

/// In memory that the ranks share; zeroed at the start.
struct SharedFlags {
  Flag arrived[kRanksMax];
  Flag there[kRanksMax], back[kRanksMax];  // the probe's, between rank 0 and each rank
  Line lines[kRanksMax][2][kLinesMax];     // for even and odd calls
};

/// All ranks: waits until all have come, by flags alone.
struct FlagBarrier {
  SharedFlags* shared = nullptr;
  std::uint64_t count = 0;
  void wait(const Rank& rank);
};

/// Sums up to kLinePayloadMax bytes; `calls` counts this rank's.
void exchange_lines(const Cell& cell, SharedFlags& shared, std::uint64_t& calls);

/// "probe": a cache line's round trip between rank 0 and each rank that has a core of its own.
/// Every rank may call it; rank 0 writes the reply.
void probe_round_trip(const Rank& rank, SharedFlags& shared, std::FILE* reply);

/// "memory BYTES": bandwidth of copies and sums of arrays of that size, on one core and on all.
void probe_memory(Rank& rank, std::size_t bytes, std::FILE* reply);

}  // namespace tutti::compare
