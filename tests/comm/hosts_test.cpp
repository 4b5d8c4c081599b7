// What crosses between hosts, counted: two hosts that this machine imitates, by TCP over its own network.
#include "crew.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;

/// Of the larger of a call's two buffers.
constexpr std::size_t kElements[] = {64 << 8, 256 << 8, 1 << 18, 3 << 19};
constexpr int kRoot = 1;

enum class Call { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kAllToAll, kGather, kScatter };
constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                  "reduce",     "all_to_all",     "gather",     "scatter"};
constexpr int kCalls = static_cast<int>(std::size(kNames));

struct Buffers {
  std::vector<float> in, out;
};

std::string run(Call call, const Member& m, Buffers& b, ncclComm_t comm) {
  const std::size_t elements = b.out.size();
  const std::size_t part = elements / static_cast<std::size_t>(m.ranks);
  const char* const name = kNames[static_cast<int>(call)];
  switch (call) {
    case Call::kAllReduce:
      return fine(ncclAllReduce(b.in.data(), b.out.data(), elements, ncclFloat, ncclSum, comm, nullptr), name);
    case Call::kReduceScatter:
      return fine(ncclReduceScatter(b.in.data(), b.out.data(), part, ncclFloat, ncclSum, comm, nullptr), name);
    case Call::kAllGather: return fine(ncclAllGather(b.in.data(), b.out.data(), part, ncclFloat, comm, nullptr), name);
    case Call::kBroadcast:
      return fine(ncclBroadcast(b.in.data(), b.out.data(), elements, ncclFloat, kRoot, comm, nullptr), name);
    case Call::kReduce:
      return fine(ncclReduce(b.in.data(), b.out.data(), elements, ncclFloat, ncclSum, kRoot, comm, nullptr), name);
    case Call::kAllToAll: return fine(ncclAlltoAll(b.in.data(), b.out.data(), part, ncclFloat, comm, nullptr), name);
    case Call::kGather: return fine(ncclGather(b.in.data(), b.out.data(), part, ncclFloat, kRoot, comm, nullptr), name);
    case Call::kScatter:
      return fine(ncclScatter(b.in.data(), b.out.data(), part, ncclFloat, kRoot, comm, nullptr), name);
  }
  return "no such call";
}

/// Bytes that leave a host, as a part of the larger buffer, the ranks being 0 and 1 on the first host and the others on the second.
struct Bound {
  double first, second;
};
Bound bound_of(Call call, int ranks) {
  const double second = ranks - 2;
  switch (call) {
    case Call::kAllReduce: return {1, 1};
    case Call::kReduceScatter: return {second / ranks, 2.0 / ranks};
    case Call::kAllGather: return {2.0 / ranks, second / ranks};
    case Call::kBroadcast: return {1, 0};
    case Call::kReduce: return {0, 1};
    case Call::kAllToAll: return {2 * second / ranks, 2 * second / ranks};
    case Call::kGather: return {0, second / ranks};
    case Call::kScatter: return {second / ranks, 0};
  }
  return {};
}

/// Each call has schedules by which the ranks of a host share what leaves it equally.
std::string unequal(Call call, const std::vector<std::uint64_t>& sent, double bytes) {
  for (std::size_t first = 0; first < sent.size(); first += 2) {
    const double apart = static_cast<double>(sent[first]) - static_cast<double>(sent[first + 1]);
    if (std::abs(apart) > 0.03 * bytes)
      return std::string(kNames[static_cast<int>(call)]) + " of " + std::to_string(bytes) + " bytes: rank " +
             std::to_string(first) + " sent " + std::to_string(sent[first]) + ", the rank beside it " +
             std::to_string(sent[first + 1]);
  }
  return "";
}

/// What this rank's call sent to the other host.
std::string count(Call call, const Member& m, Buffers& b, ncclComm_t comm, std::uint64_t* sent) {
  std::uint64_t before = 0;
  CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
  CREW_TRY(run(call, m, b, comm));
  CREW_TRY(fine(tuttiCommWireBytes(comm, sent), "tuttiCommWireBytes"));
  *sent -= before;
  return "";
}

float value(int rank, std::size_t i) { return static_cast<float>(rank * 4099 + static_cast<int>(i % 4093)); }

/// Each block is where it belongs.
std::string misplaced(Call call, const Member& m, const Buffers& b) {
  const std::size_t part = b.out.size() / static_cast<std::size_t>(m.ranks);
  const bool gathered = call == Call::kGather && m.rank == kRoot;
  if (!gathered && call != Call::kScatter) return "";
  for (std::size_t i = 0; i < (gathered ? b.out.size() : part); ++i) {
    const float wanted = gathered ? value(static_cast<int>(i / part), i % part)
                                  : value(kRoot, static_cast<std::size_t>(m.rank) * part + i);
    if (b.out[i] != wanted)
      return std::string(kNames[static_cast<int>(call)]) + ": " + std::to_string(b.out[i]) + " for " +
             std::to_string(wanted) + " at " + std::to_string(i);
  }
  return "";
}

