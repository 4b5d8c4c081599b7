// Where sums are rounded: schedules whose partial messages are wrong, by hand and of every algorithm.
#include "algorithm/algorithm.h"
#include "schedule/builder.h"
#include "schedules.h"

#include <algorithm>

namespace tutti::schedule {
namespace {

using Catch::Matchers::Contains;

/// 2 adds to 3's, 1 to that, 0 finishes and tells 1.
constexpr const char* kLine = R"(
schedule line all_reduce ranks 4 units 1 lanes 1 input 1 output 1 scratch 1
rank 0 lane 0
  recv 1 partial + in[0.0] -> out[0.0], send 1, send 2, send 3 finish
rank 1 lane 0
  recv 2 partial + in[0.0] -> send 0 partial
  recv 0 -> out[0.0]
rank 2 lane 0
  recv 3 + in[0.0] -> send 1 partial
  recv 0 -> out[0.0]
rank 3 lane 0
  in[0.0] -> send 2
  recv 0 -> out[0.0]
)";

std::string line_with(const std::string& from, const std::string& to) {
  std::string text = kLine;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}
std::string line_with(const std::string& from, const std::string& to, const std::string& from_2,
                      const std::string& to_2) {
  std::string text = line_with(from, to);
  const std::size_t at = text.find(from_2);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from_2.size(), to_2);
}

TEST_CASE("a chain whose sums under way are partial messages rounds once") {
  CHECK(complaint(kLine) == "");
  CHECK(complaint(kLine, {.wide_wire = true}) == "");
  CHECK(complaint(kLine, {.in_place = true, .wide_wire = true}) == "");
}

TEST_CASE("a partial sum in a narrow message is refused where a wide wire is demanded, and only there") {
  const std::string text = line_with("recv 2 partial", "recv 2", "send 1 partial", "send 1");
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, {.wide_wire = true}), Contains("rank 2, lane 0, step 0") &&
                                                       Contains("sends the sum of 2 ranks, not finished, to rank 1") &&
                                                       Contains("expected \"send 1 partial\""));
}

TEST_CASE("a finished value or one rank's data is never a partial sum") {
  CHECK_THAT(complaint(line_with("send 3 finish", "send 3 partial finish", "recv 0 -> out[0.0]\nrank 2",
                                 "recv 0 -> out[0.0]\nrank 2")),
             Contains("rank 3, lane 0, step 1") && Contains("partial where it is sent and not here"));
  std::string finished = line_with("send 3 finish", "send 3 partial finish");
  finished.replace(finished.rfind("recv 0 ->"), 9, "recv 0 partial ->");
  CHECK_THAT(complaint(finished), Contains("sends a finished value to rank 3 as a partial sum"));
  CHECK_THAT(complaint(line_with("recv 3 +", "recv 3 partial +", "send 2\n  recv", "send 2 partial\n  recv")),
             Contains("rank 3, lane 0, step 0") && Contains("sends one rank's data to rank 2 as a partial sum"));
}

TEST_CASE("the ends of a message must agree that it is partial") {
  CHECK_THAT(complaint(line_with("recv 2 partial", "recv 2")), Contains("rank 1, lane 0, step 0") &&
                                                                   Contains("partial where it is sent and not here") &&
                                                                   Contains("rank 2, lane 0, step 0"));
}

TEST_CASE("a partial sum that rests in a buffer is refused where a wide wire is demanded") {
  const std::string text = line_with("recv 2 partial + in[0.0] -> send 0 partial",
                                     "recv 2 partial + in[0.0] -> scratch[0.0]\n  scratch[0.0] -> send 0 partial");
  CHECK(complaint(text) == "");
  CHECK_THAT(complaint(text, {.wide_wire = true}),
             Contains("rank 1, lane 0, step 0") && Contains("keeps the sum of 3 ranks, not finished, in scratch[0.0]"));
}

TEST_CASE("partial stands at messages with data, in collectives that add up") {
  const char* const copy = R"(
schedule copy broadcast ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0], send 1 partial
rank 1 lane 0
  recv 0 partial -> out[0.0]
)";
  CHECK_THAT(complaint(copy), Contains("partial in broadcast"));
  for (const char* const bad : {"wide place", "wide pull", "wide signal"}) {
    Schedule s = schedule_of(kLine);
    LaneProgram& lane = s.ranks[3].lanes[0];
    if (bad[5] == 'p' && bad[6] == 'l') lane.endpoints[0].wide = true;
    if (bad[5] == 'p' && bad[6] == 'u') {
      Endpoint& from = lane.endpoints[1];
      from = pull(2, input({0}));
      from.wide = true;
      s.ranks[2].lanes[0].endpoints[0] = pull(3, input({0}));
      s.ranks[2].lanes[0].endpoints[0].wide = true;
    }
    if (bad[5] == 's') {
      step(lane).to(signal(2));
      lane.endpoints.back().wide = true;
      step(s.ranks[2].lanes[0]).from(signal(3));
      s.ranks[2].lanes[0].endpoints.back().wide = true;
    }
    INFO(bad);
    CHECK_THAT(complaint(s), Contains("expected it at messages only"));
  }
}

