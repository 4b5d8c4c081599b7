// What ranks agree on, call by call: all the same, whatever they want and whenever they come.
#include "comm/device_agreement.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <random>
#include <thread>
#include <vector>

namespace tutti::comm {
namespace {

using namespace std::chrono_literals;

struct Words {
  std::vector<std::uint64_t> words;
  explicit Words(std::size_t ranks) : words(DeviceAgreement::bytes_for(ranks) / 8) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words)); }
};

const DeviceAgreement::GivesUp kNever = [] { return false; };

/// Whether a rank wants the call in place, the same for all who ask.
bool is_willing(std::uint32_t seed, int rank, int call) {
  std::seed_seq sequence{seed, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(call)};
  std::mt19937 random(sequence);
  return random() % 8 != 0;
}

}  // namespace

TEST_CASE("agreement: all ranks come to the same, whenever they come", "[agreement]") {
  const int ranks = GENERATE(1, 2, 3, 5, 16);
  const std::uint32_t seed = GENERATE(1u, 2u, 3u);
  const bool is_patient = GENERATE(true, false);
  constexpr int kCalls = 600;  // many times as many as there are words
  Words words(static_cast<std::size_t>(ranks));
  std::vector<std::vector<bool>> agreed(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      DeviceAgreement agreement(words.bytes(), ranks, rank);
      std::minstd_rand random(seed * 31 + static_cast<std::uint32_t>(rank));
      auto& own = agreed[static_cast<std::size_t>(rank)];
      for (int call = 0; call < kCalls; ++call) {
        if (random() % 64 == 0) std::this_thread::sleep_for(200us);
        const auto number = agreement.arrive(is_willing(seed, rank, call), false);
        if (random() % 64 == 0) std::this_thread::sleep_for(200us);
        const auto patience = is_patient ? std::chrono::nanoseconds(1h) : std::chrono::nanoseconds(random() % 20000);
        own.push_back(agreement.settle(number, patience, kNever));
      }
    });
  }
  threads.clear();
  int in_place = 0;
  for (int call = 0; call < kCalls; ++call) {
    bool all_willing = true;
    for (int rank = 0; rank < ranks; ++rank) all_willing &= is_willing(seed, rank, call);
    const bool first = agreed[0][static_cast<std::size_t>(call)];
    for (const auto& one : agreed) REQUIRE(one[static_cast<std::size_t>(call)] == first);
    if (is_patient) REQUIRE(first == all_willing);
    if (first) REQUIRE(all_willing);
    in_place += first;
  }
  if (is_patient) CHECK((in_place > 0 && in_place < kCalls));
}

TEST_CASE("agreement: whoever waits too long decides for all", "[agreement]") {
  Words words(2);
  DeviceAgreement first(words.bytes(), 2, 0);
  DeviceAgreement second(words.bytes(), 2, 1);
  CHECK_FALSE(first.settle(first.arrive(true, false), 1ms, kNever));
  CHECK_FALSE(second.settle(second.arrive(true, false), 1h, kNever));
  // Several calls are arrived at before the first is settled.
  const auto a = first.arrive(true, false);
  const auto b = first.arrive(false, false);
  const auto c = first.arrive(true, false);
  CHECK(second.settle(second.arrive(true, false), 0ns, kNever));
  CHECK_FALSE(second.settle(second.arrive(true, false), 1h, kNever));
  CHECK(second.settle(second.arrive(true, false), 0ns, kNever));
  CHECK(first.settle(a, 0ns, kNever));
  CHECK_FALSE(first.settle(b, 0ns, kNever));
  CHECK(first.settle(c, 0ns, kNever));
}

