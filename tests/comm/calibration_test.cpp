#include "comm/calibration.h"
#include "comm/way_choice.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace tutti::comm;
namespace planner = tutti::planner;
using tutti::planner::MeasuredCosts;

namespace {

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// Two threads stand for the processes: a process may copy from itself.
struct Meeting {
  CalibrationBoard board;
  std::vector<std::byte> slots = std::vector<std::byte>(kCalibrationBytes);
  std::atomic<bool> given_up = false;

  CalibrationArgs args() {
    return {.board = board, .slots = slots.data(), .bytes = slots.size(), .partner = getpid(), .given_up = [this] {
              return given_up.load();
            }};
  }
};

}  // namespace

TEST_CASE("two ranks find out what bytes cost", "[calibration]") {
  Meeting meeting;
  std::thread partner([&] { help_calibrate(meeting.args()); });
  const MeasuredCosts costs = calibrate(meeting.args());
  partner.join();
  if (costs.slot_gbps == 0) {
    WARN("not measured: the machine is busy, or system calls may not copy");
    return;
  }
  CHECK(costs.slot_gbps > 0.01);
  CHECK(costs.slot_gbps < 10000);
  CHECK(costs.call_us > 0.01);
  CHECK(costs.call_gbps > 0.01);
  // Slots hold what the partner wrote last.
  CHECK(meeting.slots.front() == meeting.slots.back());
  CHECK(meeting.slots.front() != std::byte{0});
  CHECK(meeting.board.write_us > 0);
  CHECK(meeting.board.streamed_write_us > 0);
  CHECK(costs.streamed_gbps > 0.01);
  CHECK(costs.streamed_gbps < 10000);
}

TEST_CASE("where system calls may not copy, slots are measured all the same", "[calibration]") {
  Meeting meeting;
  std::thread partner([&] { help_calibrate(meeting.args()); });
  CalibrationArgs args = meeting.args();
  args.partner = 0;
  const MeasuredCosts costs = calibrate(args);
  partner.join();
  if (costs.slot_gbps == 0) {
    WARN("not measured: the machine is busy");
    return;
  }
  CHECK(costs.streamed_gbps > 0);
  CHECK(costs.call_us == 0);
  CHECK(costs.call_gbps == 0);
}

TEST_CASE("a partner that does not come, or leaves, costs little time and nothing is measured", "[calibration]") {
  Meeting alone;
  auto start = std::chrono::steady_clock::now();
  CHECK(calibrate(alone.args()).slot_gbps == 0);
  CHECK(ms_since(start) >= kCalibrationMsMax);
  start = std::chrono::steady_clock::now();
  help_calibrate(alone.args());
  CHECK(ms_since(start) >= kCalibrationMsMax);

  Meeting failed;
  failed.given_up = true;
  // The best of a few: on a busy machine a thread may stand still for as long.
  double shortest_ms = kCalibrationMsMax;
  for (int i = 0; i < 10; ++i) {
    start = std::chrono::steady_clock::now();
    CHECK(calibrate(failed.args()).slot_gbps == 0);
    shortest_ms = std::min(shortest_ms, ms_since(start));
  }
  CHECK(shortest_ms < kCalibrationMsMax);
}

TEST_CASE("system calls that fail leave nothing measured", "[calibration]") {
  Meeting meeting;
  std::thread partner([&] { help_calibrate(meeting.args()); });
  CalibrationArgs args = meeting.args();
  args.partner = -1;
  CHECK(calibrate(args).slot_gbps == 0);
  partner.join();
}

TEST_CASE("costs are remembered for the process", "[calibration]") {
  const MeasuredCosts before = remembered_costs();
  remember_costs({12, 1.5, 7, 9});
  CHECK(remembered_costs().slot_gbps == 12);
  CHECK(remembered_costs().call_us == 1.5);
  CHECK(remembered_costs().call_gbps == 7);
  CHECK(remembered_costs().streamed_gbps == 9);
  remember_costs(before);
}

/// What WayChoice::set_ways() takes where no plan goes otherwise.
constexpr std::uint32_t kStayedOrMoved = 0b011;

TEST_CASE("calls take the other plan once the cores have moved, and try it seldom while they stay", "[calibration]") {
  WayChoice choice;
  choice.set_ways(kStayedOrMoved);
  bool far = false;
  // The plan for near cores takes 4 us there and 28 far away; the other one 6 wherever the cores are.
  const auto make_calls = [&](int calls) {
    int others = 0;
    for (int i = 0; i < calls; ++i) {
      const bool moved = choice.way() == static_cast<int>(planner::Way::kMoved);
      others += moved != far ? 1 : 0;
      if (choice.wants_time()) choice.note(moved ? 6 : far ? 28 : 4);
    }
    return others;
  };
  make_calls(5000);
  const int tried = make_calls(10000);
  CHECK(tried > 0);
  CHECK(tried < 50);
  far = true;
  CHECK(make_calls(200) < 2 * static_cast<int>(WayChoice::kLookEvery));  // as soon as calls take longer
  make_calls(5000);
  CHECK(make_calls(10000) < 50);
  far = false;
  make_calls(WayChoice::kLookEvery * (WayChoice::kLongestInterval / WayChoice::kTries + 1));
  CHECK(make_calls(1000) < 50);
}

