// Direct messages: their forms, races, and what a pulled place holds.
#include "schedule/builder.h"
#include "schedule/limits.h"
#include "schedules.h"

#include <fmt/format.h>

namespace tutti::schedule {
namespace {

using Catch::Matchers::Contains;

constexpr VerifyOptions kDirect{.direct = true};
constexpr VerifyOptions kDirectInPlace{.in_place = true, .direct = true};

std::string idle_ranks(std::uint32_t ranks) {
  std::string text;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) text += fmt::format("rank {} idle\n", rank);
  return text;
}

/// Every rank reads the other's input.
constexpr const char* kPullInputs = R"(
schedule pull all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1 pull in[0.0]
  in[0.0] + recv 1 pull in[0.0] -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0 pull in[0.0]
  recv 0 pull in[0.0] + in[0.0] -> out[0.0] finish
)";

TEST_CASE("pulling inputs is right out of place; in place it races with the output") {
  CHECK(complaint(kPullInputs) == "");
  CHECK(complaint(kPullInputs, kDirect) == "");
  CHECK(complaint(kPullInputs, {.in_place = true}) == "");
  CHECK_THAT(
      complaint(kPullInputs, kDirectInPlace),
      Contains("reads out[0.0] of rank 1 while rank 1, lane 0, step 1") && Contains("no message orders the two"));
}

TEST_CASE("in place, pulls are right when everybody says that it has read") {
  const char* const text = R"(
schedule pull all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 1
rank 0 lane 0
  in[0.0] -> send 1 pull in[0.0]
  in[0.0] + recv 1 pull in[0.0] -> scratch[0.0] finish
  -> signal 1
  wait 1 + scratch[0.0] -> out[0.0]
rank 1 lane 0
  in[0.0] -> send 0 pull in[0.0]
  recv 0 pull in[0.0] + in[0.0] -> scratch[0.0] finish
  -> signal 0
  wait 0 + scratch[0.0] -> out[0.0]
)";
  CHECK(complaint(text, kDirect) == "");
  CHECK(complaint(text, kDirectInPlace) == "");
}

TEST_CASE("a pull of an input out of place orders nothing: executors do not wait for it") {
  // Rank 1 pulls rank 0's input and pushes into its output, which rank 0's own step writes too: perhaps later.
  const std::string text = R"(
schedule early all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1 pull in[0.0]
  recv 1 push out[0.0] -> out[0.0]
rank 1 lane 0
  recv 0 pull in[0.0] + in[0.0] -> out[0.0], send 0 push out[0.0] finish
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, kDirect), Contains("writes out[0.0] of rank 0 while rank 0, lane 0, step 0") &&
                                           Contains("let rank 1 wait for a signal from rank 0 in between"));
  std::string ordered = text;
  ordered.replace(ordered.find("send 1 pull in[0.0]\n"), 20, "send 1 pull in[0.0]\n  -> signal 1\n");
  ordered.replace(
      ordered.find("  recv 0 pull in[0.0] + in[0.0] -> out[0.0], send 0"), 51,
      "  recv 0 pull in[0.0] + in[0.0] -> scratch[0.0] finish\n  wait 0 + scratch[0.0] -> out[0.0], send 0");
  ordered.replace(ordered.rfind(" finish"), 7, "");
  ordered.replace(ordered.find("scratch 0"), 9, "scratch 1");
  CHECK(complaint(ordered, kDirect) == "");
}

TEST_CASE("a pull of an input orders nothing in place either") {
  // Rank 0 reads its input before it lends it, and rank 1 pushes the sum there: perhaps earlier.
  const std::string text = R"(
schedule early reduce_scatter ranks 2 units 1 lanes 1 input 2 output 1 scratch 1
rank 0 lane 0
  in[0.0] -> scratch[0.0]
  in[0.0] -> send 1 pull in[0.0]
  in[1.0] -> send 1
  recv 1 push out[0.0] -> out[0.0]
rank 1 lane 0
  recv 0 pull in[0.0] + in[0.0] -> send 0 push out[0.0] finish
  recv 0 + in[1.0] -> out[0.0] finish
)";
  CHECK(complaint(text, kDirect) == "");
  CHECK_THAT(complaint(text, kDirectInPlace), Contains("writes out[0.0] of rank 0 while rank 0, lane 0, step 0"));
}

