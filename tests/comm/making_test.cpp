// Communicators that are made from others: who waits, what the parent says meanwhile, and what may be asked of one that is not there yet.
#include "crew.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

ncclConfig_t config_of(int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  return config;
}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  return ncclCommGetAsyncError(comm, &state) == ncclSuccess ? state : ncclInternalError;
}

ncclResult_t settled(ncclComm_t comm) {
  while (state_of(comm) == ncclInProgress) usleep(20);
  return state_of(comm);
}

std::string init_as(const Member& m, ncclComm_t* comm, int blocking) {
  ncclConfig_t config = config_of(blocking);
  const ncclResult_t begun = ncclCommInitRankConfig(comm, m.ranks, m.ids[0], m.rank, &config);
  if (begun != ncclInProgress) CREW_TRY(fine(begun, "ncclCommInitRankConfig"));
  return fine(settled(*comm), "initialisation");
}

}  // namespace

TEST_CASE("who waits for a parent that does not block has the child, when a late rank has come") {
  const int children_block = GENERATE(0, 1);
  const bool shrinks = GENERATE(false, true);
  CAPTURE(children_block, shrinks);
  auto* const looked = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    ncclComm_t parent = nullptr;
    CREW_TRY(init_as(m, &parent, 0));
    for (int round = 0; round < 5; ++round) {
      ncclConfig_t config = config_of(children_block);
      ncclComm_t child = nullptr;
      int excluded = 2;
      if (shrinks && m.rank == excluded) break;
      while (m.rank == 1 && *looked <= round) usleep(100);
      const ncclResult_t begun = shrinks
                                     ? ncclCommShrink(parent, &excluded, 1, &child, &config, NCCL_SHRINK_DEFAULT)
                                     : ncclCommSplit(parent, m.rank == 2 ? NCCL_SPLIT_NOCOLOR : 5, 0, &child, &config);
      if (begun != ncclInProgress) return "it returned " + std::to_string(begun);
      if (m.rank == 0 && state_of(parent) != ncclInProgress) return "the parent is not in progress";
      if (m.rank == 0) ++*looked;
      CREW_TRY(fine(settled(parent), "the parent"));
      if ((child != nullptr) != (m.rank != 2)) return "who has a child?";
      if (child == nullptr) continue;
      int ranks = 0;
      CREW_TRY(fine(ncclCommCount(child, &ranks), "ncclCommCount"));
      if (ranks != 2) return std::to_string(ranks) + " ranks";
      CREW_TRY(crew::usable(child));
      CREW_TRY(fine(ncclCommDestroy(child), "ncclCommDestroy"));
    }
    return fine(ncclCommDestroy(parent), "ncclCommDestroy");
  }));
}

TEST_CASE("a parent that blocks has its caller wait, whatever the child is to do later") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t parent = nullptr;
    ncclComm_t child = nullptr;
    CREW_TRY(init_as(m, &parent, 1));
    ncclConfig_t config = config_of(0);
    CREW_TRY(fine(ncclCommSplit(parent, 0, 0, &child, &config), "ncclCommSplit"));
    if (state_of(child) != ncclSuccess) return "the child is not ready";
    CREW_TRY(crew::usable(child));
    CREW_TRY(fine(ncclCommDestroy(child), "ncclCommDestroy"));
    return fine(ncclCommDestroy(parent), "ncclCommDestroy");
  }));
}

TEST_CASE("one thread splits communicators that do not block one after the other, one of them without a color") {
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    std::vector<ncclComm_t> parents(2), children(2);
    ncclConfig_t config = config_of(0);
    for (int r = 0; r < 2; ++r) {
      if (ncclCommInitRankConfig(&parents[r], 2, m.ids[0], r, &config) != ncclInProgress) return "it waited";
    }
    for (ncclComm_t parent : parents) CREW_TRY(fine(settled(parent), "initialisation"));
    for (int round = 0; round < 20; ++round) {
      const int left_out = round % 2;
      for (int r = 0; r < 2; ++r) {
        const int color = r == left_out ? NCCL_SPLIT_NOCOLOR : 1;
        if (ncclCommSplit(parents[r], color, 0, &children[r], nullptr) != ncclInProgress) return "a split waited";
      }
      for (ncclComm_t parent : parents) CREW_TRY(fine(settled(parent), "the parent"));
      int ranks = 0;
      CREW_TRY(fine(ncclCommCount(children[1 - left_out], &ranks), "ncclCommCount"));
      if (children[left_out] != nullptr || ranks != 1) return "wrong children";
      CREW_TRY(fine(ncclCommDestroy(children[1 - left_out]), "ncclCommDestroy"));
    }
    CREW_TRY(fine(ncclCommRevoke(nullptr, NCCL_REVOKE_DEFAULT), "ncclCommRevoke of nothing"));
    for (ncclComm_t parent : parents) CREW_TRY(fine(ncclCommDestroy(parent), "ncclCommDestroy"));
    return "";
  }));
}

TEST_CASE("a child that is not there yet has no place, and its calls are refused") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t parent = nullptr;
    ncclComm_t child = nullptr;
    CREW_TRY(init_as(m, &parent, 1));
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(fine(ncclCommSplit(parent, 0, 0, &child, nullptr), "ncclCommSplit"));
    int number = -1;
    CREW_TRY(refused(ncclCommCount(child, &number), ncclInvalidUsage, {"still initialising"}));
    CREW_TRY(refused(ncclCommUserRank(child, &number), ncclInvalidUsage, {"still initialising"}));
    int in[2] = {}, out[2] = {};
    CREW_TRY(refused(ncclAlltoAll(in, out, 1, ncclInt, child, nullptr), ncclInvalidUsage, {"still initialising"}));
    CREW_TRY(refused(ncclBroadcast(in, out, 1, ncclInt, 0, child, nullptr), ncclInvalidUsage, {"still initialising"}));
    if (number != -1) return "a number was written";
    CREW_TRY(refused(ncclGroupEnd(), ncclInvalidUsage, {"still initialising"}));
    // Now it never will be.
    CREW_TRY(refused(ncclAlltoAll(in, out, 1, ncclInt, child, nullptr), ncclInvalidUsage, {"initialisation failed"}));
    CREW_TRY(refused(ncclCommCount(child, &number), ncclInvalidUsage, {"initialisation failed"}));
    CREW_TRY(fine(ncclCommDestroy(child), "ncclCommDestroy"));
    CREW_TRY(crew::usable(parent));
    return fine(ncclCommDestroy(parent), "ncclCommDestroy");
  }));
}
