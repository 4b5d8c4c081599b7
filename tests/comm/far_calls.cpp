#include "far_calls.h"

#include <sched.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

namespace far_calls {
namespace {

using crew::fine;
using crew::Member;

std::string first_wrong(const std::vector<int>& found, const std::vector<int>& wanted, const std::string& what) {
  const auto [at, expected] = std::mismatch(found.begin(), found.end(), wanted.begin());
  if (at == found.end()) return "";
  return what + " of " + std::to_string(found.size()) + ": element " + std::to_string(at - found.begin()) + " is " +
         std::to_string(*at) + ", not " + std::to_string(*expected);
}

std::vector<int> numbers(std::size_t count, int base, int rank) {
  std::vector<int> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = base + (rank + 1) * static_cast<int>(i % 1000);
  return all;
}

/// Of all ranks' numbers.
std::vector<int> sum(std::size_t count, int base, int ranks) {
  std::vector<int> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = ranks * base + ranks * (ranks + 1) / 2 * static_cast<int>(i % 1000);
  return all;
}

std::vector<int> times(int factor, std::vector<int> all) {
  for (int& one : all) one *= factor;
  return all;
}

std::string all_gather(const Member& m, std::size_t count, int base, bool in_place, ncclComm_t comm) {
  std::vector<int> wanted;
  for (int rank = 0; rank < m.ranks; ++rank) {
    const std::vector<int> its = numbers(count, base, rank);
    wanted.insert(wanted.end(), its.begin(), its.end());
  }
  const std::vector<int> in = numbers(count, base, m.rank);
  std::vector<int> out(wanted.size(), -1);
  int* const own = out.data() + static_cast<std::size_t>(m.rank) * count;
  if (in_place) std::copy(in.begin(), in.end(), own);
  CREW_TRY(fine(ncclAllGather(in_place ? own : in.data(), out.data(), count, ncclInt, comm, nullptr), "ncclAllGather"));
  return first_wrong(out, wanted, in_place ? "all-gather in place" : "all-gather");
}

/// A rank may be ahead of the other one by it.
std::string broadcast(const Member& m, std::size_t count, int base, int root, ncclComm_t comm) {
  std::vector<int> buffer = numbers(count, base, m.rank);
  CREW_TRY(fine(ncclBroadcast(buffer.data(), buffer.data(), count, ncclInt, root, comm, nullptr), "ncclBroadcast"));
  return first_wrong(buffer, numbers(count, base, root), "broadcast");
}

/// Sums of sums: the first call's output is the second one's input, and the third one's.
std::string group(const Member& m, std::size_t count, int base, ncclComm_t comm) {
  std::vector<int> buffer = numbers(count, base, m.rank);
  std::vector<int> last(count, -1);
  CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
  for (int call = 0; call < 2; ++call)
    CREW_TRY(fine(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt, ncclSum, comm, nullptr), "in a group"));
  CREW_TRY(fine(ncclAllReduce(buffer.data(), last.data(), count, ncclInt, ncclSum, comm, nullptr), "in a group"));
  CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
  const std::vector<int> twice = times(m.ranks, sum(count, base, m.ranks));
  CREW_TRY(first_wrong(buffer, twice, "in a group, all-reduce"));
  return first_wrong(last, times(m.ranks, twice), "the last in a group, all-reduce");
}

std::string average(const Member& m, std::size_t count, ncclComm_t comm) {
  const auto ranks = static_cast<float>(m.ranks);
  std::vector<float> values(count, ranks * static_cast<float>(m.rank));
  CREW_TRY(fine(ncclAllReduce(values.data(), values.data(), count, ncclFloat, ncclAvg, comm, nullptr), "ncclAvg"));
  const float wanted = ranks * (ranks - 1) / 2;
  const bool right = std::ranges::all_of(values, [=](float value) { return value == wanted; });
  return right ? "" : "the average is not " + std::to_string(wanted) + " everywhere";
}

/// Whose sums depend on the order in which they are added up.
std::vector<float> fractions(std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::vector<float> all(count);
  for (float& one : all)
    one = std::ldexp(static_cast<float>(random() % 65536) - 32768.0F, static_cast<int>(random() % 40) - 20);
  return all;
}

std::vector<float> added_in_rank_order(std::size_t count, int ranks) {
  std::vector<float> all = fractions(count, 0);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> its = fractions(count, rank);
    std::ranges::transform(all, its, all.begin(), std::plus<>());
  }
  return all;
}

}  // namespace

void set_hosts_of(int ranks) {
  setenv("TEST_RANKS_PER_HOST", std::to_string(ranks).c_str(), 1);
  setenv("TUTTI_CALIBRATE", "0", 1);
}
void unset_hosts() {
  unsetenv("TEST_RANKS_PER_HOST");
  unsetenv("TUTTI_CALIBRATE");
}