template <class Visitor>
void for_each_sum(Visitor visit) {
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    for (const Collective c : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      for (int ranks = 2; ranks <= 9; ++ranks) {
        for (const int root : {0, ranks - 1}) {
          const Request request{c, ranks, root, 0};
          if (row.supports(request)) visit(row, algorithm::make_schedule(row, request));
        }
      }
    }
  }
}

/// The other end of a message: the same number among the messages of its channel.
Endpoint* other_end(Schedule& s, std::size_t rank, std::size_t lane, std::size_t endpoint, bool source) {
  const auto is_end = [&](const LaneProgram& program, std::size_t at, bool wanted_source, std::size_t peer) {
    const auto holds = [&](const Step& step) {
      const std::size_t first = wanted_source ? step.first_source : step.first_sink;
      const std::size_t count = wanted_source ? step.source_count : step.sink_count;
      return first <= at && at < first + count;
    };
    return program.endpoints[at].place == Place::kPeer && program.endpoints[at].peer == peer &&
           std::any_of(program.steps.begin(), program.steps.end(), holds);
  };
  const LaneProgram& here = s.ranks[rank].lanes[lane];
  const std::size_t peer = here.endpoints[endpoint].peer;
  std::size_t number = 0;
  for (std::size_t i = 0; i < endpoint; ++i) number += is_end(here, i, source, peer);
  LaneProgram& there = s.ranks[peer].lanes[lane];
  for (std::size_t i = 0; i < there.endpoints.size(); ++i) {
    if (is_end(there, i, !source, rank) && number-- == 0) return &there.endpoints[i];
  }
  return nullptr;
}

TEST_CASE("of every algorithm that claims it, each message changed between partial and not is refused") {
  int refused = 0;
  for_each_sum([&](const algorithm::Algorithm& row, const Schedule& s) {
    if (!row.wide_wire) return;
    INFO(to_text(s));
    REQUIRE(complaint(s, {.wide_wire = true}) == "");
    for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
      for (std::size_t lane = 0; lane < s.ranks[rank].lanes.size(); ++lane) {
        for (const Step& step : s.ranks[rank].lanes[lane].steps) {
          for (std::size_t i = step.first_sink; i < step.first_sink + step.sink_count; ++i) {
            const Endpoint& e = s.ranks[rank].lanes[lane].endpoints[i];
            if (e.place != Place::kPeer || e.direct != Direct::kNone) continue;
            Schedule mutant = s;
            Endpoint& sent = mutant.ranks[rank].lanes[lane].endpoints[i];
            sent.wide = !sent.wide;
            CHECK(complaint(mutant, {.wide_wire = true}) != "");
            Endpoint* received = other_end(mutant, rank, lane, i, false);
            REQUIRE(received != nullptr);
            received->wide = sent.wide;
            CHECK(complaint(mutant, {.wide_wire = true}) != "");
            refused += 2;
          }
        }
      }
    }
  });
  CHECK(refused > 500);
}

TEST_CASE("algorithms that do not claim a wide wire round on the way") {
  int rounded = 0;
  for_each_sum([&](const algorithm::Algorithm& row, const Schedule& s) {
    if (row.wide_wire || s.request.ranks < 4) return;
    CHECK_THAT(complaint(s, {.wide_wire = true}), Contains("not finished"));
    ++rounded;
  });
  CHECK(rounded > 0);
}

TEST_CASE("partial messages survive the text form, with units too") {
  LaneProgram lane;
  step(lane).from(partial(1, 2)).from(input({0, 2, 2})).to(partial(3, 2));
  CHECK(to_text(lane, lane.steps[0]) == "recv 1 partial [0.0+2] + in[0.2+2] -> send 3 partial [0.0+2]");
  CHECK(parse(to_text(schedule_of(kLine))).value() == schedule_of(kLine));
  const auto pulled = parse(line_with("send 0 partial", "send 0 partial pull in[0.0]"));
  REQUIRE_FALSE(pulled.ok());
  CHECK_THAT(pulled.error().message, Contains("found \"pull\""));
}

}  // namespace
}  // namespace tutti::schedule
