// Schedules written by hand: a right one of each kind, and one thing wrong at a time.
#include "schedule/builder.h"
#include "schedules.h"

namespace tutti::schedule {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

constexpr const char* kExchange = R"(
schedule exchange all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1
  in[0.0] + recv 1 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
  recv 0 + in[0.0] -> out[0.0] finish
)";

/// kExchange with `from` replaced by `to`, once.
std::string exchange_with(const std::string& from, const std::string& to) {
  std::string text = kExchange;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a right schedule is accepted in and out of place, in rank order") {
  CHECK(complaint(kExchange) == "");
  CHECK(complaint(kExchange, {.in_place = true}) == "");
  CHECK(complaint(kExchange, {.rank_order = true}) == "");
  CHECK(complaint(kExchange, {.slots = 1}) == "");
}

TEST_CASE("rank order is the order of the sources") {
  const char* const text = R"(
schedule backwards reduce ranks 2 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  recv 1 + in[0.0] -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, {.rank_order = true}), Contains("out[0.0] of rank 0 holds the sum of ranks 1 0") &&
                                                        Contains("one after the other from rank 0 on"));
}

TEST_CASE("every rank must add up in the same way, or bits differ") {
  CHECK_THAT(complaint(exchange_with("in[0.0] + recv 1 -> out[0.0] finish", "recv 1 + in[0.0] -> out[0.0] finish")),
             Contains("out[0.0] of rank 0 is the sum of ranks 1 0") && Contains("of rank 1 is the sum of ranks 0 1") &&
                 Contains("expected the same order at every rank") && Contains("rank 0, lane 0, step 1"));
  // The same order is not enough: (0 + 1) + 2 rounds twice where 0 + 1 + 2 rounds once.
  const std::string text = R"(
schedule threes all_reduce ranks 3 units 1 lanes 1 input 1 output 1 scratch 1
rank 0 lane 0
  in[0.0] -> send 1, send 2
  in[0.0] + recv 1 + recv 2 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0, send 2
  recv 0 + in[0.0] + recv 2 -> out[0.0] finish
rank 2 lane 0
  in[0.0] -> send 0, send 1
  recv 0 + recv 1 + in[0.0] -> out[0.0] finish
)";
  CHECK(complaint(text) == "");
  std::string nested = text;
  nested.replace(nested.find("recv 0 + recv 1 + in[0.0]"), 25,
                 "recv 0 + recv 1 -> scratch[0.0]\n  scratch[0.0] + in[0.0]");
  CHECK_THAT(complaint(nested),
             Contains("of rank 2 is the sum of ranks 0 1 2, in[0.0], finished: added up in different"));
}

TEST_CASE("a sum of sums in rank order is not the left fold") {
  const char* const text = R"(
schedule pairs reduce ranks 4 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] + recv 1 + recv 2 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
rank 2 lane 0
  in[0.0] + recv 3 -> send 0
rank 3 lane 0
  in[0.0] -> send 2
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, {.rank_order = true}),
             Contains("the sum of ranks 0 1 2 3") && Contains("one after the other"));
}

TEST_CASE("places that do not exist are named") {
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "in[1.0] -> send 1")),
             Contains("rank 0, lane 0, step 0 (in[1.0] -> send 1)") && Contains("in[1.0] of rank 0 does not exist"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "in[0.1] -> send 1")),
             Contains("names units 1 to 1; the schedule has units 0 to 0"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "scratch[0.0] -> send 1")),
             Contains("scratch[0.0] of rank 0 does not exist"));
  const char* const no_output = R"(
schedule bad reduce ranks 2 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] + recv 1 -> out[0.0], send 1 finish
rank 1 lane 0
  in[0.0] -> send 0
  recv 0 -> out[0.0]
)";
  CHECK_THAT(complaint(no_output), Contains("out[0.0] of rank 1 does not exist"));
}

TEST_CASE("peers must be other ranks") {
  CHECK_THAT(complaint(exchange_with("-> send 1", "-> send 0")), Contains("a message to itself"));
  CHECK_THAT(complaint(exchange_with("-> send 1", "-> send 2")), Contains("peer 2; expected 0 to 1"));
}

