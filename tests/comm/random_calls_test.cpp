// Calls of all kinds and lengths in random order, alone and in groups, in place on some ranks and not on others, over hosts between which bytes
// come late and in pieces: whatever overtakes what, each has the right result. Seeds: SEED, more rounds: ROUNDS.
#include "crew.h"
#include "lazy_network.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t end) { return random() % end; }

std::size_t number_from(const char* name, std::size_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

enum class What { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kAllToAll, kGather, kScatter, kShift };
constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                  "all_to_all", "gather",         "scatter",    "shift"};
constexpr int kWhats = 9;

struct Type {
  ncclDataType_t type;
  std::size_t bytes;
};
constexpr Type kTypes[] = {{ncclUint8, 1}, {ncclBfloat16, 2}, {ncclFloat32, 4}, {ncclInt64, 8}};

/// Small numbers, which every type has exactly: so have sums of them.
unsigned value(int call, int rank, std::size_t at) {
  return (static_cast<unsigned>(call) * 5 + static_cast<unsigned>(rank) * 3 + static_cast<unsigned>(at) +
          static_cast<unsigned>(at >> 8)) %
         13;
}

void write(const Type& type, std::byte* to, unsigned number) {
  const auto put = [to](auto as) { std::memcpy(to, &as, sizeof as); };
  const auto real = static_cast<float>(number);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &real, sizeof bits);
  switch (type.type) {
    case ncclUint8: return put(static_cast<std::uint8_t>(number));
    case ncclBfloat16: return put(static_cast<std::uint16_t>(bits >> 16));
    case ncclFloat32: return put(bits);
    default: return put(static_cast<std::int64_t>(number));
  }
}

/// The same on every rank, but for what it says of one.
struct Call {
  int number = 0;
  What what = What::kAllReduce;
  Type type = kTypes[0];
  ncclRedOp_t op = ncclSum;
  std::size_t count = 0;
  int root = 0;           ///< of a shift: how far
  unsigned in_place = 0;  ///< by rank
  std::vector<std::byte> in{}, out{};
  std::byte* send = nullptr;
  std::byte* receive = nullptr;

  static Call make(Random& random, int number, int ranks) {
    constexpr std::size_t kEnds[] = {3, 200, 3000, 9000, 9000, 9000, 40000, 150000};
    Call call;
    call.number = number;
    call.what = static_cast<What>(below(random, kWhats));
    call.type = kTypes[below(random, std::size(kTypes))];
    constexpr ncclRedOp_t kOps[] = {ncclSum, ncclSum, ncclMin, ncclMax};
    call.op = kOps[below(random, std::size(kOps))];
    call.count = below(random, kEnds[below(random, std::size(kEnds))]) / call.type.bytes;
    // At the edge of what goes with lines.
    if (below(random, 8) == 0) call.count = 8192 / call.type.bytes - below(random, 2);
    call.root = static_cast<int>(below(random, static_cast<std::size_t>(ranks)));
    call.in_place = static_cast<unsigned>(below(random, 3) == 0 ? below(random, std::size_t{1} << ranks) : 0);
    return call;
  }

  std::string name() const {
    return fmt::format("call {}: {} of {}, type {}, operation {}, root {}, in place {:b}", number,
                       kNames[static_cast<int>(what)], count, static_cast<int>(type.type), static_cast<int>(op), root,
                       in_place);
  }
  std::size_t block_bytes() const { return count * type.bytes; }

  void prepare(const Member& m) {
    const auto ranks = static_cast<std::size_t>(m.ranks);
    const auto rank = static_cast<std::size_t>(m.rank);
    const bool is_root = m.rank == root;
    const bool splits = what == What::kReduceScatter || what == What::kAllToAll || what == What::kScatter;
    const bool joins = what == What::kAllGather || what == What::kAllToAll || what == What::kGather;
    in.assign(std::max<std::size_t>(block_bytes() * (splits ? ranks : 1), 1), std::byte{0xee});
    out.assign(block_bytes() * (joins ? ranks : 1) + 64, kGuard);
    send = in.data();
    receive = out.data();
    bool here = (in_place >> m.rank & 1) != 0;
    if (what == What::kAllToAll || what == What::kShift) here = false;
    if (is_rooted() && !is_root) here = false;
    if (here && joins) send = out.data() + rank * block_bytes();
    if (here && splits) receive = in.data() + rank * block_bytes();
    if (here && !joins && !splits) send = out.data();
    for (std::size_t i = 0; i < count * (splits ? ranks : 1); ++i)
      write(type, send + i * type.bytes, value(number, m.rank, i));
  }

