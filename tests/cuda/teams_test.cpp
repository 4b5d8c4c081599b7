// Sums among GPUs of several hosts, of which each host's ranks share out what crosses: by kernels within hosts, through host memory between
// them. Hosts are made by NCCL_HOSTID; ranks are processes, each with a fake driver of its own.
#include "fake_driver.h"
#include "staged_rank.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include <unistd.h>

namespace tutti::test {
namespace {

/// The shortest sum of ints that goes by teams, and some that have several parts of kPartBytes each.
constexpr std::size_t kLeast = 16384;
constexpr std::size_t kPrime = 16411;

/// How many ranks each host has, until the end of the scope.
struct Placed {
  explicit Placed(const char* ranks_per_host) { setenv("TEST_RANKS_PER_HOST", ranks_per_host, 1); }
  ~Placed() { unsetenv("TEST_RANKS_PER_HOST"); }
};

/// `devices`: the ranks are on so many, by turns.
std::string make(const Member& m, Rank& rank, int devices = 4) {
  if (std::string why = Gpu::why_not(); !why.empty()) return why;
  Gpu::get().use(m.rank % std::min(devices, Gpu::get().devices()));
  return Rank::make(m, rank);
}

ncclResult_t sum_up(const Rank& rank, const std::int32_t* in, std::int32_t* out, std::size_t count) {
  return ncclAllReduce(in, out, count, ncclInt32, ncclSum, rank.comm, rank.stream);
}

std::string check_sum(const Rank& rank, std::size_t count, bool in_place) {
  const Member& m = rank.member;
  const IntsOnGpu in(values(m.rank, count));
  const IntsOnGpu out(Ints(count, kPoison));
  std::int32_t* const to = in_place ? in.data() : out.data();
  CREW_TRY(fine(sum_up(rank, in.data(), to, count), "sum"));
  Gpu::get().wait(rank.stream);
  const std::string name = std::to_string(count) + (in_place ? " in place" : "");
  CREW_TRY(compare(
      in_place ? in.read() : out.read(), [&](std::size_t i) { return sum(m.ranks, i); }, name));
  if (in_place) return "";
  return compare(
      in.read(), [&](std::size_t i) { return value(m.rank, i); }, name + ", the input");
}

}  // namespace

TEST_CASE("teams: sums of all lengths, in place and not", "[teams]") {
  const int per_host = GENERATE(2, 3);
  const int devices = GENERATE(1, 4);  // on one, streams meet; on several, kernels wait for each other
  const Placed placed(std::to_string(per_host).c_str());
  crew::check(crew::run(2 * per_host, [devices](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(make(m, rank, devices));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1009}, kLeast - 1, kLeast, kLeast + 1, kPrime,
                                    std::size_t{50000}}) {
      CREW_TRY(check_sum(rank, count, false));
      CREW_TRY(check_sum(rank, count, true));
    }
    return rank.end();
  }));
}

}  // namespace tutti::test
