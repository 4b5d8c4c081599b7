// The text form: golden text, what the parser accepts, and what it says about the rest. That every algorithm survives
// the round trip is exhaustive_test's.
#include "algorithm/algorithm.h"
#include "schedule/limits.h"
#include "schedules.h"

#include <chrono>
#include <random>

namespace tutti::schedule {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

std::string text_of(std::string_view name, const Request& request) {
  const algorithm::Algorithm* row = algorithm::find(name, request);
  REQUIRE(row != nullptr);
  return to_text(algorithm::make_schedule(*row, request));
}

std::string parse_error(std::string_view text) {
  const Result<Schedule> read = parse(text);
  REQUIRE_FALSE(read.ok());
  CHECK(read.error().code == Code::kInvalidArgument);
  return read.error().message;
}

TEST_CASE("golden: ring all_reduce of 3 ranks") {
  CHECK(text_of("ring", {Collective::kAllReduce, 3}) ==
        "schedule ring all_reduce ranks 3 units 3 lanes 1 input 1 output 1 scratch 0\n"
        "rank 0 lane 0\n"
        "  in[0.0] -> send 1\n"
        "  recv 2 + in[0.2] -> send 1 partial\n"
        "  recv 2 partial + in[0.1] -> out[0.1], send 1 push out[0.1] finish\n"
        "  recv 2 push out[0.0] -> out[0.0], send 1 push out[0.0]\n"
        "  recv 2 push out[0.2] -> out[0.2]\n"
        "rank 1 lane 0\n"
        "  in[0.1] -> send 2\n"
        "  recv 0 + in[0.0] -> send 2 partial\n"
        "  recv 0 partial + in[0.2] -> out[0.2], send 2 push out[0.2] finish\n"
        "  recv 0 push out[0.1] -> out[0.1], send 2 push out[0.1]\n"
        "  recv 0 push out[0.0] -> out[0.0]\n"
        "rank 2 lane 0\n"
        "  in[0.2] -> send 0\n"
        "  recv 1 + in[0.1] -> send 0 partial\n"
        "  recv 1 partial + in[0.0] -> out[0.0], send 0 push out[0.0] finish\n"
        "  recv 1 push out[0.2] -> out[0.2], send 0 push out[0.2]\n"
        "  recv 1 push out[0.1] -> out[0.1]\n");
}

TEST_CASE("golden: a send names root and caller") {
  CHECK(text_of("p2p", {Collective::kSend, 3, 2, 0}) ==
        "schedule p2p send ranks 3 root 2 caller 0 units 1 lanes 1 input 1 output 1 scratch 0\n"
        "rank 0 lane 0\n"
        "  in[0.0] -> send 2 pull in[0.0]\n"
        "rank 1 lane 0\n"
        "rank 2 lane 0\n"
        "  recv 0 pull in[0.0] -> out[0.0]\n");
}

/// Everything that the grammar has, in the writer's own layout.
constexpr const char* kEverything =
    "schedule two-shot_2 broadcast ranks 3 root 1 caller 2 units 4 lanes 2 input 1 output 1 scratch 7\n"
    "rank 0 lane 0\n"
    "  in[0.1+2] + recv 1 [0.0+2] + wait 2 -> out[0.1+2], scratch[6.3], send 1 [3.2], signal 2 finish\n"
    "  recv 1 pull in[0.1] -> send 2 push scratch[5.0+4]\n"
    "  wait 1\n"
    "  -> signal 1\n"
    "  nothing\n"
    "  nothing finish\n"
    "  in[0.0] finish\n"
    "  recv 1 [0.1+0] -> send 1 pull out[0.0+0]\n"
    "rank 0 lane 1\n"
    "rank 1 idle\n"
    "rank 2 lane 0\n"
    "rank 2 lane 1\n"
    "  in[0.0] -> out[0.0]\n";

TEST_CASE("every form is written as it was read") {
  CHECK(to_text(schedule_of(kEverything)) == kEverything);
  const Schedule s = schedule_of(kEverything);
  CHECK(s.algorithm == "two-shot_2");
  CHECK(s.request == Request{Collective::kBroadcast, 3, 1, 2});
  CHECK(s.shape == Shape{1, 1, 7, 4, 2});
  CHECK(s.ranks[1].lanes.empty());
  const LaneProgram& lane = s.ranks[0].lanes[0];
  CHECK(lane.sinks(lane.steps[1])[0] == Endpoint{Place::kPeer, Direct::kPush, Place::kScratch, false, 2, 5, 0, 4});
  CHECK(lane.sinks(lane.steps[3])[0] == Endpoint{Place::kPeer, Direct::kNone, Place::kInput, false, 1, 0, 0, 0});
}

TEST_CASE("one rank's part is written alone") {
  const Schedule s = schedule_of(kEverything);
  CHECK(to_text(s.ranks[2], 2) == "rank 2 lane 0\nrank 2 lane 1\n  in[0.0] -> out[0.0]\n");
  CHECK(to_text(s.ranks[1], 1) == "rank 1 idle\n");
}

TEST_CASE("blanks, empty lines and comments mean nothing") {
  CHECK(schedule_of(
            "# a comment\n\nschedule - all_reduce ranks 1 units 1 lanes 1 input 1 output 1 scratch 0 # one rank\r\n"
            "rank 0 lane 0\n\tin [ 0 . 0 ]->out[0.0]finish") ==
        schedule_of("schedule - all_reduce ranks 1 units 1 lanes 1 input 1 output 1 scratch 0\n"
                    "rank 0 lane 0\n  in[0.0] -> out[0.0] finish\n"));
}

constexpr const char* kHead = "schedule x all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0\n";

std::string error_in_step(const std::string& step) {
  return parse_error(fmt::format("{}rank 0 lane 0\n{}\n", kHead, step));
}

TEST_CASE("errors name the line, what was found and what was expected") {
  CHECK_THAT(parse_error(""),
             Equals("schedule text, line 1: expected a line that starts with \"schedule\", found the end of the line"));
  CHECK_THAT(parse_error("\nrank 0 lane 0\n"),
             Contains("line 2: expected \"schedule\" and the schedule's name") && Contains("found \"rank\""));
  CHECK_THAT(parse_error("schedule x all_reverse ranks 2"),
             Contains("line 1: expected a collective such as all_reduce, found \"all_reverse\""));
  CHECK_THAT(parse_error("schedule x all_reduce units 2"),
             Contains("expected \"ranks\"") && Contains("found \"units\""));
  CHECK_THAT(parse_error("schedule x all_reduce ranks two"),
             Contains("expected the number after \"ranks\" (a whole number), found \"two\""));
  CHECK_THAT(parse_error(std::string(kHead) + kHead), Contains("line 2: a second \"schedule\" line"));
  CHECK_THAT(parse_error(std::string(kHead) + "in[0.0]\n"),
             Contains("line 2: expected \"rank 0 lane 0\" or \"rank 0 idle\", found \"in\""));
  CHECK_THAT(parse_error(std::string(kHead) + "rank 1 lane 0\n"), Contains("expected rank number 0, found \"1\""));
  CHECK_THAT(parse_error(std::string(kHead) + "rank 0 lane 1\n"), Contains("expected lane number 0, found \"1\""));
  CHECK_THAT(parse_error(std::string(kHead) + "rank 0 lane 0\n"),
             Contains("line 3: expected \"rank 1 lane 0\" or \"rank 1 idle\", found the end"));
  CHECK_THAT(parse_error(std::string(kHead) + "rank 0 idle\nrank 1 idle\nrank 2 idle\n"),
             Contains("line 4: more ranks or lanes than declared"));
  CHECK_THAT(parse_error(std::string(kHead) + "rank 0 idle\n in[0.0]\n"),
             Contains("line 3: expected \"rank 1 lane 0\""));
}

TEST_CASE("errors in steps") {
  CHECK_THAT(error_in_step("from[0.0] -> out[0.0]"),
             Equals("schedule text, line 3: expected a source (in[..], out[..], scratch[..], recv RANK or wait RANK), "
                    "found \"from\""));
  CHECK_THAT(error_in_step("in[0.0] -> recv 1"), Contains("expected a sink") && Contains("found \"recv\""));
  CHECK_THAT(error_in_step("in[0.0] out[0.0]"), Contains("\"finish\" or the end of the line, found \"out\""));
  CHECK_THAT(error_in_step("in[0.0] -> out[0.0] finnish"), Contains("found \"finnish\""));
  CHECK_THAT(error_in_step("in 0.0"), Contains("expected \"[\" before the block, found \"0\""));
  CHECK_THAT(error_in_step("in[0,0]"), Contains("expected \".\" between block and unit, found \",\""));
  CHECK_THAT(error_in_step("in[0.0"), Contains("expected \"]\" after the units, found the end of the line"));
  CHECK_THAT(error_in_step("in[0.-1]"), Contains("expected a unit (a whole number), found \"-\""));
  CHECK_THAT(error_in_step("recv"), Contains("expected a rank (a whole number), found the end of the line"));
  CHECK_THAT(error_in_step("recv 1 pull 3"),
             Contains("expected the place at the peer (in, out or scratch), found \"3\""));
  CHECK_THAT(error_in_step("nothing in[0.0]"), Contains("found \"in\""));
  CHECK_THAT(error_in_step("in[0.0] -> \x01\x02"), Contains("found \"\\x01\""));
}

TEST_CASE("hostile sizes are refused at once, and never take memory") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THAT(parse_error("schedule x all_reduce ranks 1000000 units 1"),
             Contains("\"1000000\" is too large; expected at most 131072"));
  CHECK_THAT(parse_error("schedule x all_reduce ranks 99999999999999999999999999 units"), Contains("is too large"));
  CHECK_THAT(parse_error("schedule x all_reduce ranks 131072 units 4294967295"), Contains("is too large"));
  // As many as are allowed are declared only; nothing is made of them.
  CHECK_THAT(
      parse_error(
          "schedule x all_reduce ranks 131072 units 1048576 lanes 1024 input 131072 output 131072 scratch 131072\n"),
      Contains("line 2: expected \"rank 0 lane 0\""));
  CHECK_THAT(error_in_step("in[99999999999.0]"), Contains("a block of \"99999999999\" is too large"));
  CHECK_THAT(error_in_step("in[0.1048576]"), Contains("a unit of \"1048576\" is too large; expected at most 1048575"));
  CHECK_THAT(error_in_step("recv " + std::string(100000, '9')),
             Contains("a rank of \"9999999999999999999999999999999999999999...\" is too large"));
  CHECK_THAT(parse_error(std::string(kTextBytesMax + 1, ' ')), Contains("is too long"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("a verifier given absurd sizes refuses them") {
  Schedule s = schedule_of(fmt::format("{}rank 0 idle\nrank 1 idle\n", kHead));
  s.shape.units = kUnitsMax;
  s.shape.scratch_blocks = ~0u;
  CHECK_THAT(complaint(s), Contains("units in all buffers of all lanes together"));
  s.request.ranks = 1 << 30;
  CHECK_THAT(complaint(s), Contains("1073741824 ranks; expected 1 to 1024"));
}

TEST_CASE("damaged text is refused or read, never worse; what is read is written back alike") {
  const std::string good = text_of("tree", {Collective::kAllReduce, 5});
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int damage = 0; damage < 1 + i % 3; ++damage) {
      const std::size_t at = random() % text.size();
      constexpr std::string_view kSigns = "0123456789[].,+-> \n#rsx";
      switch (random() % 3) {
        case 0: text[at] = kSigns[random() % kSigns.size()]; break;
        case 1: text.erase(at, 1 + random() % 20); break;
        default: text.insert(at, text.substr(random() % text.size(), 1 + random() % 20)); break;
      }
    }
    const Result<Schedule> read = parse(text);
    if (!read.ok()) {
      ++refused;
      CHECK_THAT(read.error().message, Contains("schedule text, line "));
      continue;
    }
    const Result<Schedule> again = parse(to_text(read.value()));
    REQUIRE(again.ok());
    REQUIRE(again.value() == read.value());
    (void)verify(read.value(), {.direct = true});
  }
  CHECK(refused > 1000);
}

}  // namespace
}  // namespace tutti::schedule
