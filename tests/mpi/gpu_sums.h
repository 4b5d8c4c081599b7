// Sums and broadcasts of GPU memory in every form, and the bytes that messages have to carry of them.
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <cstddef>

namespace tutti::test {

/// Ranks, and bytes of a part of a call: TUTTI_STAGING_BYTES.
struct SumRanks {
  ncclComm_t comm = nullptr;
  int ranks = 0;
  int rank = 0;
  CUstream stream = nullptr;
  std::size_t part_bytes = 0;
};

/// Makes calls of so many elements (of a block), one by one and in groups, and ends the program where a result is wrong. Returns bytes sent
/// and received by this rank where all goes by messages among hosts of one rank each.
std::size_t sum_everything(const SumRanks& with, std::size_t count);
/// The same calls, captured, replayed twice.
void replay_sums(const SumRanks& with, std::size_t count);

}  // namespace tutti::test