TEST_CASE("long calls find out at once that the cores have moved, and lose little by trying", "[calibration]") {
  WayChoice choice;
  choice.set_ways(0b111);
  // Of the plan for near cores, for those that have moved, and the one whose data goes otherwise.
  std::array<double, planner::kWays> us{7000, 9000, 40000};
  const auto total_us = [&](int calls) {
    double total = 0;
    for (int i = 0; i < calls; ++i) {
      const double taken = us[choice.way()];
      total += taken;
      if (choice.wants_time()) choice.note(taken);
    }
    return total;
  };
  CHECK(total_us(20) < 20 * 10000.0);
  total_us(3000);
  CHECK(total_us(1600) < 1600 * 7100.0);
  us = {40000, 9000, 30000};
  CHECK(total_us(20) < 20 * 22000.0);
  CHECK(total_us(100) < 100 * 11000.0);
}

TEST_CASE("of three plans the fastest is taken, whichever it is, and none that a call has not got", "[calibration]") {
  for (int fastest = 0; fastest < planner::kWays; ++fastest) {
    for (const std::uint32_t ways : {0b111u, 0b101u, 0b011u, 0b110u}) {
      WayChoice choice;
      CHECK(choice.set_ways(ways));
      std::array<int, planner::kWays> taken{};
      for (int i = 0; i < 10000; ++i) {
        const int way = choice.way();
        if (i >= 5000) ++taken[way];
        if (choice.wants_time()) choice.note(way == fastest ? 4 : 6);
      }
      if ((ways >> fastest & 1) != 0) CHECK(taken[fastest] > 4900);
      for (int way = 1; way < planner::kWays; ++way) {
        if ((ways >> way & 1) == 0) CHECK(taken[way] == 0);
      }
    }
  }
  WayChoice choice;
  CHECK_FALSE(choice.set_ways(0b001));
}

TEST_CASE("long calls keep a plan that is a tenth faster, short ones do not", "[calibration]") {
  for (const double us : {200.0, 4.0}) {
    WayChoice choice;
    choice.set_ways(kStayedOrMoved);
    int moved = 0;
    for (int i = 0; i < 2000; ++i) {
      moved += choice.way() == static_cast<int>(planner::Way::kMoved) ? 1 : 0;
      if (choice.wants_time()) choice.note(choice.way() == 0 ? us : 0.9 * us);
    }
    if (us > WayChoice::kLongUs) CHECK(moved > 1900);
    if (us < WayChoice::kLongUs) CHECK(moved < 100);
  }
}

TEST_CASE("a plan has its trial when the data has come into its caches, and the one that lost is not the next",
          "[calibration]") {
  WayChoice choice;
  choice.set_ways(0b111);
  std::array<int, planner::kWays> taken{};
  int row = 0;  // calls one after the other that have gone this way
  int last = 0;
  for (int i = 0; i < 400; ++i) {
    const int way = choice.way();
    row = way == last ? row + 1 : 1;
    last = way;
    ++taken[way];
    constexpr std::array<double, planner::kWays> kUs{60, 70, 18};
    if (choice.wants_time()) choice.note(row <= 5 ? 5 * kUs[way] : kUs[way]);
  }
  CHECK(taken[static_cast<int>(planner::Way::kOther)] > 350);
}

TEST_CASE("inputs stay beside the lines while that is faster, and who follows learns one call later", "[calibration]") {
  for (const bool lines_win : {true, false}) {
    WayChoice choice(WayChoice::kBesideLines);
    WayChoice follower(WayChoice::kBesideLines);
    int by_lines = 0;
    int in_vain = 0;
    for (int i = 0; i < 10000; ++i) {
      const bool beside = choice.way() == WayChoice::kBesideLines;
      by_lines += beside ? 1 : 0;
      in_vain += follower.way() != choice.way() ? 1 : 0;
      follower.follow(choice.way());
      if (choice.wants_time()) choice.note(beside == lines_win ? 4 : 6);
    }
    CHECK((lines_win ? by_lines : 10000 - by_lines) > 9900);
    CHECK(in_vain > 0);
    CHECK(in_vain < 50);
  }
}

TEST_CASE("a call that is interrupted now and then changes no plan", "[calibration]") {
  WayChoice choice;
  choice.set_ways(kStayedOrMoved);
  int others = 0;
  for (int i = 0; i < 10000; ++i) {
    const bool moved = choice.way() == static_cast<int>(planner::Way::kMoved);
    others += moved ? 1 : 0;
    if (choice.wants_time()) choice.note(i % 7 == 0 ? 4000 : moved ? 6 : 4);
  }
  CHECK(others < 100);
}

TEST_CASE("a trial that calls without times have come into ends", "[calibration]") {
  WayChoice choice;
  choice.set_ways(kStayedOrMoved);
  while (choice.way() == 0) {
    if (choice.wants_time()) choice.note(4);
  }
  int others = 0;
  for (int i = 0; i < 10000; ++i) {
    others += choice.way() != 0 ? 1 : 0;
    (void)choice.wants_time();  // in a group
  }
  CHECK(others < 20);
}