  ncclResult_t submit(const Member& m, ncclComm_t comm) const {
    const ncclDataType_t t = type.type;
    switch (what) {
      case What::kAllReduce: return ncclAllReduce(send, receive, count, t, op, comm, nullptr);
      case What::kReduceScatter: return ncclReduceScatter(send, receive, count, t, op, comm, nullptr);
      case What::kAllGather: return ncclAllGather(send, receive, count, t, comm, nullptr);
      case What::kBroadcast: return ncclBroadcast(send, receive, count, t, root, comm, nullptr);
      case What::kReduce: return ncclReduce(send, receive, count, t, op, root, comm, nullptr);
      case What::kAllToAll: return ncclAlltoAll(send, receive, count, t, comm, nullptr);
      case What::kGather: return ncclGather(send, receive, count, t, root, comm, nullptr);
      case What::kScatter: return ncclScatter(send, receive, count, t, root, comm, nullptr);
      default: break;
    }
    if (const ncclResult_t result = ncclGroupStart(); result != ncclSuccess) return result;
    const ncclResult_t sent = ncclSend(send, count, t, (m.rank + root) % m.ranks, comm, nullptr);
    const ncclResult_t received = ncclRecv(receive, count, t, (m.rank + m.ranks - root) % m.ranks, comm, nullptr);
    const ncclResult_t ended = ncclGroupEnd();
    return sent != ncclSuccess ? sent : received != ncclSuccess ? received : ended;
  }

  std::string check(const Member& m) const {
    const auto ranks = static_cast<std::size_t>(m.ranks);
    std::size_t elements = count;
    if (what == What::kAllGather || what == What::kAllToAll || what == What::kGather) elements *= ranks;
    if ((what == What::kReduce || what == What::kGather) && m.rank != root) elements = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      std::byte wanted[8];
      write(type, wanted, result(m, i));
      if (std::memcmp(wanted, receive + i * type.bytes, type.bytes) != 0)
        return fmt::format("{}: element {} is wrong", name(), i);
    }
    const bool is_clean = std::ranges::all_of(out.end() - 64, out.end(), [](std::byte b) { return b == kGuard; });
    return is_clean ? "" : name() + ": it wrote behind the buffer";
  }

 private:
  static constexpr std::byte kGuard{0xa5};

  bool is_rooted() const {
    return what == What::kBroadcast || what == What::kReduce || what == What::kGather || what == What::kScatter;
  }
  unsigned reduced(int ranks, std::size_t at) const {
    unsigned sum = 0, least = ~0U, most = 0;
    for (int r = 0; r < ranks; ++r) {
      const unsigned one = value(number, r, at);
      sum += one;
      least = std::min(least, one);
      most = std::max(most, one);
    }
    return op == ncclSum ? sum : op == ncclMin ? least : most;
  }
  unsigned result(const Member& m, std::size_t i) const {
    const std::size_t own = static_cast<std::size_t>(m.rank) * count;
    const auto block = static_cast<int>(count == 0 ? 0 : i / count);
    switch (what) {
      case What::kAllReduce:
      case What::kReduce: return reduced(m.ranks, i);
      case What::kReduceScatter: return reduced(m.ranks, own + i);
      case What::kAllGather:
      case What::kGather: return value(number, block, i % count);
      case What::kBroadcast: return value(number, root, i);
      case What::kAllToAll: return value(number, block, own + i % count);
      case What::kScatter: return value(number, root, own + i);
      default: return value(number, (m.rank + m.ranks - root) % m.ranks, i);
    }
  }
};

/// Alone, or up to four in a group. `what`: nullptr: anything.
std::string make_some(Random random, const What* what, const Member& m, ncclComm_t comm, int& number) {
  std::vector<Call> calls;
  const std::size_t count = below(random, 3) == 0 ? 1 + below(random, 4) : 1;
  for (std::size_t i = 0; i < count; ++i) calls.push_back(Call::make(random, number++, m.ranks));
  for (Call& call : calls) {
    if (what != nullptr) call.what = *what;
    call.prepare(m);
  }
  if (count > 1) CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
  for (const Call& call : calls) CREW_TRY(fine(call.submit(m, comm), call.name().c_str()));
  if (count > 1) CREW_TRY(fine(ncclGroupEnd(), calls.front().name().c_str()));
  for (const Call& call : calls) CREW_TRY(call.check(m));
  return "";
}

