// Ordinary stores or past the caches: what changes the choice, how often it is looked at, and that bytes are whole meanwhile.
#include "executor/store_choice.h"
#include "executor/host_machine.h"

#include <catch2/catch.hpp>

#include <vector>

using namespace tutti;
using executor::StoreChoice;

namespace {

constexpr std::size_t kBytes = 8 << 10;
constexpr double kNearGbps = 4;

/// Stores in a world where an ordinary one has so much; the number of those that were timed.
int store(StoreChoice& choice, int stores, double gbps) {
  int timed = 0;
  for (int i = 0; i < stores; ++i) {
    const bool said = choice.times_next();
    const bool times = choice.times();
    CHECK(said == times);
    if (!times) continue;
    ++timed;
    choice.add(kBytes, std::chrono::nanoseconds(static_cast<int>(kBytes / gbps)));
  }
  return timed;
}

}  // namespace

TEST_CASE("stores that take long three times in a row go past the caches, and come back", "[stores]") {
  StoreChoice choice;
  choice.begin({false, kNearGbps});
  CHECK(store(choice, 4 + 8 + 16, 10) == 3);
  CHECK(store(choice, 1600, 10) == 100);
  CHECK_FALSE(choice.past_caches());
  CHECK(store(choice, 16 + 1, 2) == 2);
  CHECK_FALSE(choice.past_caches());  // the third has yet to come
  CHECK(store(choice, 1, 2) == 1);
  CHECK(choice.past_caches());
  CHECK(store(choice, 4 + 8 + 16 + 32 + 64, 2) == 5);
  CHECK(store(choice, 6400, 2) == 100);
  CHECK(choice.past_caches());
  CHECK(store(choice, 64 + 2, 10) == 3);
  CHECK_FALSE(choice.past_caches());
}

TEST_CASE("what others do to one or two stores changes nothing", "[stores]") {
  StoreChoice choice;
  choice.begin({false, kNearGbps});
  store(choice, 4 + 8 + 16, 10);
  for (int times = 0; times < 10; ++times) {
    store(choice, 16 + 1, 0.5);
    store(choice, 1, 10);
    CHECK_FALSE(choice.past_caches());
  }
  choice.begin({true, kNearGbps});
  store(choice, 4 + 8 + 16 + 32 + 64, 0.5);
  for (int times = 0; times < 10; ++times) {
    store(choice, 64 + 1, 10);
    store(choice, 1, 0.5);
    CHECK(choice.past_caches());
  }
}

TEST_CASE("a store that took no time says nothing", "[stores]") {
  StoreChoice choice;
  choice.begin({false, 100});
  for (int stores = 0; stores < 64; ++stores) {
    if (choice.times()) choice.add(kBytes, StoreChoice::Clock::duration::zero());
  }
  CHECK_FALSE(choice.past_caches());
  CHECK(choice.times_next());
}

TEST_CASE("without a rate to compare with the choice stays as it was ordered", "[stores]") {
  for (const bool past : {false, true}) {
    StoreChoice choice;
    choice.begin({past, 0});
    CHECK(store(choice, 1000, past ? 100 : 0.01) == 0);
    CHECK(choice.past_caches() == past);
  }
}

TEST_CASE("a machine changes its way by itself", "[stores]") {
  constexpr std::uint64_t kGoOn = 0;
  executor::HostMachine machine{&kGoOn, nullptr};
  std::vector<std::byte> from(kBytes), to(kBytes);
  std::byte next{1};
  const auto check_stores = [&](int stores) {
    for (int i = 0; i < stores; ++i, next = static_cast<std::byte>(static_cast<int>(next) + 1)) {
      std::ranges::fill(from, next);
      i % 2 == 0 ? machine.store_bytes(to.data(), from.data(), kBytes)
                 : machine.store_ahead(to.data(), from.data(), kBytes);
      REQUIRE(to == from);
    }
  };
  // Six stores do, but for those that the clock has not seen.
  const auto changes_to = [&](bool past_caches) {
    check_stores(5);
    for (int more = 0; more < 20 && machine.stores_past_caches() != past_caches; ++more) check_stores(1);
    return machine.stores_past_caches() == past_caches;
  };
  machine.set_stores({false, 1e9});  // nothing is as fast as that
  CHECK(changes_to(true));
  machine.set_stores({true, 1e-9});  // everything is
  CHECK(changes_to(false));
}
