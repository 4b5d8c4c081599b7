// The simulated memory against the litmus tests of the C++11 memory model: what each may show, and what it may not.
#include "sim/memory.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <set>
#include <utility>

using namespace tutti::sim;

namespace {

constexpr int kThreads = 4;

struct Litmus {
  explicit Litmus(std::uint64_t seed, bool report_races = true) {
    memory.reset(kThreads, {seed, 128, false, report_races});
    for (int w = 0; w < 4; ++w)
      words[w] = reinterpret_cast<std::uint64_t*>(memory.take(8, {AreaKind::kCounts, 0, w, 0}));
    bytes = memory.take(256, {AreaKind::kSlots, 0, 1, 0, 64});
  }
  std::uint64_t load(int thread, int word, bool acquire = true) {
    return memory.load(thread, {}, words[word], acquire).value;
  }
  void store(int thread, int word, std::uint64_t value, bool release = true) {
    memory.store(thread, {}, words[word], value, release);
  }
  void write(int thread, std::uint32_t value, std::size_t at = 0) {
    memory.write(thread, {}, bytes + at, &value, sizeof(value));
  }
  std::uint32_t read(int thread, std::size_t at = 0) {
    std::uint32_t value = 0;
    memory.read(thread, {}, bytes + at, sizeof(value), reinterpret_cast<std::byte*>(&value));
    return value;
  }
  bool raced() const { return memory.conflict().has_value(); }

  static Memory memory;  // large: one for all
  std::uint64_t* words[4];
  std::byte* bytes;
};
Memory Litmus::memory;

using Pair = std::pair<std::uint64_t, std::uint64_t>;

/// All results of 400 seeds.
template <class Run>
std::set<Pair> results(Run run) {
  std::set<Pair> seen;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Litmus l(seed);
    seen.insert(run(l));
  }
  return seen;
}

}  // namespace

TEST_CASE("a load may return any store that nothing has superseded", "[memory]") {
  const auto seen = results([](Litmus& l) -> Pair {
    l.store(0, 0, 1);
    l.store(0, 0, 2);
    return {l.load(1, 0), 0};
  });
  CHECK(seen == std::set<Pair>{{0, 0}, {1, 0}, {2, 0}});
}

TEST_CASE("message passing: what was stored before a release is seen after its acquire", "[memory]") {
  const auto run = [](bool release, bool acquire) {
    return results([=](Litmus& l) -> Pair {
      l.store(0, 0, 1, false);
      l.store(0, 1, 1, release);
      const std::uint64_t flag = l.load(1, 1, acquire);
      return {flag, l.load(1, 0, false)};
    });
  };
  const std::set<Pair> all = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  const std::set<Pair> right = {{0, 0}, {0, 1}, {1, 1}};
  CHECK(run(true, true) == right);
  CHECK(run(false, true) == all);
  CHECK(run(true, false) == all);
}

TEST_CASE("happens-before is transitive", "[memory]") {
  const auto seen = results([](Litmus& l) -> Pair {
    l.store(0, 0, 1, false);
    l.store(0, 1, 1);
    if (l.load(1, 1) == 1) l.store(1, 2, 1);
    if (l.load(2, 2) != 1) return {0, 0};
    return {1, l.load(2, 0, false)};
  });
  CHECK(seen == std::set<Pair>{{0, 0}, {1, 1}});
}

TEST_CASE("coherence: a thread never sees a word go back", "[memory]") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Litmus l(seed);
    l.store(0, 0, 1, false);
    l.store(0, 0, 2, false);
    const std::uint64_t first = l.load(1, 0, false);
    const std::uint64_t second = l.load(1, 0, false);
    REQUIRE(first <= second);
    // Its own store is the least that it may see.
    l.store(1, 0, 3, false);
    REQUIRE(l.load(1, 0, false) == 3);
    // What a thread read before a release binds who acquires.
    l.store(2, 1, l.load(2, 0, false));
    const std::uint64_t told = l.load(3, 1);
    REQUIRE(l.load(3, 0, false) >= told);
  }
}

TEST_CASE("store buffering and independent readers: what only stronger orders forbid is seen", "[memory]") {
  const auto buffering = results([](Litmus& l) -> Pair {
    l.store(0, 0, 1);
    l.store(1, 1, 1);
    return {l.load(0, 1), l.load(1, 0)};
  });
  CHECK(buffering.count({0, 0}) == 1);
  bool opposite = false;
  for (std::uint64_t seed = 0; seed < 4000 && !opposite; ++seed) {
    Litmus l(seed);
    l.store(0, 0, 1);
    l.store(1, 1, 1);
    opposite = l.load(2, 0) == 1 && l.load(2, 1) == 0 && l.load(3, 1) == 1 && l.load(3, 0) == 0;
  }
  CHECK(opposite);
}

