// The same bits on every rank, whatever the algorithm; in reproducible mode whatever the layout and the count too.
#include "crew.h"

#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;

constexpr int kRanks = 4;
constexpr std::size_t kMost = 20011;

/// Sets variables for the ranks that are forked meanwhile.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<std::string, std::string>> variables) : variables_(variables) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> variables_;
};

/// Ordinary numbers of all sizes, and now and then a special one.
float value(int rank, std::size_t i) {
  std::uint64_t state = i * 64 + static_cast<std::uint64_t>(rank) + 1;
  const auto random = [&state] {
    return static_cast<std::uint32_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 33);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float specials[] = {-0.0f,  0.0f,    kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
                            1e-42f, -3e-45f, 3e38f};
  // Mostly one special number among four ranks, and in every eighth place one at each.
  if (random() % 16 == 0 || i % 8 == 7) return specials[random() % 8];
  return std::ldexp(static_cast<float>(random() % 2000003) - 1000001.0f, static_cast<int>(random() % 30) - 15);
}

/// A NaN equals any NaN.
std::uint32_t bits_of(float number) { return std::isnan(number) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(number); }

/// All-reduces the first `count` values over `processes` times `each` ranks; the bits, once all ranks have the same.
std::vector<std::uint32_t> reduce(int processes, int each, std::size_t count, ncclRedOp_t op, bool in_place) {
  const std::size_t bytes = kRanks * count * sizeof(std::uint32_t);
  auto* results =
      static_cast<std::uint32_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto rank_main = [&](const Member& m, int thread) -> std::string {
    const int rank = m.rank * each + thread;
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, kRanks, m.ids[0], rank), "ncclCommInitRank"));
    std::vector<float> in(count), out(count, -7);
    for (std::size_t i = 0; i < count; ++i) in[i] = value(rank, i);
    float* const to = in_place ? in.data() : out.data();
    CREW_TRY(fine(ncclAllReduce(in.data(), to, count, ncclFloat, op, comm, nullptr), "ncclAllReduce"));
    for (std::size_t i = 0; i < count; ++i) results[static_cast<std::size_t>(rank) * count + i] = bits_of(to[i]);
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  };
  crew::check(crew::run(processes, [&](const Member& m) -> std::string {
    std::vector<std::string> wrong(static_cast<std::size_t>(each));
    std::vector<std::thread> threads;
    for (int t = 0; t < each; ++t)
      threads.emplace_back([&, t] { wrong[static_cast<std::size_t>(t)] = rank_main(m, t); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : wrong) CREW_TRY(text);
    return "";
  }));
  const std::vector<std::uint32_t> first(results, results + count);
  for (int r = 1; r < kRanks; ++r) {
    INFO("rank " << r << " against rank 0");
    CHECK(std::memcmp(first.data(), results + static_cast<std::size_t>(r) * count, count * 4) == 0);
  }
  munmap(results, bytes);
  return first;
}

/// The left fold in rank order.
std::vector<std::uint32_t> folded(std::size_t count) {
  std::vector<std::uint32_t> bits;
  for (std::size_t i = 0; i < count; ++i) {
    float total = value(0, i);
    for (int r = 1; r < kRanks; ++r) total += value(r, i);
    bits.push_back(bits_of(total));
  }
  return bits;
}

constexpr std::size_t kCounts[] = {3, 14, 1001, kMost};

}  // namespace

TEST_CASE("every algorithm gives every rank the same bits", "[bits]") {
  for (const char* algorithm : {"ring", "tree", "oneshot", "twoshot", "halving_doubling", "grouped", "^ring,tree"}) {
    const Environment environment{{"NCCL_ALGO", algorithm}};
    for (std::size_t count : kCounts) {
      for (ncclRedOp_t op : {ncclSum, ncclMax, ncclMin, ncclProd, ncclAvg}) {
        INFO(algorithm << " count " << count << " op " << op);
        reduce(count % 2 ? 4 : 2, count % 2 ? 1 : 2, count, op, op == ncclMin);
      }
    }
  }
}

TEST_CASE("reproducible sums are the fold in rank order, everywhere", "[bits]") {
  const auto wanted = folded(kMost);
  for (const char* algorithm : {"", "oneshot", "twoshot"}) {
    for (const char* copies : {"0", "1"}) {
      const Environment environment{
          {"NCCL_ALGO", algorithm}, {"TUTTI_REPRODUCIBLE", "1"}, {"TUTTI_SINGLE_COPY", copies}};
      for (const auto& [processes, each] : {std::pair(4, 1), std::pair(2, 2), std::pair(1, 4)}) {
        for (std::size_t count : kCounts) {
          INFO(algorithm << " " << processes << " processes, count " << count << " single copy " << copies);
          const auto got = reduce(processes, each, count, ncclSum, count % 2 == 0);
          CHECK(std::memcmp(got.data(), wanted.data(), count * 4) == 0);
        }
      }
    }
  }
}

TEST_CASE("an algorithm that contradicts reproducible mode is refused", "[bits]") {
  const Environment environment{{"NCCL_ALGO", "ring"}, {"TUTTI_REPRODUCIBLE", "1"}};
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclCommInitRank(&comm, 2, m.ids[0], m.rank);
    for (std::size_t count : {std::size_t{3}, std::size_t{1000}}) {
      std::vector<float> data(count);
      if (comm) result = ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, nullptr);
      CREW_TRY(crew::refused(result, ncclInvalidUsage, {"ring", "reproducible"}));
    }
    if (comm) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return "";
  }));
}

TEST_CASE("NCCL_ALGO that makes no sense is refused with the reason", "[bits]") {
  for (const auto& [text, part] :
       {std::pair("rnig", "rnig"), std::pair("allreduce:spiral", "spiral"), std::pair("nothing:ring", "nothing"),
        std::pair("^", "\"\""), std::pair("ring,,tree", "\"\""), std::pair("allreduce:", "\"\"")}) {
    const Environment environment{{"NCCL_ALGO", text}};
    INFO(text);
    crew::check(crew::run(3, [part = std::string(part)](const Member& m) -> std::string {
      const auto before = crew::Belongings::count();
      ncclComm_t comm = nullptr;
      CREW_TRY(crew::refused(ncclCommInitRank(&comm, 3, m.ids[0], m.rank), ncclInvalidUsage, {"NCCL_ALGO", part}));
      return comm ? "a communicator was made" : crew::left_behind(before);
    }));
  }
}