TEST_CASE("shape and request must fit") {
  CHECK_THAT(complaint(exchange_with("output 1", "output 2")),
             Contains("1 input and 2 output blocks; the collective has 1 and 1"));
  CHECK_THAT(complaint(exchange_with("ranks 2", "ranks 2 root 2")), Contains("root 2"));
  CHECK_THAT(complaint(exchange_with("units 1", "units 0")), Contains("0 units"));
  Schedule schedule = schedule_of(kExchange);
  schedule.ranks.pop_back();
  CHECK_THAT(complaint(schedule), Contains("programs of 1 ranks; expected 2"));
  schedule = schedule_of(kExchange);
  schedule.ranks[1].lanes[0].steps[1].sink_count = 7;
  CHECK_THAT(complaint(schedule), Contains("rank 1, lane 0, step 1: endpoints"));
  schedule = schedule_of(kExchange);
  schedule.ranks[1].lanes.resize(3);
  CHECK_THAT(complaint(schedule), Contains("rank 1 has 3 lanes; expected 1"));
  CHECK(verify(schedule_of(kExchange), {.slots = 0}).error().code == Code::kInvalidArgument);
}

TEST_CASE("a step's data must come from somewhere and go somewhere, equally wide, in one unit number") {
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "-> send 1")), Contains("has no source of data"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "in[0.0]")), Contains("has no sink"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "nothing")), Contains("does nothing"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "in[0.0] -> send 1 [0.0+2]")),
             Contains("the schedule has units 0 to 0"));
  const char* const uneven = R"(
schedule bad broadcast ranks 2 root 0 units 2 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0+2] -> out[0.0], send 1 [0.0+2]
rank 1 lane 0
  recv 0 [0.0+2] -> out[0.0+2]
)";
  CHECK_THAT(complaint(uneven), Contains("widths 2 and 1 in one step"));
  const char* const shifted = R"(
schedule bad broadcast ranks 2 root 0 units 2 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.1], send 1
rank 1 lane 0
  recv 0 -> out[0.0]
)";
  CHECK_THAT(complaint(shifted), Contains("units 0 and 1 in one step"));
}

TEST_CASE("inputs are not written: in place the output is") {
  const char* const text = R"(
schedule bad all_reduce ranks 1 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> in[0.0] finish
)";
  CHECK_THAT(complaint(text), Contains("writes to in[0.0] of rank 0"));
  CHECK_THAT(complaint(text, {.in_place = true}), Contains("write to out, which is the same memory in place"));
}

TEST_CASE("every send meets its receive") {
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 0", "in[0.0] -> send 0\n in[0.0] -> send 0")),
             Contains("rank 1, lane 0, step 1") && Contains("sends message number 2 to rank 0, which receives only 1"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 0\n", "\n")), Contains("waits for message number 1 from rank 1"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 0\n", "-> signal 0\n")),
             Contains("expects a message of width 1 from rank 1, which sends width 0"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 0\n", "in[0.0] -> send 0 pull in[0.0]\n")),
             Contains("both ends must say the same"));
}

TEST_CASE("a deadlock names who waits for whom") {
  const char* const text = R"(
schedule bad all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] + recv 1 -> out[0.0] finish
  in[0.0] -> send 1
rank 1 lane 0
  recv 0 + in[0.0] -> out[0.0] finish
  in[0.0] -> send 0
)";
  CHECK_THAT(complaint(text), Contains("deadlock in lane 0 with 2 slots") &&
                                  Contains("rank 0, lane 0, step 0 (in[0.0] + recv 1 -> out[0.0] finish) of round 0 "
                                           "waits for a message from rank 1") &&
                                  Contains("waits for a message from rank 0"));
}

/// Rank 0 sends three units before it receives the first of rank 1's three, and the other way round.
constexpr const char* kThreeAhead = R"(
schedule ahead all_to_all ranks 2 units 3 lanes 1 input 2 output 2 scratch 0
rank 0 lane 0
  in[0.0+3] -> out[0.0+3]
  in[1.0] -> send 1
  in[1.1] -> send 1
  in[1.2] -> send 1
  recv 1 -> out[1.0]
  recv 1 -> out[1.1]
  recv 1 -> out[1.2]
rank 1 lane 0
  in[1.0+3] -> out[1.0+3]
  in[0.0] -> send 0
  in[0.1] -> send 0
  in[0.2] -> send 0
  recv 0 -> out[0.0]
  recv 0 -> out[0.1]
  recv 0 -> out[0.2]
)";

TEST_CASE("slots bound how far a rank runs ahead") {
  CHECK(complaint(kThreeAhead, {.slots = 3}) == "");
  CHECK_THAT(complaint(kThreeAhead, {.slots = 2}),
             Contains("rank 0, lane 0, step 3 (in[1.2] -> send 1) of round 0 waits for a free slot to rank 1"));
}