TEST_CASE("a hostile schedule of many messages under way takes no more memory than it may") {
  // Rank 0 hears of rank 1's next step each time before it lends again; rank 2 takes nothing until the end.
  Schedule s =
      schedule_of(fmt::format("schedule many all_reduce ranks {} units 1 lanes 1 input 1 output 1 scratch 0\n{}",
                              kVerifierRanksMax, idle_ranks(kVerifierRanksMax)));
  for (int rank = 0; rank < 3; ++rank) s.ranks[static_cast<std::size_t>(rank)].lanes.resize(1);
  LaneProgram& lends = s.ranks[0].lanes[0];
  LaneProgram& tells = s.ranks[1].lanes[0];
  LaneProgram& takes = s.ranks[2].lanes[0];
  step(takes).from(signal(1));
  for (int i = 0; i < 40000; ++i) {
    step(tells).to(signal(0));
    step(lends).from(signal(1));
    step(lends).from(input({0})).to(pull(2, input({0})));
    step(takes).from(pull(0, input({0}))).to(output({0}));
  }
  step(lends).to(signal(1));
  step(tells).from(signal(0)).to(signal(2));
  CHECK_THAT(complaint(s, kDirect), Contains("rank 0, lane 0, step") && Contains("too many messages under way"));
}

TEST_CASE("a pulled output may not change before it has been read") {
  // Rank 0 hands out its input through its output, then overwrites that with the sum.
  const std::string text = R"(
schedule reuse all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1 pull out[0.0]
  in[0.0] + recv 1 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
  recv 0 pull out[0.0] + in[0.0] -> out[0.0] finish
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, kDirect), Contains("out[0.0] of rank 0 while"));
  // With the messages the other way round rank 0 hears from rank 1 only after rank 1 has read.
  std::string ordered = text;
  ordered.replace(ordered.find("in[0.0] -> send 0\n  recv 0 pull out[0.0] + in[0.0] -> out[0.0] finish"), 70,
                  "recv 0 pull out[0.0] + in[0.0] -> out[0.0] finish\n  in[0.0] -> send 0");
  CHECK(complaint(ordered, kDirect) == "");
}

TEST_CASE("ordered is not enough: the pulled place must hold what was sent") {
  const char* const text = R"(
schedule stale broadcast ranks 3 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1
  wait 1
  in[0.0] -> send 2
rank 1 lane 0
  recv 0 -> out[0.0], send 2 pull out[0.0]
  -> signal 0
rank 2 lane 0
  recv 0 -> out[0.0]
  recv 1 pull out[0.0] -> out[0.0]
)";
  CHECK(complaint(text, kDirect) == "");
  const char* const changed = R"(
schedule stale all_gather ranks 2 units 1 lanes 1 input 1 output 2 scratch 1
rank 0 lane 0
  in[0.0] -> out[0.0], out[1.0], send 1 pull out[1.0]
  recv 1 -> out[1.0]
  -> signal 1
rank 1 lane 0
  in[0.0] -> out[1.0], send 0
  wait 0
  recv 0 pull out[1.0] -> out[0.0]
)";
  // The wait comes first in the channel, so that the ends do not even meet.
  CHECK_THAT(complaint(changed, kDirect), Contains("expects a message of width 0 from rank 0, which sends width 1"));
  const char* const overwritten = R"(
schedule stale all_gather ranks 3 units 1 lanes 1 input 1 output 3 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], out[1.0], send 1 pull out[1.0]
  recv 1 -> out[1.0], send 2
  recv 2 -> out[2.0]
rank 1 lane 0
  in[0.0] -> out[1.0], send 0, send 2
  wait 2
  recv 0 pull out[1.0] -> out[0.0]
  recv 2 -> out[2.0]
rank 2 lane 0
  in[0.0] -> out[2.0], send 0
  recv 1 -> out[1.0]
  recv 0 -> out[1.0], signal 1
  out[2.0] -> send 1
  in[0.0] -> out[0.0]
)";
  CHECK_THAT(
      complaint(overwritten, kDirect),
      Contains(
          "out[1.0] of rank 0 holds rank 1, in[0.0] when it is read; the message from rank 0 was rank 0, in[0.0]"));
}

TEST_CASE("a pull needs a plain copy or a local sink at the sender") {
  const char* const text = R"(
schedule bad reduce ranks 3 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] + recv 1 pull in[0.0] -> out[0.0] finish
rank 1 lane 0
  in[0.0] + recv 2 -> send 0 pull in[0.0]
rank 2 lane 0
  in[0.0] -> send 1
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, kDirect),
             Contains("pulls from in[0.0] of rank 1, which this step neither copies from nor writes"));
}

