// The cost model against times worked out by hand, and the orders of algorithms that it must get right.
#include "schedule/cost_model.h"
#include "algorithm/algorithm.h"
#include "schedules.h"

namespace tutti::schedule {
namespace {

constexpr const char* kSend = R"(
schedule p2p send ranks 2 root 1 caller 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1 pull in[0.0]
rank 1 lane 0
  recv 0 pull in[0.0] -> out[0.0]
)";

/// 1 us for a message, 1 us for a step, 1000 bytes per us copied, 500 added.
CostInputs simple(std::uint64_t count) {
  return {.count = count, .slot_bytes = 1000, .message_us = 1, .step_us = 1, .copy_gbps = 1, .reduce_gbps = 0.5};
}

Schedule made(std::string_view name, const Request& request) {
  const algorithm::Algorithm* row = algorithm::find(name, request);
  REQUIRE(row != nullptr);
  return algorithm::make_schedule(*row, request);
}

TEST_CASE("a message costs a copy in, the way, and a copy out") {
  const Schedule s = schedule_of(kSend);
  CHECK(predict_us(s, simple(1000)) == Approx(2 + 1 + 2));
  CHECK(rounds_of(s, simple(1000)) == 1);
  CHECK(rounds_of(s, simple(1001)) == 2);
}

TEST_CASE("rounds overlap as far as the slots allow") {
  const Schedule s = schedule_of(kSend);
  CHECK(predict_us(s, simple(2000)) == Approx(5 + 2));
  // The third message waits until the first is taken (5) and that is known (6); each pair of messages takes 6.
  CHECK(predict_us(s, simple(3000)) == Approx(11));
  CHECK(predict_us(s, simple(10000)) == Approx(11 + 7 * 3));
  CostInputs many = simple(10000);
  many.slots = 4;
  // Enough slots for the way there and back: the busiest rank decides.
  CHECK(predict_us(s, many) == Approx(5 + 9 * 2));
  many.slots = 1;
  // Copy in 2, way 1, copy out 2, way back 1.
  CHECK(predict_us(s, many) == Approx(5 + 9 * 6));
}

TEST_CASE("a pull is one copy and one round") {
  CostInputs in = simple(10000);
  in.direct = true;
  CHECK(rounds_of(schedule_of(kSend), in) == 1);
  CHECK(predict_us(schedule_of(kSend), in) == Approx(1 + 1 + (1 + 10)));
}

TEST_CASE("pushes, copies within a rank, and what is in place already have prices of their own") {
  std::string push = kSend;
  for (const auto* const pull : {"pull in[0.0]", "pull in[0.0]"}) push.replace(push.find(pull), 12, "push out[0.0]");
  push.insert(push.find("rank 1 lane 0"), "  in[0.0] -> out[0.0]\n");
  const Schedule s = schedule_of(push);
  CostInputs in = simple(1000);
  in.direct = true;
  // The sender is the last to be done: it pushes, and copies its own.
  CHECK(predict_us(s, in) == Approx(1 + 1 + 1 + 1));
  in.push_cost = 3;
  CHECK(predict_us(s, in) == Approx(1 + 3 + 1 + 1));
  in.local_gbps = 0.1;
  CHECK(predict_us(s, in) == Approx(1 + 3 + 1 + 10));
  in.in_place = true;
  CHECK(predict_us(s, in) == Approx(1 + 3 + 1 + 1));  // the receiver's step is the last then
}

TEST_CASE("sums cost what is added, cores shared cost their share") {
  const Schedule s = made("oneshot", {Collective::kReduce, 2, 0});
  CostInputs in = simple(500);
  // send 1 + 0.5, way 1, add 1 + 500 bytes at 500 per us + 0.5 to write
  CHECK(predict_us(s, in) == Approx(1.5 + 1 + 1 + 1 + 0.5));
  in.ranks_per_core = 2;
  CHECK(predict_us(s, in) == Approx(2 * 1.5 + 1 + 2 * 2.5));
}

TEST_CASE("lanes of a rank share its thread") {
  std::string two = kSend;
  two.replace(two.find("lanes 1"), 7, "lanes 2");
  two.insert(two.find("rank 1 lane 0"), "rank 0 lane 1\n  in[0.0] -> send 1 pull in[0.0]\n");
  two += "rank 1 lane 1\n  recv 0 pull in[0.0] -> out[0.0]\n";
  // Half of the bytes each: 1.5, then 1.5 for the other lane; the receiver is done with the first by then.
  CHECK(predict_us(schedule_of(two), simple(1000)) == Approx(3 + 1 + 1.5));
}

TEST_CASE("lanes that share a thread and take turns make further rounds cost all lanes' work") {
  constexpr int kSendLanes = 8, kRounds = 10;
  std::string text = "schedule p2p send ranks 2 root 1 caller 0 units 1 lanes 8 input 1 output 1 scratch 0\n";
  for (const char* const rank : {"rank 0", "rank 1"}) {
    for (int lane = 0; lane < kSendLanes; ++lane)
      text += std::string(rank) + " lane " + std::to_string(lane) +
              (rank[5] == '0' ? "\n  in[0.0] -> send 1\n" : "\n  recv 0 -> out[0.0]\n");
  }
  CostInputs in = simple(kSendLanes * kRounds * 1000);
  in.slots = 4;
  in.lanes_take_turns = true;
  // Each message keeps both threads for 2 us; the last one is taken 3 us after it was sent.
  CHECK(predict_us(schedule_of(text), in) == Approx(kSendLanes * kRounds * 2 + 3));
}

TEST_CASE("a schedule that cannot end costs nothing, at once") {
  CHECK(predict_us(schedule_of(R"(
schedule bad broadcast ranks 2 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0]
rank 1 lane 0
  recv 0 -> out[0.0]
)"),
                   simple(10)) == 0);
}