std::string check(Call call, const Member& m, Buffers& b, ncclComm_t comm) {
  for (std::size_t i = 0; i < b.in.size(); ++i) b.in[i] = value(m.rank, i);
  std::ranges::fill(b.out, -1.0F);
  CREW_TRY(run(call, m, b, comm));
  CREW_TRY(misplaced(call, m, b));
  std::uint64_t sent = 0;
  CREW_TRY(count(call, m, b, comm, &sent));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(m.ranks));
  CREW_TRY(fine(ncclAllGather(&sent, all.data(), 1, ncclUint64, comm, nullptr), "ncclAllGather"));
  double of_host[2] = {0, 0};
  for (int rank = 0; rank < m.ranks; ++rank)
    of_host[rank < 2 ? 0 : 1] += static_cast<double>(all[static_cast<std::size_t>(rank)]);
  const Bound bound = bound_of(call, m.ranks);
  const auto bytes = static_cast<double>(b.out.size() * sizeof(float));
  for (const int host : {0, 1}) {
    const double least = bytes * (host == 0 ? bound.first : bound.second);
    // Words, counts and announce lines are beside it.
    if (of_host[host] >= least && of_host[host] <= least + 0.03 * bytes) continue;
    return std::string(kNames[static_cast<int>(call)]) + " of " + std::to_string(b.out.size() * sizeof(float)) +
           " bytes: host " + std::to_string(host) + " sent " + std::to_string(of_host[host]) + " bytes where " +
           std::to_string(least) + " are enough";
  }
  return unequal(call, all, bytes);
}

/// How many descriptors this process has once none comes or goes for half a second: on a loaded machine ways up end late.
int settled_descriptors() {
  int last = 0;
  for (double since = crew::now_s(); crew::now_s() - since < 0.5; usleep(1000)) {
    const int now = crew::Belongings::count().descriptors;
    if (now != last) since = crew::now_s();
    last = now;
  }
  return last;
}

}  // namespace

