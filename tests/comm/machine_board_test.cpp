// The board on which ranks tell where they sit and what they see: what is told arrives, and what others wrote wrongly does no harm.
#include "comm/machine_board.h"
#include "comm/machine_view.h"
#include "comm/own_seat.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace tutti;
using comm::MachineBoard;
using comm::MachineView;

namespace {

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

/// Memory as the control segment gives it.
class Board {
 public:
  explicit Board(int ranks)
      : bytes_((MachineBoard::bytes_for(ranks) + 63) / 64 * 64),
        memory_(static_cast<std::byte*>(std::aligned_alloc(64, bytes_))),
        board(memory_.get(), ranks) {
    std::memset(memory_.get(), 0, bytes_);
  }
  std::byte* begin() { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;

 public:
  MachineBoard board;
};

/// As the bridge does: to the same place.
void carry(Board& from, std::span<const std::byte> part, Board& to) {
  std::memcpy(to.begin() + (part.data() - from.begin()), part.data(), part.size());
}

planner::Seat seat_on(int numa, std::vector<int> processors) {
  planner::Seat seat;
  seat.numa = numa;
  seat.package = 0;
  seat.cache = 4;
  seat.quota_percent = 250;
  seat.processors = std::move(processors);
  return seat;
}

}  // namespace

TEST_CASE("seats and manners arrive as they were told", "[board]") {
  Board shared(3);
  shared.board.sit(1, seat_on(2, {0, 1, 2, 9}), {77, true, false});
  CHECK(shared.board.seat(1) == seat_on(2, {0, 1, 2, 9}));
  CHECK(shared.board.manners(1).outlook == 77);
  CHECK(shared.board.manners(1).wants_machine);
  CHECK(!shared.board.manners(1).has_file);
  CHECK(!shared.board.manners(0).wants_machine);
}

TEST_CASE("ranks of one kernel share its processors, on however many hosts they take themselves to be", "[board]") {
  using Groups = std::vector<std::vector<int>>;
  CHECK(comm::ranks_by_kernel({"a", "b", "a", "c"}, {7, 7, 7, 8}) == Groups{{0, 1, 2}, {3}});
  CHECK(comm::ranks_by_kernel({"a", "b", "a", "c"}, {0, 0, 0, 0}) == Groups{{0, 2}, {1}, {3}});
  CHECK(comm::ranks_by_kernel({"a", "b", "b"}, {7, 0, 0}) == Groups{{0}, {1, 2}});
  CHECK(comm::kernel_id("") != 0);
  CHECK(comm::kernel_id("") == comm::kernel_id(""));
  CHECK(comm::kernel_id("/nowhere") == 0);
}

TEST_CASE("a list of processors that is too long is not told, and the rest is", "[board]") {
  Board shared(2);
  std::vector<int> odd;
  for (int processor = 1; processor < 400; processor += 2) odd.push_back(processor);
  shared.board.sit(0, seat_on(1, odd), {});
  CHECK(shared.board.seat(0).processors.empty());
  CHECK(shared.board.seat(0).numa == 1);
}

TEST_CASE("looks and the merged graph have room for two megabytes together, and no more", "[board]") {
  Board shared(2);
  REQUIRE(shared.board.put_look(0, "graph of 0").ok());
  REQUIRE(shared.board.put_look(1, std::string(MachineBoard::kTextBytes / 2, 'x')).ok());
  CHECK(shared.board.look(0).value() == "graph of 0");
  CHECK(shared.board.look(1).value().size() == MachineBoard::kTextBytes / 2);
  const Status full = shared.board.put_look(0, std::string(MachineBoard::kTextBytes / 2, 'y'));
  REQUIRE(!full.ok());
  CHECK_THAT(full.error().message, Catch::Contains("no room"));
  CHECK(shared.board.look(0).value() == "graph of 0");
  // A merged graph that finds no room is not there, and nobody waits for it.
  REQUIRE(shared.board.claim());
  shared.board.publish(std::string(MachineBoard::kTextBytes / 2, 'z'));
  CHECK(shared.board.merging() == MachineBoard::Merging::kNobody);
}

TEST_CASE("over hosts each rank that looks has a place of its own, and what it tells fits on the others' boards",
          "[board]") {
  constexpr int kRanks = 4;
  Board here(kRanks), there(kRanks);
  const comm::Port port{"enp193s0f1np1", 200000, false};
  here.board.sit(1, seat_on(1, {4, 5}), {77, false, true, port, 5});
  there.board.sit(3, seat_on(0, {6}), {78, false, false, {"lo", 0, true}});
  const std::size_t half = MachineBoard::kTextBytes / 2;
  REQUIRE(here.board.put_look(1, std::string(half, 'a'), 0, 2).ok());
  REQUIRE(there.board.put_look(3, std::string(half, 'b'), 1, 2).ok());
  carry(here, here.board.told_of_seat(1), there);
  carry(there, there.board.told_of_seat(3), here);
  CHECK(there.board.seat(1) == seat_on(1, {4, 5}));
  CHECK(there.board.outcome(1) == comm::LookOutcome::kNone);
  for (const std::span<const std::byte> part : here.board.told_of_look(1)) {
    // Others read the seat by now.
    CHECK(part.data() >= here.board.told_of_seat(1).data() + here.board.told_of_seat(1).size());
    carry(here, part, there);
  }
  for (const std::span<const std::byte> part : there.board.told_of_look(3)) carry(there, part, here);
  for (Board* board : {&here, &there}) {
    CHECK(board->board.look(1).value() == std::string(half, 'a'));
    CHECK(board->board.look(3).value() == std::string(half, 'b'));
    CHECK(board->board.outcome(1) == comm::LookOutcome::kSeen);
    CHECK(board->board.outcome(0) == comm::LookOutcome::kNone);
    CHECK(board->board.seat(1) == seat_on(1, {4, 5}));
    CHECK(board->board.manners(1).port == port);
    CHECK(board->board.manners(1).kernel == 5);
    CHECK(board->board.manners(3).kernel == 0);
    CHECK(board->board.manners(3).port == comm::Port{"lo", 0, true});
  }
}

TEST_CASE("over hosts a look that is longer than its place is not told, and the others learn why", "[board]") {
  Board here(2), there(2);
  here.board.sit(0, seat_on(0, {0}), {});
  const Status put = here.board.put_look(0, std::string(MachineBoard::kTextBytes / 2 + 1, 'x'), 0, 2);
  REQUIRE(!put.ok());
  CHECK_THAT(put.error().message, Catch::Contains("1048577 bytes") && Catch::Contains("room for 1048576"));
  for (const std::span<const std::byte> part : here.board.told_of_look(0)) carry(here, part, there);
  CHECK(there.board.outcome(0) == comm::LookOutcome::kTooLarge);
  CHECK(there.board.look(0).value().empty());
  // However many look, each has room for the description of a large machine.
  Board many(256);
  CHECK(many.board.put_look(255, std::string(60 << 10, 'y'), 255, 256).ok());
}

TEST_CASE("one rank merges, and the others read what it made", "[board]") {
  Board shared(2);
  CHECK(shared.board.merging() == MachineBoard::Merging::kNobody);
  REQUIRE(shared.board.claim());
  CHECK(!shared.board.claim());
  shared.board.give_up();
  REQUIRE(shared.board.claim());
  shared.board.publish("tutti-topology 1\n");
  CHECK(shared.board.merging() == MachineBoard::Merging::kDone);
  CHECK(!shared.board.claim());
  CHECK(shared.board.merged().value() == "tutti-topology 1\n");
}

TEST_CASE("planned trees that one rank puts up are there for all, or nowhere", "[board]") {
  Board shared(2);
  REQUIRE(shared.board.trees().ok());
  CHECK(shared.board.trees().value().empty());
  const Status full = shared.board.put_trees(std::string(2 * MachineBoard::kTextBytes, 't'));
  REQUIRE(!full.ok());
  CHECK_THAT(full.error().message, Catch::Contains("no room"));
  CHECK(shared.board.trees().value().empty());
  REQUIRE(shared.board.put_trees("trees all_reduce ranks 2 lanes 1\n- 0\n").ok());
  CHECK(shared.board.trees().value() == "trees all_reduce ranks 2 lanes 1\n- 0\n");
}

TEST_CASE("whatever is written there, reading stays on the board", "[board]") {
  constexpr int kRanks = 4;
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    Board shared(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      shared.board.sit(rank, seat_on(0, {rank}), {});
      REQUIRE(shared.board.put_look(rank, "a look").ok());
    }
    // Everything but the text itself.
    const std::size_t words = (shared.bytes() - MachineBoard::kTextBytes) / sizeof(std::uint64_t);
    for (int hit = 0; hit < 20; ++hit) {
      const std::uint64_t value = round % 3 == 0 ? ~std::uint64_t{0} : random() >> (random() % 64);
      std::memcpy(shared.begin() + (random() % words) * sizeof(value), &value, sizeof(value));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      static_cast<void>(shared.board.seat(rank));
      const auto look = shared.board.look(rank);
      CHECK((!look.ok() || look.value().size() <= MachineBoard::kTextBytes));
    }
    const auto merged = shared.board.merged();
    const auto trees = shared.board.trees();
    if (trees.ok()) CHECK(trees.value().size() <= MachineBoard::kTextBytes);
    CHECK((!merged.ok() || merged.value().size() <= MachineBoard::kTextBytes));
    static_cast<void>(shared.board.put_look(0, "another"));
  }
}

TEST_CASE("a rank that waits for the graph stops when the communicator fails", "[board]") {
  Board shared(2);
  REQUIRE(shared.board.claim());  // by somebody who has died since
  MachineView view({.board = shared.board, .rank = 1, .hosts = {"h", "h"}, .given_up = [] { return true; }});
  const auto graph = view.graph();
  REQUIRE(!graph.ok());
  CHECK(graph.error().code == Code::kRemote);
}

TEST_CASE("seats are described for people", "[board]") {
  CHECK(comm::describe(seat_on(3, {0, 1})) == "NUMA node 3, processors 0-1, a quota of 2.50 processors");
  CHECK(comm::describe(planner::Seat{}) == "processors not known");
}