TEST_CASE("a store is seen some day", "[memory]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Litmus l(seed);
    l.memory.reset(kThreads, {seed, 256, false, true});
    auto* const word = reinterpret_cast<std::uint64_t*>(l.memory.take(8, {AreaKind::kCounts, 0, 1, 0}));
    l.memory.store(0, {}, word, 1, true);
    int loads = 1;
    while (l.memory.load(1, {}, word, true).value == 0) ++loads;
    CHECK(loads <= 17);
  }
}

TEST_CASE("plain accesses that nothing orders are races, in each of the three ways", "[memory]") {
  const bool ordered = GENERATE(true, false);
  const auto pass = [&](Litmus& l) {
    l.store(0, 0, 1, ordered);
    while (l.load(1, 0) == 0) continue;
  };
  SECTION("write, then read") {
    Litmus l(1);
    l.write(0, 7);
    pass(l);
    if (ordered) CHECK(l.read(1) == 7);
    if (!ordered) l.read(1);
    CHECK(l.raced() != ordered);
  }
  SECTION("read, then write") {
    Litmus l(2);
    l.read(0);
    pass(l);
    l.write(1, 7);
    CHECK(l.raced() != ordered);
  }
  SECTION("write, then write") {
    Litmus l(3);
    l.write(0, 6);
    pass(l);
    l.write(1, 7);
    CHECK(l.raced() != ordered);
  }
  SECTION("neighbours are not in each other's way") {
    Litmus l(4);
    l.write(0, 6, 0);
    l.write(1, 7, 4);
    CHECK_FALSE(l.raced());
    CHECK(l.read(0) == 6);
  }
  SECTION("reads are not in each other's way, and all of them count") {
    Litmus l(5);
    l.read(2);
    l.read(0);
    CHECK_FALSE(l.raced());
    pass(l);
    l.write(1, 7);
    CHECK(l.raced());  // thread 2's read is unordered either way
  }
}

TEST_CASE("a race's report names both sides, and what would have ordered them", "[memory]") {
  Litmus l(1);
  l.write(0, 7, 64);
  l.store(0, 1, 5, false);
  while (l.load(1, 1) == 0) continue;
  l.read(1, 64);
  REQUIRE(l.raced());
  const Conflict& race = *l.memory.conflict();
  CHECK(race.now.thread == 1);
  CHECK(race.before.thread == 0);
  CHECK(describe(*race.area, race.begin, race.end) ==
        "slot 1 of the channel from rank 0 to rank 1, lane 0, bytes 0..3");
  CHECK(l.memory.missing(race) ==
        "rank 0 says so with tail from rank 0 to rank 1, lane 0 = 5, and rank 1 has seen that, "
        "but the store was no release");
}

TEST_CASE("with reports off a racing read returns the old value or the new one", "[memory]") {
  std::set<std::uint32_t> seen;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Litmus l(seed, false);
    l.write(0, 6);
    l.write(0, 7);
    seen.insert(l.read(1));
  }
  CHECK(seen == std::set<std::uint32_t>{6, 7});
}

TEST_CASE("memory that nobody has is not touched", "[memory]") {
  Litmus l(1);
  l.write(0, 7, 256);
  REQUIRE(l.raced());
  CHECK(l.memory.conflict()->kind == Conflict::Kind::kOutside);
  Litmus m(1);
  m.write(0, 7, 254);
  CHECK(m.raced());
}

TEST_CASE("plain and protocol accesses of the same bytes race as well", "[memory]") {
  Litmus l(1);
  auto* const word = reinterpret_cast<std::uint64_t*>(l.bytes);
  l.write(0, 1);
  l.memory.load(1, {}, word, true);
  CHECK(l.raced());
  Litmus m(1);
  m.memory.store(0, {}, reinterpret_cast<std::uint64_t*>(m.bytes), 9, true);
  std::uint64_t seen = 0;
  while (seen == 0) seen = m.memory.load(1, {}, reinterpret_cast<std::uint64_t*>(m.bytes), true).value;
  CHECK(m.read(1) == 9);
  CHECK_FALSE(m.raced());
  m.write(1, 8);
  CHECK(m.memory.load(1, {}, reinterpret_cast<std::uint64_t*>(m.bytes), true).value == 8);
}