TEST_CASE("a push must land in the one local sink of a plain receive") {
  const std::string text = R"(
schedule push broadcast ranks 2 root 0 units 1 lanes 1 input 1 output 1 scratch 1
rank 0 lane 0
  in[0.0] -> out[0.0], send 1 push out[0.0]
rank 1 lane 0
  recv 0 push out[0.0] -> out[0.0]
)";
  CHECK(complaint(text, kDirect) == "");
  CHECK(complaint(text, kDirectInPlace) == "");
  std::string elsewhere = text;
  elsewhere.replace(elsewhere.find("-> out[0.0]\n"), 12, "-> scratch[0.0]\n  scratch[0.0] -> out[0.0]\n");
  CHECK(complaint(elsewhere) == "");
  CHECK_THAT(complaint(elsewhere, kDirect), Contains("expected the pushed place as its one local sink"));
  const char* const added = R"(
schedule push all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1 push out[0.0]
  recv 1 -> out[0.0]
rank 1 lane 0
  recv 0 push out[0.0] + in[0.0] -> out[0.0], send 0 finish
)";
  CHECK(complaint(added) == "");
  CHECK_THAT(complaint(added, kDirect), Contains("adds something to pushed data"));
}

TEST_CASE("a pushed place must be free until the push") {
  const std::string text = R"(
schedule push all_gather ranks 2 units 1 lanes 1 input 1 output 2 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1 push out[0.0]
  recv 1 push out[1.0] -> out[1.0]
rank 1 lane 0
  in[0.0] -> out[0.0]
  in[0.0] -> out[1.0], send 0 push out[1.0]
  recv 0 push out[0.0] -> out[0.0]
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, kDirect), Contains("out[0.0] of rank 1 while") && Contains("no message orders the two"));
  std::string signalled = text;
  signalled.replace(signalled.find("  in[0.0] -> out[0.0], send 1"), 29, "  wait 1\n  in[0.0] -> out[0.0], send 1");
  signalled.replace(signalled.find("  in[0.0] -> out[0.0]\n"), 22, "  in[0.0] -> out[0.0], signal 0\n");
  CHECK(complaint(signalled, kDirect) == "");
}

TEST_CASE("peers do not reach scratch") {
  const char* const text = R"(
schedule bad broadcast ranks 2 root 0 units 1 lanes 1 input 1 output 1 scratch 1
rank 0 lane 0
  in[0.0] -> out[0.0], scratch[0.0], send 1 pull scratch[0.0]
rank 1 lane 0
  recv 0 pull scratch[0.0] -> out[0.0]
)";
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, kDirect), Contains("pull or push of scratch"));
}

TEST_CASE("direct messages hold no slots") {
  const char* const text = R"(
schedule ahead all_to_all ranks 2 units 3 lanes 1 input 2 output 2 scratch 0
rank 0 lane 0
  in[0.0+3] -> out[0.0+3]
  in[1.0] -> send 1 pull in[1.0]
  in[1.1] -> send 1 pull in[1.1]
  in[1.2] -> send 1 pull in[1.2]
  recv 1 -> out[1.0]
  recv 1 -> out[1.1]
  recv 1 -> out[1.2]
rank 1 lane 0
  in[1.0+3] -> out[1.0+3]
  in[0.0] -> send 0
  in[0.1] -> send 0
  in[0.2] -> send 0
  recv 0 pull in[1.0] -> out[0.0]
  recv 0 pull in[1.1] -> out[0.1]
  recv 0 pull in[1.2] -> out[0.2]
)";
  CHECK_THAT(complaint(text), Contains("waits for a free slot"));
  CHECK(complaint(text, kDirect) == "");
}

TEST_CASE("slots go by message number: a direct message needs none, but counts") {
  const char* const text = R"(
schedule numbered broadcast ranks 3 root 0 units 3 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0+3] -> out[0.0+3]
  in[0.0] -> send 1 pull in[0.0]
  in[0.1] -> send 1 pull in[0.1]
  in[0.2] -> send 1
  in[0.0+3] -> send 2 [0.0+3]
rank 1 lane 0
  wait 2
  recv 0 pull in[0.0] -> out[0.0]
  recv 0 pull in[0.1] -> out[0.1]
  recv 0 -> out[0.2]
rank 2 lane 0
  recv 0 [0.0+3] -> out[0.0+3], signal 1
)";
  // With two slots the third message waits until the first has been received, which rank 1 does only later.
  CHECK(complaint(text, {.slots = 3, .direct = true}) == "");
  CHECK_THAT(complaint(text, {.slots = 2, .direct = true}), Contains("waits for a free slot to rank 1"));
}

}  // namespace
}  // namespace tutti::schedule