std::string make_calls(const Member& m, std::uint64_t seed, std::uint64_t longest_us, int calls) {
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
  tutti::test::be_lazy(seed * 64 + static_cast<std::uint64_t>(m.rank), longest_us);
  Random alike(seed);
  Random own(seed * 977 + static_cast<std::uint64_t>(m.rank));
  for (int number = 0; number < calls;) {
    // Calls that differ in little, each many times in a row, come upon what others before them have left; all others upon anything.
    const bool alike_ones = below(alike, 3) == 0;
    const std::uint64_t shape = alike();
    for (std::size_t row = alike_ones ? 6 : 1; row != 0; --row) {
      const auto what = static_cast<What>(below(alike, kWhats));
      for (std::size_t times = alike_ones ? 8 + 8 * below(alike, 2) : 1; times != 0; --times) {
        if (below(own, 40) == 0) usleep(static_cast<useconds_t>(below(own, longest_us)));
        CREW_TRY(make_some(Random(shape), alike_ones ? &what : nullptr, m, comm, number));
      }
    }
  }
  tutti::test::be_lazy(0, 0);
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

}  // namespace

TEST_CASE("calls of all kinds over hosts whose network is lazy", "[hosts]") {
  struct Hosts {
    const char* ranks;
    int all;
  };
  constexpr Hosts kHosts[] = {{"1", 2}, {"1", 3}, {"1", 4}, {"1", 5}, {"2", 4}, {"2", 6}, {"3,1,2", 6}, {"1,2", 3}};
  const std::size_t first = number_from("SEED", 1);
  for (std::size_t round = 0; round < number_from("ROUNDS", 1); ++round) {
    for (const Hosts& hosts : kHosts) {
      const std::uint64_t seed = first + round;
      constexpr std::uint64_t kLongestUs[] = {50, 200, 1000};
      const std::uint64_t longest_us = kLongestUs[(seed + static_cast<std::size_t>(hosts.all)) % 3];
      CAPTURE(seed, hosts.ranks, hosts.all, longest_us);
      setenv("TEST_RANKS_PER_HOST", hosts.ranks, 1);
      crew::check(crew::run(
          hosts.all, [&](const Member& m) { return make_calls(m, seed, longest_us, 400); }, 60));
      unsetenv("TEST_RANKS_PER_HOST");
    }
  }
}

TEST_CASE("a connection that ends while its communicator is made is told of at once", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  setenv("TUTTI_TIMEOUT_S", "30", 1);
  crew::check(crew::run(
      3,
      [](const Member& m) -> std::string {
        if (m.rank == 1) tutti::test::break_at(40);
        ncclComm_t comm = nullptr;
        const ncclResult_t made = ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank);
        const std::string reason = ncclGetLastError(nullptr);
        if (made != ncclRemoteError) return "ncclCommInitRank returned " + std::to_string(made) + ": " + reason;
        return reason.find("the connection has ended") != std::string::npos ? "" : reason;
      },
      40));
  unsetenv("TUTTI_TIMEOUT_S");
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("what is late of calls that nobody waited for takes no later call's place", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "2", 1);
  setenv("TUTTI_TIMEOUT_S", "20", 1);  // of a line that is lost nothing is heard
  for (std::size_t round = 0; round < number_from("ROUNDS", 1); ++round) {
    const std::uint64_t seed = number_from("SEED", 1) + round;
    CAPTURE(seed);
    crew::check(crew::run(
        4,
        [&](const Member& m) -> std::string {
          ncclComm_t comm = nullptr;
          CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
          tutti::test::be_lazy(seed * 64 + static_cast<std::uint64_t>(m.rank), 300);
          // Lines have the same places again 16 calls later, their signatures 32: broadcasts of rank 0's in two such calls, of which most of what is
          // late nobody needs, then a sum.
          for (int number = 0; number < 1600; ++number) {
            const bool is_broadcast = number % 16 == 0 && number / 16 % 3 != 2;
            Call call;
            call.number = number;
            call.what = is_broadcast ? What::kBroadcast : What::kAllReduce;
            call.count = 4096 + static_cast<std::size_t>(number) % 3 * 2048;
            call.prepare(m);
            CREW_TRY(fine(call.submit(m, comm), call.name().c_str()));
            CREW_TRY(call.check(m));
          }
          tutti::test::be_lazy(0, 0);
          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
        },
        60));
  }
  unsetenv("TUTTI_TIMEOUT_S");
  unsetenv("TEST_RANKS_PER_HOST");
}