TEST_CASE("agreement: a rank that never comes holds nobody", "[agreement]") {
  Words words(2);
  DeviceAgreement agreement(words.bytes(), 2, 0);
  const auto give_up_at = std::chrono::steady_clock::now() + 50ms;
  const DeviceAgreement::GivesUp later = [&] { return std::chrono::steady_clock::now() >= give_up_at; };
  CHECK_FALSE(agreement.settle(agreement.arrive(true, false), 1h, later));
  CHECK(later());
  // So far ahead that the words are others' still.
  for (std::uint64_t i = 1; i < DeviceAgreement::kDepth; ++i) {
    const auto place = agreement.arrive(true, false);
    CHECK(place.has_room);
    CHECK_FALSE(agreement.settle(place, 0ns, kNever));
  }
  for (int i = 0; i < 200; ++i) {
    const auto place = agreement.arrive(true, false);
    CHECK_FALSE(place.has_room);
    CHECK_FALSE(agreement.settle(place, 1h, kNever));
  }
  // Once it comes, it finds all of them refused, and then there is room again.
  DeviceAgreement other(words.bytes(), 2, 1);
  for (std::uint64_t i = 0; i < DeviceAgreement::kDepth + 200; ++i) {
    CHECK_FALSE(other.settle(other.arrive(true, false), 1h, kNever));
  }
  const auto place = agreement.arrive(true, false);
  CHECK(other.settle(other.arrive(true, false), 0ns, kNever));
  CHECK(agreement.settle(place, 0ns, kNever));
}

TEST_CASE("agreement: calls that all have captured are agreed on, and none behind one that only some have",
          "[agreement]") {
  Words words(2);
  DeviceAgreement first(words.bytes(), 2, 0);
  DeviceAgreement second(words.bytes(), 2, 1);
  const auto both = [&](bool first_captures, bool second_captures) {
    const auto place = first.arrive(true, first_captures);
    const bool seconds = second.settle(second.arrive(true, second_captures), 1h, kNever);
    CHECK(first.settle(place, 1h, kNever) == seconds);
    return seconds;
  };
  CHECK(both(true, true));
  CHECK(both(false, false));
  // Who has captured one does not know of the other yet.
  const auto a = first.arrive(true, true);
  CHECK_FALSE(first.settle(a, 0ns, kNever));
  const auto b = first.arrive(true, false);
  CHECK_FALSE(second.settle(second.arrive(true, true), 1h, kNever));
  CHECK_FALSE(second.settle(second.arrive(true, false), 1h, kNever));
  CHECK_FALSE(first.settle(b, 0ns, kNever));
  CHECK(both(false, false));
  // In one group.
  const auto c = first.arrive(true, true);
  const auto d = first.arrive(true, true);
  const auto e = first.arrive(true, false);
  CHECK(second.settle(second.arrive(true, true), 0ns, kNever) == first.settle(c, 0ns, kNever));
  CHECK(second.settle(second.arrive(true, true), 0ns, kNever));
  CHECK(first.settle(d, 0ns, kNever));
  CHECK_FALSE(second.settle(second.arrive(true, false), 1h, kNever));
  CHECK_FALSE(first.settle(e, 0ns, kNever));
  CHECK(both(false, false));
  CHECK_FALSE(both(true, false));
  const bool captures = GENERATE(false, true);
  for (std::uint64_t i = 0; i < 3 * DeviceAgreement::kDepth; ++i) {
    CHECK_FALSE(both(captures, captures));
    CHECK_FALSE(both(false, captures));
  }
  CHECK_FALSE(both(false, false));
}

TEST_CASE("agreement: ranks arrive at more calls than there are words before they settle them", "[agreement]") {
  const int ranks = GENERATE(2, 3);
  const std::uint32_t seed = GENERATE(1u, 2u);
  Words words(static_cast<std::size_t>(ranks));
  std::vector<std::vector<bool>> agreed(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      DeviceAgreement agreement(words.bytes(), ranks, rank);
      std::minstd_rand random(seed * 31);  // groups are the same on all ranks
      for (int group = 0; group < 60; ++group) {
        std::vector<DeviceAgreement::Place> places(1 + random() % 150);
        for (auto& place : places) place = agreement.arrive(true, false);
        for (const auto& place : places) {
          agreed[static_cast<std::size_t>(rank)].push_back(agreement.settle(place, 1h, kNever));
        }
      }
    });
  }
  threads.clear();
  for (const auto& one : agreed) CHECK(one == agreed[0]);
  CHECK(std::ranges::count(agreed[0], true) > 0);
  CHECK(std::ranges::count(agreed[0], false) > 0);
}

}  // namespace tutti::comm
