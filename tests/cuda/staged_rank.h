// A rank that is a process, on device memory: what the tests of the way through host memory have in common.
#pragma once

#include "comm/crew.h"
#include "gpu.h"
#include "rank_values.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace tutti::test {

using crew::fine;
using crew::Member;
using IntsOnGpu = OnGpu<std::int32_t>;

constexpr std::size_t kPartBytes = 4096;  ///< so that small calls have several parts

/// A rank: its communicator and a stream.
struct Rank {
  Member member;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;

  static std::string make(const Member& m, Rank& rank) {
    setenv("TUTTI_STAGING_BYTES", std::to_string(kPartBytes).c_str(), 0);
    if (std::string why = Gpu::why_not(); !why.empty()) return why;
    rank.member = m;
    rank.stream = Gpu::get().make_stream();
    return fine(ncclCommInitRank(&rank.comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank");
  }
  std::string end() const {
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    Gpu::get().wait(stream);
    Gpu::get().destroy(stream);
    return "";
  }
};

/// "" or what is wrong where.
inline std::string compare(const Ints& found, const std::function<std::int32_t(std::size_t)>& wanted,
                           const std::string& what) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == wanted(i)) continue;
    return what + ": element " + std::to_string(i) + " of " + std::to_string(found.size()) + " is " +
           std::to_string(found[i]) + " and should be " + std::to_string(wanted(i));
  }
  return "";
}

}  // namespace tutti::test