TEST_CASE("between two hosts goes what the collective needs, and not a rank's part more", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "2", 1);
  // The usual prices of a network: one that is measured as fast as memory may get a flat schedule.
  setenv("TUTTI_CALIBRATE", "0", 1);
  // Where ranks share cores they are not taken else.
  setenv("NCCL_ALGO", "gather:hosts_oneshot;scatter:hosts_oneshot", 1);
  for (const int ranks : {4}) {
    INFO(ranks << " ranks");
    crew::check(crew::run(ranks, [](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      for (const std::size_t elements : kElements) {
        Buffers buffers{std::vector<float>(elements, 1), std::vector<float>(elements)};
        for (int call = 0; call < kCalls; ++call) CREW_TRY(check(static_cast<Call>(call), m, buffers, comm));
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("NCCL_ALGO");
  unsetenv("TUTTI_CALIBRATE");
  unsetenv("TEST_RANKS_PER_HOST");
}

namespace {

/// Small enough to travel with the lines.
std::string small_sum(const Member& m, ncclComm_t comm) {
  float value = static_cast<float>(m.rank);
  CREW_TRY(fine(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
  const int wanted = m.ranks * (m.ranks - 1) / 2;
  return value == static_cast<float>(wanted) ? "" : "the sum is " + std::to_string(value);
}

/// What one small call sends from here. Some calls send more, when a rank is late: the least counts.
std::string count_small(const Member& m, ncclComm_t comm, std::uint64_t* least) {
  *least = ~std::uint64_t{0};
  for (int round = 0; round < 40; ++round) {
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
    CREW_TRY(small_sum(m, comm));
    CREW_TRY(fine(tuttiCommWireBytes(comm, &after), "tuttiCommWireBytes"));
    *least = std::min(*least, after - before);
  }
  return "";
}

/// One of a few hundred calls that all ranks make alike: of all ranks, to a root or from one, in lines or beside them.
std::string mixed_call(const Member& m, std::mt19937& same, ncclComm_t comm) {
  const std::size_t count = same() % 3 == 0 ? 300 : 1 + same() % 8;
  const int kind = static_cast<int>(same() % 3);
  const int root = static_cast<int>(same() % static_cast<unsigned>(m.ranks));
  const auto base = static_cast<int>(same() % 1000);
  std::vector<int> in(count, base + m.rank);
  std::vector<int> out(count, -1);
  int wanted = base * m.ranks + m.ranks * (m.ranks - 1) / 2;
  if (kind == 0) {
    CREW_TRY(fine(ncclAllReduce(in.data(), out.data(), count, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
  } else if (kind == 1) {
    CREW_TRY(fine(ncclReduce(in.data(), out.data(), count, ncclInt, ncclSum, root, comm, nullptr), "ncclReduce"));
    if (m.rank != root) wanted = -1;
  } else {
    CREW_TRY(fine(ncclBroadcast(in.data(), out.data(), count, ncclInt, root, comm, nullptr), "ncclBroadcast"));
    wanted = base + root;
  }
  for (const int found : out)
    if (found != wanted)
      return "kind " + std::to_string(kind) + ": " + std::to_string(found) + " for " + std::to_string(wanted);
  return "";
}

}  // namespace

TEST_CASE("the lines of a small call cross once from host to host", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "2", 1);
  // Hosts of ranks 0 and 1, 2 and 3, and 4.
  crew::check(crew::run(5, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    std::uint64_t least = 0;
    CREW_TRY(count_small(m, comm, &least));
    std::vector<std::uint64_t> all(5);
    CREW_TRY(fine(ncclAllGather(&least, all.data(), 1, ncclUint64, comm, nullptr), "ncclAllGather"));
    const std::uint64_t line = all[4] / 2;  // to either of the other hosts
    const std::vector<std::uint64_t> wanted = {2 * line, 2 * line, 0, 4 * line, 2 * line};
    if (line == 0 || all != wanted) {
      std::string text = "ranks sent";
      for (const std::uint64_t bytes : all) text += " " + std::to_string(bytes);
      return text;
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}

namespace {

/// Ranks on hosts, and the calls of a test.
struct OnHosts {
  int ranks;
  const char* per_host;
  int calls;
};

}  // namespace

TEST_CASE("calls of all ranks and one-way calls mix over hosts, whoever is late", "[hosts]") {
  // The usual prices: lines of four hosts and of six are passed on by others.
  setenv("TUTTI_CALIBRATE", "0", 1);
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  for (const OnHosts& on : {OnHosts{4, "2", 400}, {5, "2", 400}, {4, "1", 400}, {6, "1", 200}, {7, "2,1,3,1", 200}}) {
    const int ranks = on.ranks;
    setenv("TEST_RANKS_PER_HOST", on.per_host, 1);
    INFO(ranks << " ranks, " << on.per_host << " on a host");
    crew::check(crew::run(ranks, [seed, calls = on.calls](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      std::mt19937 same(seed);
      std::mt19937 own(seed + 1 + static_cast<unsigned>(m.rank));
      for (int call = 0; call < calls; ++call) {
        if (own() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 4000));
        const std::string wrong = mixed_call(m, same, comm);
        if (!wrong.empty()) return "call " + std::to_string(call) + ": " + wrong;
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("TEST_RANKS_PER_HOST");
  unsetenv("TUTTI_CALIBRATE");
}

TEST_CASE("over hosts the rank that does not come is named, though other ranks' lines go through it", "[hosts]") {
  setenv("TUTTI_TIMEOUT_S", "2", 1);  // which the start has to keep, too
  setenv("TUTTI_CALIBRATE", "0", 1);
  for (const auto& [per_host, missing] : {std::pair{"2", 0}, {"2", 1}, {"2", 2}, {"1", 0}, {"1", 3}}) {
    setenv("TEST_RANKS_PER_HOST", per_host, 1);
    INFO(per_host << " on a host, rank " << missing << " does not come");
    crew::check(crew::run(4, [missing = missing](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      CREW_TRY(small_sum(m, comm));
      if (m.rank == missing) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3000));
      } else {
        float value = 0;
        CREW_TRY(crew::refused(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), ncclRemoteError,
                               {"rank " + std::to_string(missing)}, comm));
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("TUTTI_TIMEOUT_S");
  unsetenv("TUTTI_CALIBRATE");
  unsetenv("TEST_RANKS_PER_HOST");
}

namespace {

/// How a call is explained: what it says of the network, "" if nothing.
std::string network_line(ncclComm_t comm) {
  std::string text(1 << 16, '\0');
  if (tuttiExplain(comm, tuttiAllReduce, 1 << 20, ncclFloat, ncclSum, 0, text.data(), text.size(), nullptr) !=
      ncclSuccess)
    return "";
  const std::size_t begin = text.find("\nnetwork: ");
  return begin == std::string::npos ? "" : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

}  // namespace

TEST_CASE("what the network costs is measured by default, and the same for all ranks", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "2,1,1", 1);
  for (const bool measured : {true, false}) {
    INFO((measured ? "measured" : "not measured"));
    crew::check(crew::run(4, [measured](const Member& m) -> std::string {
      setenv("TUTTI_CALIBRATE", measured ? "1" : "0", 1);
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      std::string line = network_line(comm);
      if (line.find(measured
                        ? "(measured)"
                        : "15.0 us and 8.0 us of work at each end, bytes 1.50 GB/s (not measured") == std::string::npos)
        return "it says \"" + line + "\"";
      line.resize(160);
      std::vector<char> all(static_cast<std::size_t>(m.ranks) * line.size());
      CREW_TRY(fine(ncclAllGather(line.data(), all.data(), line.size(), ncclChar, comm, nullptr), "ncclAllGather"));
      for (int rank = 0; rank < m.ranks; ++rank) {
        const std::string other(all.data() + static_cast<std::size_t>(rank) * line.size(), line.size());
        if (other != line) return "rank " + std::to_string(rank) + " has \"" + other + "\", not \"" + line + "\"";
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("a pair of ranks has as many sockets for data as both ask for", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  auto* const descriptors = static_cast<int*>(crew::shared_page());
  for (const int sockets : {1, 3}) {
    crew::check(crew::run(2, [sockets, descriptors](const Member& m) -> std::string {
      setenv("NCCL_SOCKET_NTHREADS", m.rank == 0 ? "1" : "2", 1);
      setenv("NCCL_NSOCKS_PERTHREAD", m.rank == 0 || sockets == 1 ? std::to_string(sockets).c_str() : "4", 1);
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      CREW_TRY(crew::usable(comm));
      descriptors[4 * m.rank + sockets] = settled_descriptors();
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  for (const int rank : {0, 1}) CHECK(descriptors[4 * rank + 3] == descriptors[4 * rank + 1] + 2);
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("what the library makes by itself does not go by NCCL_COMM_ID", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "1,2", 1);
  crew::check(crew::run(5, [](const Member& m) -> std::string {
    // Nobody is there: an address that is kept for documents.
    setenv("NCCL_COMM_ID", "192.0.2.1:4711", 1);
    setenv("TUTTI_TIMEOUT_S", "10", 1);
    ncclComm_t comm = nullptr, half = nullptr, rest = nullptr, own[2] = {};
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(fine(ncclCommSplit(comm, m.rank % 2, -m.rank, &half, nullptr), "ncclCommSplit"));
    CREW_TRY(crew::usable(half));
    CREW_TRY(fine(ncclCommDestroy(half), "ncclCommDestroy"));
    int without = 0;
    if (m.rank != without) {
      CREW_TRY(fine(ncclCommShrink(comm, &without, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT), "ncclCommShrink"));
      CREW_TRY(crew::usable(rest));
      CREW_TRY(fine(ncclCommDestroy(rest), "ncclCommDestroy"));
    }
    CREW_TRY(fine(ncclCommInitAll(own, 2, nullptr), "ncclCommInitAll"));
    for (ncclComm_t one : own) CREW_TRY(fine(ncclCommDestroy(one), "ncclCommDestroy"));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("an address that rank 0 cannot be reached at can be corrected") {
  auto* const over = static_cast<std::atomic<bool>*>(crew::shared_page());
  const std::string port = std::to_string(20000 + getpid() % 10000);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_SECRET", "a word", 1);
    setenv("TUTTI_TIMEOUT_S", "4", 1);
    const auto meet = [&](const std::string& host, ncclComm_t* comm) {
      setenv("NCCL_COMM_ID", (host + ":" + port).c_str(), 1);
      ncclUniqueId id;
      const ncclResult_t named = ncclGetUniqueId(&id);
      return named == ncclSuccess ? ncclCommInitRank(comm, 2, id, m.rank) : named;
    };
    ncclComm_t comm = nullptr;
    if (m.rank == 0) {
      // One that is kept for documents.
      if (meet("192.0.2.1", &comm) == ncclSuccess) return "it has met somebody there";
      *over = true;
    }
    while (!*over) usleep(1000);
    CREW_TRY(fine(meet("127.0.0.1", &comm), "ncclCommInitRank"));
    CREW_TRY(crew::usable(comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("ranks of different pid namespaces, on hosts that are called the same, do not take each other for dead") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    if (m.rank == 1 && unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
      fputs("hosts_test: no pid namespace may be made here: both ranks stay in one\n", stderr);
    }
    const pid_t child = fork();  // the first one is in the new namespace
    if (child == 0) {
      const auto work = [&m]() -> std::string {
        ncclComm_t comm = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&comm, 2, m.ids[0], m.rank), "ncclCommInitRank"));
        for (int i = 0; i < 300; ++i) CREW_TRY(crew::usable(comm));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      };
      const std::string wrong = work();
      fputs(wrong.c_str(), stderr);
      _exit(wrong.empty() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status == 0 ? "" : "this rank failed";
  }));
}
