// Two ranks' private inputs about as long as what lies beside announce lines: each reads the other's from there and its own where it is.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

enum What { kAllReduce, kAllGather, kAllToAll, kReduceScatter, kWhats };

constexpr int kRanks = 2;
/// Bytes of a block: about where copies change their ways, and about the longest beside the lines.
constexpr std::size_t kBlocks[] = {324, 1020, 1024, 2048, 2052, 4096, 6148, 8192, 8196, 16384, 16388, 20000};
constexpr float kUntouched = -77;

float value(int call, int rank, std::size_t i) {
  return static_cast<float>((static_cast<std::size_t>(call) * 5 + static_cast<std::size_t>(rank) * 37 + i * 11) % 61);
}

struct Caller {
  int rank;
  ncclComm_t comm;
  int calls = 0;

  /// Elements behind the output stay as they are.
  std::string call(What what, std::size_t count, bool in_place) {
    ++calls;
    const bool many_in = what == kAllToAll || what == kReduceScatter;
    const bool many_out = what == kAllToAll || what == kAllGather;
    const std::size_t inputs = (many_in ? kRanks : 1) * count, outputs = (many_out ? kRanks : 1) * count;
    std::vector<float> whole(kRanks * count + 1, kUntouched), apart(inputs);
    const std::size_t mine = static_cast<std::size_t>(rank) * count;
    float* const in = !in_place ? apart.data() : whole.data() + (what == kAllGather ? mine : 0);
    float* const out = whole.data() + (in_place && what == kReduceScatter ? mine : 0);
    for (std::size_t i = 0; i < inputs; ++i) in[i] = value(calls, rank, i);
    CREW_TRY(fine(submit(what, in, out, count), "the call"));
    for (std::size_t i = 0; i < outputs; ++i) {
      if (out[i] != wanted(what, i, count)) return text(what, count, in_place) + "element " + std::to_string(i);
    }
    for (std::size_t i = 0; !in_place && i < inputs; ++i) {
      if (in[i] != value(calls, rank, i)) return text(what, count, in_place) + "its input has changed";
    }
    if (whole.back() != kUntouched) return text(what, count, in_place) + "written behind its end";
    return "";
  }

  ncclResult_t submit(What what, const float* in, float* out, std::size_t count) const {
    switch (what) {
      case kAllReduce: return ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, nullptr);
      case kAllGather: return ncclAllGather(in, out, count, ncclFloat, comm, nullptr);
      case kAllToAll: return ncclAlltoAll(in, out, count, ncclFloat, comm, nullptr);
      default: return ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, nullptr);
    }
  }
  float wanted(What what, std::size_t i, std::size_t count) const {
    const std::size_t mine = static_cast<std::size_t>(rank) * count;
    const int from = static_cast<int>(i / count);
    switch (what) {
      case kAllReduce: return value(calls, 0, i) + value(calls, 1, i);
      case kAllGather: return value(calls, from, i % count);
      case kAllToAll: return value(calls, from, mine + i % count);
      default: return value(calls, 0, mine + i) + value(calls, 1, mine + i);
    }
  }
  static std::string text(What what, std::size_t count, bool in_place) {
    return "collective " + std::to_string(what) + ", count " + std::to_string(count) +
           (in_place ? ", in place: " : ": ");
  }
};

std::string run_all(const Member& me) {
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, me.ranks, me.ids[0], me.rank), "ncclCommInitRank"));
  Caller caller{me.rank, comm};
  for (int round = 0; round < 20; ++round) {
    for (const std::size_t block : kBlocks) {
      for (int what = 0; what < kWhats; ++what) {
        for (const bool in_place : {false, true}) {
          // An all-to-all in place is none: blocks would be written over before they are read.
          if (in_place && what == kAllToAll) continue;
          CREW_TRY(caller.call(static_cast<What>(what), block / sizeof(float), in_place));
        }
      }
    }
  }
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Calls of one kind, with the same buffers, of which some try another way (way_choice.h): beside the lines, by slots, by single copies.
std::string repeat(const Member& me) {
  constexpr int kCalls = 700;
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, me.ranks, me.ids[0], me.rank), "ncclCommInitRank"));
  Caller caller{me.rank, comm};
  for (const std::size_t block : {1024u, 8192u, 16384u, 65536u}) {
    const std::size_t count = block / sizeof(float);
    for (const What what : {kAllReduce, kAllGather}) {
      std::vector<float> in(count), out(kRanks * count, kUntouched);
      for (int call = 0; call < kCalls; ++call) {
        ++caller.calls;
        for (std::size_t i = 0; i < count; i += 97) in[i] = value(caller.calls, me.rank, i);
        CREW_TRY(fine(caller.submit(what, in.data(), out.data(), count), "the call"));
        for (std::size_t i = 0; i < (what == kAllGather ? kRanks : 1) * count; ++i) {
          if (i % count % 97 == 0 && out[i] != caller.wanted(what, i, count))
            return Caller::text(what, count, false) + "call " + std::to_string(call) + ", element " + std::to_string(i);
        }
      }
    }
  }
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Likewise sends, of which the receiver chooses the way: one way, and both at once.
std::string repeat_sends(const Member& me) {
  constexpr int kCalls = 400;
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, me.ranks, me.ids[0], me.rank), "ncclCommInitRank"));
  const int peer = 1 - me.rank;
  for (const std::size_t count : {5000u, 16384u, 100003u}) {
    std::vector<float> in(count), out(count, kUntouched);
    for (int call = 0; call < 3 * kCalls; ++call) {
      const bool sends = call >= kCalls || me.rank == call % 2, receives = call >= kCalls || !sends;
      for (std::size_t i = 0; i < count; i += 97) in[i] = value(call, me.rank, i);
      CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
      if (sends) CREW_TRY(fine(ncclSend(in.data(), count, ncclFloat, peer, comm, nullptr), "ncclSend"));
      if (receives) CREW_TRY(fine(ncclRecv(out.data(), count, ncclFloat, peer, comm, nullptr), "ncclRecv"));
      CREW_TRY(fine(ncclGroupEnd(), "the call"));
      for (std::size_t i = 0; receives && i < count; i += 97) {
        if (out[i] != value(call, peer, i))
          return "count " + std::to_string(count) + ", call " + std::to_string(call) + ", element " + std::to_string(i);
      }
    }
  }
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

}  // namespace

TEST_CASE("sends that repeat are right whichever way they try", "[beside]") { crew::check(crew::run(kRanks, repeat_sends)); }

TEST_CASE("calls that repeat are right whichever way they try", "[beside]") { crew::check(crew::run(kRanks, repeat)); }

TEST_CASE("two ranks' inputs beside the lines are right, in place and not", "[beside]") {
  crew::check(crew::run(kRanks, run_all));
}
