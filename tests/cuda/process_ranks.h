// What the tests of ranks that are processes have in common.
#pragma once

#include "comm/crew.h"
#include "gpu.h"
#include "rank_values.h"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <unistd.h>

namespace tutti::test {

using crew::fine;
using crew::Member;
using crew::refused;

using Values = Ints;

/// Those of these numbers of GPUs over which a test spreads its ranks that are not all the same on this machine: TEST_GPUS says how many
/// GPUs it has, as the parent may not ask the driver.
inline std::vector<int> over_gpus(std::vector<int> counts) {
  const char* const gpus = std::getenv("TEST_GPUS");
  if (gpus) std::erase_if(counts, [most = std::max(1, std::atoi(gpus))](int count) { return count > most; });
  return counts;
}

/// What one process has: its rank, its device, a stream.
struct Rank {
  const Member& m;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;
  int device = 0;

  explicit Rank(const Member& member) : m(member) {}
  /// `devices`: the ranks are on so many, if there are, by turns. On one their streams meet, on several the kernels do. Small calls go by
  /// kernels too, unless a test sets the variable.
  std::string open(int devices = 1, int id = 0) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 0);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    device = m.rank % std::min(devices, Gpu::get().devices());
    Gpu::get().use(device);
    stream = Gpu::get().make_stream();
    return fine(ncclCommInitRank(&comm, m.ranks, m.ids[id], m.rank), "ncclCommInitRank");
  }
  std::string close() {
    Gpu::get().destroy(stream);
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }
};

/// Of three ranks of which 0 and 1 are in the first of two processes, those of this one.
struct TwoAndOne {
  int first;
  std::array<int, 3> devices;  ///< by rank, as far as there are so many
  std::vector<ncclComm_t> comms;

  explicit TwoAndOne(const Member& m, std::array<int, 3> on = {0, 0, 0})
      : first(m.rank == 0 ? 0 : 2), devices(on), comms(m.rank == 0 ? 2 : 1) {}
  /// Of one of those here.
  void use(std::size_t own) const {
    Gpu::get().use(devices[static_cast<std::size_t>(first) + own] % Gpu::get().devices());
  }
  std::string open(const Member& m, int id = 0) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (std::size_t i = 0; i < comms.size(); ++i) {
      use(i);
      CREW_TRY(fine(ncclCommInitRank(&comms[i], 3, m.ids[id], first + static_cast<int>(i)), "ncclCommInitRank"));
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    use(0);
    return "";
  }
};

/// What processes share that go through rounds together, in each of which something fails.
struct Rounds {
  std::atomic<int> begun;  ///< by the rank that made the id
  std::atomic<int> done[4];
  std::atomic<int> over;    ///< nothing failed any more
  std::atomic<int> broken;  ///< a rank has a complaint
  ncclUniqueId id;
};

inline void meet(const Member& m, Rounds& rounds, int round) {
  rounds.done[m.rank] = round;
  for (int r = 0; r < m.ranks; ++r) {
    while (rounds.done[r] < round && rounds.broken == 0) usleep(100);
  }
}

/// Lets go of what communicators have left until streams were through, or for their peers' sake: the next one on the device does.
inline std::string settle(int device) {
  ncclComm_t alone = nullptr;
  CREW_TRY(fine(ncclCommInitAll(&alone, 1, &device), "ncclCommInitAll"));
  return fine(ncclCommDestroy(alone), "ncclCommDestroy");
}

/// Asks until the communicator has failed so, up to 10 s.
inline std::string fails(ncclComm_t comm, ncclResult_t wanted, const std::vector<std::string>& parts) {
  ncclResult_t state = ncclSuccess;
  for (const double end = crew::now_s() + 10; crew::now_s() < end && state == ncclSuccess; usleep(1000)) {
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
  }
  return refused(state, wanted, parts, comm);
}

inline std::string differs(const char* what, const Values& found,
                           const std::function<std::int32_t(std::size_t)>& wanted, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i] != wanted(i)) {
      return std::string(what) + ": element " + std::to_string(i) + " of " + std::to_string(count) + " is " +
             std::to_string(found[i]) + ", not " + std::to_string(wanted(i));
    }
  }
  for (std::size_t i = count; i < found.size(); ++i) {
    if (found[i] != kPoison) return std::string(what) + ": element " + std::to_string(i) + " was written";
  }
  return "";
}

}  // namespace tutti::test