TEST_CASE("a rank that has sent may still wait in a circle") {
  const char* const text = R"(
schedule late broadcast ranks 2 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1
  wait 1 -> signal 1
rank 1 lane 0
  recv 0 -> out[0.0]
  wait 0 -> signal 0
)";
  CHECK_THAT(complaint(text), Contains("waits for a message from rank 1"));
}

TEST_CASE("a step has one message each way with a peer: executors look at a channel's next slot only") {
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "in[0.0] -> send 1, send 1")),
             Contains("rank 0, lane 0, step 0") && Contains("sends to rank 1 twice in one step; split it"));
  CHECK_THAT(complaint(exchange_with("in[0.0] + recv 1", "in[0.0] + recv 1 + wait 1")),
             Contains("rank 0, lane 0, step 1") && Contains("receives from rank 1 twice in one step; split it"));
  // One each way is fine.
  CHECK_THAT(
      complaint(exchange_with("in[0.0] + recv 1 -> out[0.0] finish", "in[0.0] + recv 1 -> out[0.0], signal 1 finish")),
      Contains("sends message number 2 to rank 1"));
}

TEST_CASE("values: each rank once, from the right place, finished once") {
  CHECK_THAT(complaint(exchange_with("in[0.0] + recv 1", "in[0.0] + in[0.0] + recv 1")),
             Contains("adds in[0.0] of rank 0 twice"));
  CHECK_THAT(
      complaint(exchange_with("in[0.0] + recv 1 -> out[0.0] finish", "in[0.0] -> out[0.0]\n recv 1 -> out[0.0]")),
      Contains("out[0.0] of rank 0 holds rank 1, in[0.0] (without rank 0); expected the sum of all 2 ranks") &&
          Contains("the last to write it is rank 0, lane 0, step 2 (recv 1 -> out[0.0])"));
  CHECK_THAT(complaint(exchange_with("in[0.0] + recv 1 -> out[0.0] finish", "in[0.0] + recv 1 -> out[0.0]")),
             Contains("completes the sum of 2 ranks; expected finish"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "in[0.0] -> send 1 finish")),
             Contains("finish on rank 0, in[0.0]"));
  CHECK_THAT(
      complaint(exchange_with("recv 1 -> out[0.0] finish", "recv 1 -> out[0.0] finish\n out[0.0] -> out[0.0] finish")),
      Contains("finish on the sum of ranks 0 1, in[0.0], finished"));
  CHECK_THAT(complaint(exchange_with("recv 1 -> out[0.0] finish",
                                     "recv 1 -> out[0.0] finish\n out[0.0] + in[0.0] -> out[0.0]")),
             Contains("adds to the sum of ranks 0 1, in[0.0], finished"));
  CHECK_THAT(complaint(exchange_with("in[0.0] -> send 1", "out[0.0] -> send 1")),
             Contains("reads out[0.0] of rank 0 before anything was written there"));
  CHECK_THAT(
      complaint(exchange_with("recv 1 -> out[0.0] finish", "recv 1 -> send 1 finish\n") + "  recv 0 -> out[0.0]\n"),
      Contains("out[0.0] of rank 0 holds nothing (never written)"));
}

TEST_CASE("a hostile schedule of many scattered sums takes no more time than it may") {
  // Rank 0 adds up the even ranks' sum and the odd ones' again and again, and keeps nothing of it.
  constexpr int kRanks = 514;
  constexpr std::uint32_t kUnits = 200;
  Schedule s;
  s.request.ranks = kRanks;
  s.shape.units = kUnits;
  s.shape.scratch_blocks = 3;
  s.ranks.assign(kRanks, {{LaneProgram()}});
  LaneProgram& lane = s.ranks[0].lanes[0];
  for (const int odd : {0, 1}) {
    auto sum = step(lane);
    if (odd == 0) sum.from(input({0, 0, kUnits}));
    for (int rank = odd == 1 ? 1 : 2; rank < kRanks - 1; rank += 2) {
      sum.from(message(rank, kUnits));
      step(s.ranks[static_cast<std::size_t>(rank)].lanes[0]).from(input({0, 0, kUnits})).to(message(0, kUnits));
    }
    sum.to(scratch({static_cast<std::uint32_t>(odd), 0, kUnits}));
  }
  for (int again = 0; again < 1000; ++again)
    step(lane).from(scratch({0, 0, kUnits})).from(scratch({1, 0, kUnits})).to(scratch({2, 0, kUnits}));
  CHECK_THAT(complaint(s), Contains("too many sums of scattered ranks"));
}

