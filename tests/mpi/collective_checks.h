// Collectives whose results a rank of an MPI program compares.
#pragma once

#include "mpi_rank.h"

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace tutti::test {

inline std::vector<float> input_of(int rank, std::size_t count) {
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(rank * 7 + static_cast<int>(i % 1013));
  return data;
}

inline void check_collectives(ncclComm_t comm, int ranks, int rank, std::size_t count) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::string where = " of " + std::to_string(count) + " elements";
  std::vector<float> in = input_of(rank, count * n);
  std::vector<float> out(count * n, -1);
  const auto sum_at = [&](std::size_t i) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += static_cast<float>(r * 7 + static_cast<int>(i % 1013));
    return sum;
  };
  check(ncclAllReduce(in.data(), out.data(), count, ncclFloat, ncclSum, comm, nullptr), "all_reduce");
  for (std::size_t i = 0; i < count; ++i) expect(out[i] == sum_at(i), "all_reduce" + where);
  std::vector<float> both = in;
  check(ncclAllReduce(both.data(), both.data(), count, ncclFloat, ncclSum, comm, nullptr), "all_reduce in place");
  for (std::size_t i = 0; i < count; ++i) expect(both[i] == sum_at(i), "all_reduce in place" + where);
  check(ncclReduceScatter(in.data(), out.data(), count, ncclFloat, ncclSum, comm, nullptr), "reduce_scatter");
  for (std::size_t i = 0; i < count; ++i)
    expect(out[i] == sum_at(static_cast<std::size_t>(rank) * count + i), "reduce_scatter" + where);
  check(ncclAllGather(in.data(), out.data(), count, ncclFloat, comm, nullptr), "all_gather");
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> wanted = input_of(r, count);
    expect(count == 0 || std::memcmp(wanted.data(), &out[static_cast<std::size_t>(r) * count], count * 4) == 0,
           "all_gather" + where);
  }
  for (int root = 0; root < ranks; ++root) {
    const std::vector<float> wanted = input_of(root, count);
    check(ncclBroadcast(in.data(), out.data(), count, ncclFloat, root, comm, nullptr), "broadcast");
    expect(count == 0 || std::memcmp(wanted.data(), out.data(), count * 4) == 0, "broadcast" + where);
    check(ncclReduce(in.data(), out.data(), count, ncclFloat, ncclSum, root, comm, nullptr), "reduce");
    for (std::size_t i = 0; rank == root && i < count; ++i) expect(out[i] == sum_at(i), "reduce" + where);
  }
  // All to all, as a group of sends and receives.
  check(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t r = 0; r < n; ++r) {
    check(ncclSend(&in[r * count], count, ncclFloat, static_cast<int>(r), comm, nullptr), "ncclSend");
    check(ncclRecv(&out[r * count], count, ncclFloat, static_cast<int>(r), comm, nullptr), "ncclRecv");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (std::size_t r = 0; r < n; ++r) {
    const std::vector<float> wanted = input_of(static_cast<int>(r), count * n);
    for (std::size_t i = 0; i < count; ++i)
      expect(out[r * count + i] == wanted[static_cast<std::size_t>(rank) * count + i], "sends" + where);
  }
}

inline void check_all(ncclComm_t comm, int ranks, int rank) {
  for (const std::size_t count : {0ul, 1ul, 3ul, 100ul, 1000ul, 5001ul, 40000ul, 65536ul, 300007ul})
    check_collectives(comm, ranks, rank, count);
}

}  // namespace tutti::test
