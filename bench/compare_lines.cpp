// All-reduce of tiny messages by cache lines: each rank writes its payload, each line with the call's number, and reads
// the others'.
//
// Why it is right. A line of call k is written again by call k + 2. A rank writes that after its own call k + 1 ended,
// that is after it saw every other rank's lines of call k + 1, which that rank wrote after it had read all lines of call k.
#include "compare_floor.h"

#include <algorithm>
#include <cstring>

namespace tutti::compare {
namespace {

template <class T>
void exchange(const Cell& cell, SharedFlags& shared, std::uint64_t call) {
  constexpr std::size_t kPerLine = sizeof(Line::payload) / sizeof(T);
  const Rank& rank = *cell.rank;
  const T* input = reinterpret_cast<const T*>(cell.send);
  T* output = reinterpret_cast<T*>(cell.receive);
  Line* mine = shared.lines[rank.rank][call % 2];
  const std::size_t lines = (cell.count + kPerLine - 1) / kPerLine;
  for (std::size_t n = 0; n < lines; ++n) {
    const std::size_t at = n * kPerLine, left = cell.count - at;
    if (left >= kPerLine) {
      std::memcpy(mine[n].payload, input + at, sizeof(Line::payload));
    } else {
      for (std::size_t k = 0; k < left; ++k) reinterpret_cast<T*>(mine[n].payload)[k] = input[at + k];
    }
    __atomic_store_n(&mine[n].call, call, __ATOMIC_RELEASE);
  }
  for (std::size_t n = 0; n < lines; ++n) {
    T sum[kPerLine] = {};
    for (int peer = 0; peer < rank.ranks; ++peer) {
      const Line& line = shared.lines[peer][call % 2][n];
      for (unsigned spins = 0; __atomic_load_n(&line.call, __ATOMIC_ACQUIRE) != call; ++spins)
        worker_pause(&rank, spins);
      const T* theirs = reinterpret_cast<const T*>(line.payload);
      for (std::size_t k = 0; k < kPerLine; ++k) sum[k] += theirs[k];
    }
    const std::size_t at = n * kPerLine, left = cell.count - at;
    if (left >= kPerLine) {
      std::memcpy(output + at, sum, sizeof(Line::payload));
    } else {
      for (std::size_t k = 0; k < left; ++k) output[at + k] = sum[k];
    }
  }
}

}  // namespace

void exchange_lines(const Cell& cell, SharedFlags& shared, std::uint64_t& calls) {
  const std::uint64_t call = ++calls;
  switch (cell.type) {
    case kFloat: return exchange<float>(cell, shared, call);
    case kDouble: return exchange<double>(cell, shared, call);
    case kInt32: return exchange<std::uint32_t>(cell, shared, call);
    default: worker_fail(cell.rank, "the cache-line exchange has no kernel for this type");
  }
}

}  // namespace tutti::compare