TEST_CASE("a sum of different blocks is refused where it is made") {
  const char* const text = R"(
schedule bad reduce_scatter ranks 2 units 1 lanes 1 input 2 output 1 scratch 0
rank 0 lane 0
  in[1.0] -> send 1
  in[0.0] + recv 1 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
  recv 0 + in[0.0] -> out[0.0] finish
)";
  CHECK_THAT(complaint(text),
             Contains("rank 1, lane 0, step 1") && Contains("adds rank 1, in[0.0] to rank 0, in[1.0]"));
}

TEST_CASE("a step that only hands on names its unit") {
  const char* const text = R"(
schedule line broadcast ranks 3 root 0 units 2 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0+2] -> out[0.0+2]
  in[0.0] -> send 1
  in[0.1] -> send 1
rank 1 lane 0
  recv 0 -> out[0.0]
  recv 0 [0.1] -> send 2 [0.1]
rank 2 lane 0
  recv 1 -> out[0.1]
)";
  // Rank 1 keeps unit 0 and hands on unit 1: what is missing is reported only after the units have been found right.
  CHECK_THAT(complaint(text), Contains("at the end out[0.1] of rank 1 holds nothing"));
  std::string unnamed = text;
  unnamed.replace(unnamed.find("recv 0 [0.1] -> send 2 [0.1]"), 28, "recv 0 -> send 2");
  CHECK_THAT(complaint(unnamed), Contains("handles rank 0, in[0.1] as unit 0"));
}

TEST_CASE("a step that only hands on lists the message before a wait") {
  const std::string text = R"(
schedule relay broadcast ranks 3 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1
  in[0.0] -> send 1
rank 1 lane 0
  recv 0 -> out[0.0]
  recv 0 + wait 2 -> send 2
rank 2 lane 0
  -> signal 1
  recv 1 -> out[0.0]
)";
  CHECK(complaint(text) == "");
  std::string waits = text;
  waits.replace(waits.find("recv 0 + wait 2"), 15, "wait 2 + recv 0");
  CHECK_THAT(complaint(waits), Contains("rank 1, lane 0, step 1") && Contains("list the message first"));
}

TEST_CASE("in place, an input is gone once its output is written") {
  const char* const text = R"(
schedule swap all_to_all ranks 2 units 1 lanes 1 input 2 output 2 scratch 1
rank 0 lane 0
  in[0.0] -> out[0.0]
  recv 1 -> out[1.0]
  in[1.0] -> send 1
rank 1 lane 0
  in[1.0] -> out[1.0]
  in[0.0] -> send 0
  recv 0 -> out[0.0]
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, {.in_place = true}),
             Contains("out[0.0] of rank 1 holds rank 1, in[0.0]; expected rank 0, in[1.0]"));
}

TEST_CASE("a step may not read and write overlapping places that are not the same") {
  const char* const text = R"(
schedule shift all_gather ranks 1 units 2 lanes 1 input 1 output 1 scratch 2
rank 0 lane 0
  in[0.0+2] -> out[0.0+2], out[0.0+2]
)";
  CHECK_THAT(complaint(text), Contains("writes out[0.0] of rank 0 twice"));
}

TEST_CASE("moving data adds nothing up and finishes nothing") {
  const char* const text = R"(
schedule bad broadcast ranks 1 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0] finish
)";
  CHECK_THAT(complaint(text), Contains("finish in broadcast"));
  std::string sum = text;
  sum.replace(sum.find("in[0.0] -> out[0.0] finish"), 26, "in[0.0] + in[0.0] -> out[0.0]");
  CHECK_THAT(complaint(sum), Contains("adds 2 sources; broadcast moves data only"));
}

TEST_CASE("send and receive: the pair's two programs, the others idle") {
  const char* const text = R"(
schedule p2p send ranks 3 root 2 caller 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 2
rank 1 idle
rank 2 lane 0
  recv 0 -> out[0.0]
)";
  CHECK(complaint(text) == "");
  std::string receive = text;
  receive.replace(receive.find("send ranks 3 root 2 caller 0"), 28, "recv ranks 3 root 0 caller 2");
  CHECK(complaint(receive) == "");
  CHECK_THAT(complaint(receive.replace(receive.find("rank 2 lane 0\n  recv 0 -> out[0.0]"), 34, "rank 2 lane 0\n")),
             Contains("sends message number 1 to rank 2"));
}

}  // namespace
}  // namespace tutti::schedule
