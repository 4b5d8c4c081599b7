// How calls are cut for the way through host memory.
#include "comm/staged_rounds.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <vector>

namespace {

using namespace tutti;
using namespace tutti::comm;

constexpr std::size_t kPartBytes = 4096;
std::int32_t memory[1 << 16];

CallArgs call(Collective collective, std::size_t count, int root = 0, std::size_t in = 0, std::size_t out = 1 << 15) {
  CallArgs args;
  args.collective = collective;
  args.send = memory + in;
  args.receive = memory + out;
  args.count = count;
  args.type = DataType::kInt32;
  args.root = root;
  return args;
}

std::vector<StagedRound> all_rounds(const std::vector<CallArgs>& calls, int ranks, int rank) {
  StagedRounds rounds(calls, ranks, rank, kPartBytes);
  std::vector<StagedRound> all;
  while (!rounds.is_done()) all.push_back(rounds.next());
  return all;
}

}  // namespace

TEST_CASE("a long call is cut into parts that cover it, alike on every rank", "[staged]") {
  const auto collective =
      GENERATE(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast, Collective::kAllGather,
               Collective::kReduceScatter, Collective::kAllToAll, Collective::kGather, Collective::kScatter);
  const std::size_t count = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{1023}, std::size_t{5000});
  const int ranks = 3;
  std::vector<std::size_t> cuts;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::size_t> here;
    std::size_t sum = 0;
    for (const StagedRound& round : all_rounds({call(collective, count, 1)}, ranks, rank)) {
      CHECK(round.bytes <= 2 * kPartBytes + 2 * 256);
      for (const StagedPart& part : round.parts) {
        CHECK(std::max(part.input.all_bytes(), part.output.all_bytes()) <= kPartBytes);
        if (part.input.count != 0) CHECK(part.args.send == memory + sum);
        if (part.output.count != 0) CHECK(part.args.receive == memory + (1 << 15) + sum);
        CHECK((part.args.whole_count == 0 || part.args.whole_count == count));
        here.push_back(part.args.count);
        sum += part.args.count;
      }
      CHECK(round.is_last == (sum == count));
    }
    CHECK(sum == count);
    if (rank == 0) cuts = here;
    CHECK(here == cuts);
  }
  if (count == 1) CHECK(cuts == std::vector<std::size_t>{1});
}

TEST_CASE("short collectives share a round, but not with one that reads their outputs", "[staged]") {
  std::vector<CallArgs> calls;
  for (std::size_t i = 0; i < 10; ++i) calls.push_back(call(Collective::kAllReduce, 100, 0, 100 * i, 20000 + 100 * i));
  // 4096 bytes of inputs are ten calls of 400.
  CHECK(all_rounds(calls, 2, 0).size() == 1);
  calls.push_back(call(Collective::kAllReduce, 100, 0, 1000, 21000));
  CHECK(all_rounds(calls, 2, 0).size() == 2);
  calls.resize(2);
  calls[1].send = calls[0].receive;
  const auto rounds = all_rounds(calls, 2, 0);
  REQUIRE(rounds.size() == 2);
  CHECK(!rounds[0].waits);
  CHECK(rounds[1].waits);
}

TEST_CASE("sends to one rank keep their order, whatever else is in the group", "[staged]") {
  const std::vector<CallArgs> calls{call(Collective::kSend, 2500, 1), call(Collective::kReceive, 10, 2),
                                    call(Collective::kSend, 10, 1), call(Collective::kSend, 10, 2),
                                    call(Collective::kAllReduce, 10)};
  std::vector<std::size_t> to_first;
  for (const StagedRound& round : all_rounds(calls, 3, 0)) {
    std::size_t here = 0;
    for (const StagedPart& part : round.parts) {
      if (part.args.collective != Collective::kSend || part.args.root != 1) continue;
      to_first.push_back(part.args.count);
      ++here;
    }
    CHECK(here <= 1);
  }
  CHECK(to_first == std::vector<std::size_t>{1024, 1024, 452, 10});
}

TEST_CASE("with sends in the group parts of collectives are in the same rounds on every rank", "[staged]") {
  // Of the root's outputs, 2400 bytes each, one is in a round, of the other's inputs three.
  std::vector<std::vector<std::size_t>> by_rank;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<CallArgs> calls(3, call(Collective::kGather, 300, 0));
    const Collective side = rank == 0 ? Collective::kReceive : Collective::kSend;
    for (int i = 0; i < 2; ++i) calls.push_back(call(side, 10, 1 - rank));
    std::vector<std::size_t>& gathers = by_rank.emplace_back();
    for (const StagedRound& round : all_rounds(calls, 2, rank)) {
      const auto is_gather = [](const StagedPart& part) { return part.args.collective == Collective::kGather; };
      gathers.push_back(static_cast<std::size_t>(std::ranges::count_if(round.parts, is_gather)));
    }
  }
  CHECK(by_rank[0] == by_rank[1]);
}

TEST_CASE("what stays where it is has parts as ever, and no memory", "[staged]") {
  const std::vector<CallArgs> calls = {call(Collective::kSend, 2500, 1), call(Collective::kReceive, 2500, 1),
                                       call(Collective::kSend, 2500, 2), call(Collective::kAllReduce, 100)};
  StagedRounds rounds(calls, 3, 0, kPartBytes);
  rounds.leave_in_place({false, true, false}, false);
  const std::vector<StagedRound> as_ever = all_rounds(calls, 3, 0);
  for (const StagedRound& wanted : as_ever) {
    const StagedRound round = rounds.next();
    REQUIRE(round.parts.size() == wanted.parts.size());
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < round.parts.size(); ++i) {
      const StagedPart& part = round.parts[i];
      CHECK(part.args.count == wanted.parts[i].args.count);
      CHECK(part.args.whole_count == wanted.parts[i].args.whole_count);
      CHECK(part.args.send == wanted.parts[i].args.send);
      CHECK(part.is_in_place == (is_point_to_point(part.args) && part.args.root == 1));
      const auto lines = [](std::size_t of) { return (of + 255) / 256 * 256; };
      if (!part.is_in_place) bytes += lines(part.input.all_bytes()) + lines(part.output.all_bytes());
    }
    CHECK(round.bytes == bytes);
  }
  CHECK(rounds.is_done());
}

TEST_CASE("what MPI writes in its place waits for those before it that read or write there", "[staged]") {
  const auto shot = [](CallArgs args) {
    args.shot = Shot::kFirst;
    return args;
  };
  const CallArgs first = shot(call(Collective::kReduceScatter, 100, 0, 0, 20000));
  const auto waits = [&](const CallArgs& second, bool in_place) {
    const std::vector<CallArgs> calls{first, second};
    StagedRounds rounds(calls, 2, 1, kPartBytes);
    if (in_place) rounds.leave_in_place({true, false}, true);
    CHECK(!rounds.next().waits);
    return rounds.next().waits;
  };
  // The first call's own block, elements 100 to 199, is added to what came when that has come.
  const CallArgs onto_input = shot(call(Collective::kBroadcast, 100, 0, 100, 100));
  CHECK(waits(onto_input, true));
  CHECK(!waits(onto_input, false));
  const CallArgs onto_output = call(Collective::kAllGather, 50, 0, 3000, 20050);
  CHECK(waits(onto_output, true));
  CHECK(!waits(onto_output, false));
  CHECK(!waits(shot(call(Collective::kBroadcast, 100, 0, 200, 200)), true));
}