TEST_CASE("small calls like few hops, large ones few bytes") {
  const Request request{Collective::kAllReduce, 8};
  CostInputs in{.count = 64, .element_bytes = 4};
  CHECK(predict_us(made("oneshot", request), in) < predict_us(made("ring", request), in));
  in.count = 1 << 24;
  CHECK(predict_us(made("ring", request), in) < predict_us(made("oneshot", request), in));
  CHECK(predict_us(made("twoshot", request), in) < predict_us(made("oneshot", request), in));
}

TEST_CASE("messages between groups take longer, and wait for each other on the way") {
  const Groups apart{0, 1};
  const Groups together{0, 0};
  const Schedule chain = schedule_of(R"(schedule s broadcast ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1
rank 1 lane 0
  recv 0 -> out[0.0]
)");
  CostInputs in{.count = 1 << 20, .element_bytes = 1, .slot_bytes = 1 << 20, .slots = 4};
  in.message_us = 1;
  const double near = predict_us(chain, in);
  in.far_message_us = 5;
  in.far_gbps = 1;
  CHECK(predict_us(chain, in) == near);
  in.groups = &together;
  CHECK(predict_us(chain, in) == near);
  in.groups = &apart;
  // A mebibyte at 1 GB/s, and 4 us more for the message.
  CHECK(predict_us(chain, in) == Approx(near + 1048.576 + 4));
  // The threads' own work, a half at each end, and a wait, as they are not equally fast: cores that ranks share take so many times as long.
  in.far_by_threads = true;
  CHECK(predict_us(chain, in) == Approx(near + 1.1 * 1048.576 + 4));
  const double alone = predict_us(chain, in);
  in.ranks_per_core = 2;
  CHECK(predict_us(chain, in) > 1.9 * alone);
  in.ranks_per_core = 1;
  in.far_by_threads = false;
  in.far_gbps = 0;
  CHECK(predict_us(chain, in) == Approx(near + 4));
}

TEST_CASE("two-shot sends more between groups than the grouped schedule, and is priced so") {
  const Groups halves{0, 0, 0, 0, 1, 1, 1, 1};
  const Request request{Collective::kAllReduce, 8, 0, 0, &halves};
  CostInputs in{.count = 1 << 22, .element_bytes = 4};
  in.groups = &halves;
  in.far_message_us = 1;
  in.far_gbps = 0.1;
  CHECK(predict_us(made("grouped", request), in) < 0.5 * predict_us(made("twoshot", request), in));
}

TEST_CASE("time grows with size for every algorithm") {
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    for (int c = 0; c < kCollectives; ++c) {
      const Request request{static_cast<Collective>(c), 7, 1, 0};
      if (!row.supports(request)) continue;
      const Schedule s = algorithm::make_schedule(row, request);
      for (const bool direct : {false, true}) {
        double before = 0;
        for (std::uint64_t count = 1; count < (1u << 28); count *= 16) {
          INFO(row.name << " " << name_of(request.collective) << " count " << count << " direct " << direct);
          const double now = predict_us(s, {.count = count, .element_bytes = 4, .direct = direct});
          CHECK(now > before);
          before = now;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::schedule