std::string stay_on_core(int number) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "sched_getaffinity";
  int core = 0;
  while (!CPU_ISSET(core, &set) || number-- != 0) ++core;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0 ? "" : "sched_setaffinity";
}
std::string share_a_core() { return stay_on_core(0); }

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string all_reduce(const Member& m, std::size_t count, int base, bool in_place, ncclComm_t comm) {
  const std::vector<int> wanted = sum(count, base, m.ranks);
  std::vector<int> in = numbers(count, base, m.rank);
  std::vector<int> out(in_place ? 0 : count, -1);
  std::vector<int>& found = in_place ? in : out;
  CREW_TRY(fine(ncclAllReduce(in.data(), found.data(), count, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
  return first_wrong(found, wanted, in_place ? "all-reduce in place" : "all-reduce");
}

std::string any_call(const Member& m, std::span<const std::size_t> counts, std::mt19937& same, ncclComm_t comm) {
  const std::size_t count = counts[same() % counts.size()];
  const auto base = static_cast<int>(same() % 1000);
  const bool in_place = same() % 2 == 0;
  switch (same() % 6) {
    case 0:
    case 1: return all_reduce(m, count, base, in_place, comm);
    case 2: return all_gather(m, count, base, in_place, comm);
    case 3: return broadcast(m, std::min<std::size_t>(count, 1000), base, in_place ? 0 : m.ranks - 1, comm);
    case 4: return group(m, count, base, comm);
    default: return average(m, count, comm);
  }
}

std::string random_calls(const Member& m, std::span<const std::size_t> counts, unsigned seed, int calls,
                         ncclComm_t comm) {
  std::mt19937 same(seed);
  std::mt19937 own(seed + 1 + static_cast<unsigned>(m.rank));
  for (int call = 0; call < calls; ++call) {
    if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
    const std::string wrong = any_call(m, counts, same, comm);
    if (!wrong.empty()) return "call " + std::to_string(call) + ": " + wrong;
  }
  return "";
}

std::string check_bits(const Member& m, std::size_t count, bool in_rank_order, ncclComm_t comm) {
  const std::vector<float> in = fractions(count, m.rank);
  std::vector<float> out(count, -1);
  CREW_TRY(fine(ncclAllReduce(in.data(), out.data(), count, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
  const bool same = std::memcmp(out.data(), added_in_rank_order(count, m.ranks).data(), count * sizeof(float)) == 0;
  if (in_rank_order && !same) return "the sums are not in rank order";
  std::vector<float> all(count * static_cast<std::size_t>(m.ranks));
  CREW_TRY(fine(ncclAllGather(out.data(), all.data(), count, ncclFloat, comm, nullptr), "ncclAllGather"));
  for (int rank = 0; rank < m.ranks; ++rank) {
    const float* const its = all.data() + static_cast<std::size_t>(rank) * count;
    if (std::memcmp(its, out.data(), count * sizeof(float)) != 0)
      return "rank " + std::to_string(rank) + " has other bits";
  }
  return "";
}

std::string count_sent(const Member& m, std::size_t count, std::uint64_t* sent, ncclComm_t comm) {
  std::uint64_t before = 0;
  CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
  CREW_TRY(all_reduce(m, count, 1, false, comm));
  CREW_TRY(fine(tuttiCommWireBytes(comm, sent), "tuttiCommWireBytes"));
  *sent -= before;
  return "";
}

std::string expect_sent(std::uint64_t sent, std::uint64_t bytes) {
  if (sent >= bytes && sent <= bytes + bytes / 32) return "";
  return std::to_string(bytes) + " bytes: " + std::to_string(sent) + " crossed";
}

std::string make_calls_that_differ(const Member& m, std::size_t usual, ncclComm_t comm) {
  std::mt19937 own(static_cast<unsigned>(m.rank));
  for (int round = 0; round < 20; ++round) {
    const bool odd = m.rank == (round + 1) % m.ranks;
    const std::size_t count = !odd ? usual : round % 3 == 0 ? 7 : usual + 1;
    std::vector<int> buffer(count, 3);
    if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 4000));
    CREW_TRY(crew::refused(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt, ncclSum, comm, nullptr),
                           ncclInvalidUsage,
                           {"differ", "count " + std::to_string(usual), "count " + std::to_string(count)}, comm));
    if (std::ranges::any_of(buffer, [](int value) { return value != 3; })) return "a refused call wrote its output";
    for (int call = 0; call < round % 3; ++call) CREW_TRY(all_reduce(m, usual, round, call == 0, comm));
  }
  return "";
}

std::string sum_what_others_gather(const Member& m, std::size_t count, ncclComm_t comm) {
  for (int round = 0; round < 3 * m.ranks; ++round) {
    std::vector<int> input(count, 3), output(count * static_cast<std::size_t>(m.ranks), 5);
    const bool odd = m.rank == round % m.ranks;
    if (odd) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const ncclResult_t result = odd ? ncclAllReduce(input.data(), output.data(), count, ncclInt, ncclSum, comm, nullptr)
                                    : ncclAllGather(input.data(), output.data(), count, ncclInt, comm, nullptr);
    CREW_TRY(crew::refused(result, ncclInvalidUsage, {"differ"}, comm));
    if (std::ranges::any_of(output, [](int value) { return value != 5; })) return "a refused call wrote its output";
    CREW_TRY(all_reduce(m, count, round, false, comm));
  }
  return "";
}

}  // namespace far_calls
