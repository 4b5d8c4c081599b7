// Seats: processor lists, groups of ranks, advice on pinning.
#include "planner/seats.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace tutti::planner;

namespace {

Seat seat(int package, int numa, int cache, std::vector<int> processors = {}) {
  Seat s;
  s.package = package;
  s.numa = numa;
  s.cache = cache;
  s.processors = std::move(processors);
  return s;
}

bool any_has(const std::vector<std::string>& advice, const std::string& part) {
  return std::ranges::any_of(advice, [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("lists of processors are read and written as Linux does", "[seats]") {
  CHECK(from_list("0-3,8\n") == std::vector{0, 1, 2, 3, 8});
  CHECK(from_list("5") == std::vector{5});
  CHECK(from_list("8,0-1,1") == std::vector{0, 1, 8});
  CHECK(to_list({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
  for (const char* wrong : {"", "a", "1-", "3-1", "1,,2", "1;2", "-1", "0-99999999", "0x3", "1 2"}) {
    INFO(wrong);
    CHECK(from_list(wrong).empty());
  }
  for (unsigned set = 1; set < 512; ++set) {
    std::vector<int> processors;
    for (int bit = 0; bit < 9; ++bit)
      if ((set >> bit & 1) != 0) processors.push_back(bit);
    CHECK(from_list(to_list(processors)) == processors);
  }
}

TEST_CASE("ranks are grouped by the outermost level that parts them", "[seats]") {
  // Two sockets of two caches each, two ranks in each cache.
  std::vector<Seat> seats;
  for (int rank = 0; rank < 8; ++rank) seats.push_back(seat(rank / 4 * 4, rank / 4, rank / 2 * 2));
  SeatGroups groups = groups_of(seats);
  CHECK(groups.level == SeatLevel::kPackage);
  CHECK(groups.count == 2);
  CHECK(groups.of_rank == std::vector{0, 0, 0, 0, 1, 1, 1, 1});
  // On one socket: its caches.
  seats.resize(4);
  groups = groups_of(seats);
  CHECK(groups.level == SeatLevel::kCache);
  CHECK(groups.of_rank == std::vector{0, 0, 1, 1});
  // One rank for each cache: nobody has a neighbour.
  CHECK(groups_of({seats[0], seats[2]}).level == SeatLevel::kNone);
  // All in one cache.
  CHECK(groups_of({seats[0], seats[1]}).level == SeatLevel::kNone);
}

TEST_CASE("groups are numbered by their lowest ranks, whatever the ranks' order and sizes", "[seats]") {
  const SeatGroups groups = groups_of({seat(8, 1, 8), seat(0, 0, 0), seat(0, 0, 0), seat(8, 1, 8), seat(0, 0, 0)});
  CHECK(groups.of_rank == std::vector{0, 1, 1, 0, 1});
  CHECK(groups.count == 2);
}

TEST_CASE("a level that some rank's seat does not tell is passed over", "[seats]") {
  const SeatGroups groups =
      groups_of({seat(0, kUnknownSeat, 0), seat(0, 0, 0), seat(0, 1, 4), seat(kUnknownSeat, 1, 4)});
  CHECK(groups.level == SeatLevel::kCache);
  CHECK(groups_of({seat(kUnknownSeat, kUnknownSeat, kUnknownSeat), seat(0, 0, 0), seat(4, 1, 4)}).level ==
        SeatLevel::kNone);
  CHECK(groups_of({}).level == SeatLevel::kNone);
}

TEST_CASE("advice names what stands in the way, and is silent where nothing does", "[seats]") {
  CHECK(pinning_advice({seat(0, 0, 0, {0}), seat(0, 0, 0, {1}), seat(0, 0, 0, {2, 3})}).empty());
  CHECK(pinning_advice({seat(0, 0, 0, {0, 1})}).empty());

  auto advice = pinning_advice({seat(0, 0, 0, {3}), seat(0, 0, 0, {1}), seat(0, 0, 0, {3}), seat(0, 0, 0, {5, 6})});
  CHECK(any_has(advice, "ranks 0 2 are all bound to processor 3"));
  CHECK(advice.size() == 1);

  advice = pinning_advice({seat(0, 0, 0, {0, 1}), seat(0, 0, 0, {0, 1}), seat(0, 0, 0, {0, 1})});
  CHECK(any_has(advice, "3 ranks have 2 processors between them"));
  CHECK(advice.size() == 1);

  advice = pinning_advice({seat(0, 0, 0, {0, 1, 2, 3}), seat(0, 0, 0, {2, 3, 4}), seat(0, 0, 0, {7})});
  CHECK(any_has(advice, "ranks 0-1 may run on the same processors"));
  CHECK(advice.size() == 1);

  advice = pinning_advice({seat(0, 0, 0, {0}), seat(kUnknownSeat, kUnknownSeat, kUnknownSeat, {1, 8})});
  CHECK(any_has(advice, "ranks 1 may run on several NUMA nodes"));

  std::vector<Seat> limited{seat(0, 0, 0, {0}), seat(0, 0, 0, {1})};
  for (Seat& s : limited) s.quota_percent = 150;
  advice = pinning_advice(limited);
  CHECK(any_has(advice, "1.50 processors' time"));
  for (Seat& s : limited) s.quota_percent = 200;
  CHECK(pinning_advice(limited).empty());
}

TEST_CASE("ranks per processor are counted where they are the most", "[seats]") {
  const auto on = [](std::vector<std::vector<int>> processors) {
    std::vector<Seat> seats;
    for (std::vector<int>& list : processors) seats.push_back(seat(0, 0, 0, std::move(list)));
    return crowding_of(seats);
  };
  CHECK(on({{0, 1, 2, 3}, {0, 1, 2, 3}}) == 0.5);
  CHECK(on({{0}, {1}, {2}, {3}}) == 1);  // bound, each to its own
  CHECK(on({{0}, {0}, {2}, {3}}) == 2);
  CHECK(on({{0, 1}, {0}, {1}, {2, 3, 4, 5, 6, 7}}) == 1.5);
  CHECK(on({{0, 1}, {0, 1}, {0, 1}}) == 1.5);
  CHECK(on({{0}, {}}) == 0);
  CHECK(on({}) == 0);
}

TEST_CASE("the least crowded rank is alone on its processor, by its binding or by its turn", "[seats]") {
  const auto on = [](std::vector<std::vector<int>> processors) {
    std::vector<Seat> seats;
    for (std::vector<int>& list : processors) seats.push_back(seat(0, 0, 0, std::move(list)));
    return least_crowded(seats);
  };
  CHECK(on({{0}, {1}, {0}}) == 1);
  CHECK(on({{0}, {0}, {1}}) == 2);
  CHECK(on({{0, 1}, {0, 1}, {0, 1}}) == 1);
  CHECK(on({{0, 1}, {0, 1}, {0, 1}, {0, 1}}) == 0);
  CHECK(on({{0, 1}, {0, 1}, {}}) == 0);
}
