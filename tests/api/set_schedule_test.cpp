// tuttiCommSetSchedule: what is right runs, what is wrong is refused and never runs.
#include "in_process.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using tutti::test::check_invalid;
using tutti::test::check_refused;
using tutti::test::check_usable;
using tutti::test::Ranks;

namespace {

constexpr const char* kExchange = R"(
schedule exchange all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1
  in[0.0] + recv 1 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
  recv 0 + in[0.0] -> out[0.0] finish
)";

/// Rank 1 adds up, by pull and push, in two halves.
constexpr const char* kDirect = R"(
schedule halves all_reduce ranks 2 units 2 lanes 2 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1 pull in[0.0]
  in[0.1] -> send 1 pull in[0.1]
  recv 1 push out[0.0] -> out[0.0]
  recv 1 push out[0.1] -> out[0.1]
rank 0 lane 1
  in[0.0+2] -> send 1 pull in[0.0+2]
  recv 1 push out[0.0+2] -> out[0.0+2]
rank 1 lane 0
  recv 0 pull in[0.0] + in[0.0] -> out[0.0], send 0 push out[0.0] finish
  recv 0 pull in[0.1] + in[0.1] -> out[0.1], send 0 push out[0.1] finish
rank 1 lane 1
  recv 0 pull in[0.0+2] + in[0.0+2] -> out[0.0+2], send 0 push out[0.0+2] finish
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void set_all(const Ranks& ranks, const char* text) {
  for (int r = 0; r < ranks.count(); ++r) {
    const ncclResult_t result = tuttiCommSetSchedule(ranks[r], text, nullptr);
    INFO(ncclGetLastError(nullptr));
    REQUIRE(result == ncclSuccess);
  }
}

int input_of(int rank, std::size_t i) { return static_cast<int>(i * 7 % 1009) * (rank + 1) + rank; }

/// One all_reduce of ints by all ranks; the outputs are poisoned first and right afterwards if it succeeds.
ncclResult_t all_reduce(const Ranks& ranks, std::size_t count, bool in_place) {
  std::vector<std::vector<int>> in, out;
  for (int r = 0; r < ranks.count(); ++r) {
    in.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) in.back()[i] = input_of(r, i);
    out.emplace_back(in_place ? in.back() : std::vector<int>(count, -77777));
  }
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < ranks.count(); ++r) {
    int* receive = out[static_cast<std::size_t>(r)].data();
    const int* send = in_place ? receive : in[static_cast<std::size_t>(r)].data();
    CHECK(ncclAllReduce(send, receive, count, ncclInt, ncclSum, ranks[r], nullptr) == ncclSuccess);
  }
  const ncclResult_t result = ncclGroupEnd();
  if (result != ncclSuccess) return result;
  for (const std::vector<int>& values : out) {
    bool right = true;
    for (std::size_t i = 0; i < count; ++i) {
      int sum = 0;
      for (int r = 0; r < ranks.count(); ++r) sum += input_of(r, i);
      right = right && values[i] == sum;
    }
    CHECK(right);
  }
  return result;
}

std::string explain(ncclComm_t comm, tuttiCollective_t collective, int root = 0) {
  std::string text(std::size_t{1} << 16, '\0');
  REQUIRE(tuttiExplain(comm, collective, 1000, ncclInt, ncclSum, root, text.data(), text.size(), nullptr) ==
          ncclSuccess);
  return text.c_str();
}

}  // namespace

TEST_CASE("a schedule that is set is what runs, at every size, in and out of place") {
  const Ranks ranks(2);
  for (const char* text : {kExchange, kDirect}) {
    set_all(ranks, text);
    CHECK_THAT(explain(ranks[0], tuttiAllReduce), Catch::Contains("set by tuttiCommSetSchedule"));
    CHECK_THAT(explain(ranks[1], tuttiAllGather), !Catch::Contains("set by"));
    for (const std::size_t count : {1u, 3u, 100u, 70001u}) {
      INFO("count " << count << text);
      for (const bool in_place : {false, true}) CHECK(all_reduce(ranks, count, in_place) == ncclSuccess);
    }
  }
  set_all(ranks, nullptr);
  CHECK_THAT(explain(ranks[0], tuttiAllReduce), !Catch::Contains("set by"));
  check_usable(ranks);
}

TEST_CASE("a rank that only hands messages on does so unit by unit, however long they are") {
  const Ranks ranks(3);
  set_all(ranks, R"(
schedule relay broadcast ranks 3 root 0 units 3 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0+3] -> out[0.0+3], send 1 [0.0+3]
  in[0.0] -> send 1
  in[0.1] -> send 1
  in[0.2] -> send 1
rank 1 lane 0
  recv 0 [0.0+3] -> out[0.0+3]
  recv 0 -> send 2
  recv 0 [0.1] -> send 2 [0.1]
  recv 0 [0.2] -> send 2 [0.2]
rank 2 lane 0
  recv 1 -> out[0.0]
  recv 1 -> out[0.1]
  recv 1 -> out[0.2]
)");
  for (const std::size_t count : {1u, 2u, 40u, 50u, 1000u, 70001u}) {
    std::vector<int> in(count);
    for (std::size_t i = 0; i < count; ++i) in[i] = input_of(0, i);
    std::vector<std::vector<int>> out(3, std::vector<int>(count, -77777));
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 3; ++r) {
      CHECK(ncclBroadcast(in.data(), out[static_cast<std::size_t>(r)].data(), count, ncclInt, 0, ranks[r], nullptr) ==
            ncclSuccess);
    }
    REQUIRE(ncclGroupEnd() == ncclSuccess);
    INFO("count " << count);
    for (const auto& values : out) CHECK(values == in);
  }
  CHECK_THAT(explain(ranks[0], tuttiBroadcast, 0), Catch::Contains("set by"));
  CHECK_THAT(explain(ranks[0], tuttiBroadcast, 1), !Catch::Contains("set by"));
}

TEST_CASE("what tuttiExplain prints can be set again") {
  const Ranks ranks(3);
  std::string text = explain(ranks[0], tuttiAllReduce);
  text.erase(0, text.find("\nschedule ") + 1);
  set_all(ranks, text.c_str());
  std::string again = explain(ranks[2], tuttiAllReduce);
  CHECK(again.substr(again.find("\nschedule ") + 1) == text);
  CHECK(all_reduce(ranks, 5000, false) == ncclSuccess);
}

TEST_CASE("factors are applied once") {
  const Ranks ranks(2);
  set_all(ranks, kDirect);
  ncclRedOp_t ops[2];
  float sums[2][1000];
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    float factor = r == 0 ? 3.0f : 5.0f;
    REQUIRE(ncclRedOpCreatePreMulSum(&ops[r], &factor, ncclFloat, ncclScalarHostImmediate, ranks[r]) == ncclSuccess);
    for (int i = 0; i < 1000; ++i) sums[r][i] = static_cast<float>(i + r);
    CHECK(ncclAllReduce(sums[r], sums[r], 1000, ncclFloat, ops[r], ranks[r], nullptr) == ncclSuccess);
  }
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  for (const auto& sum : sums) {
    for (int i = 0; i < 1000; ++i) REQUIRE(sum[i] == static_cast<float>(3 * i + 5 * (i + 1)));
  }
}

TEST_CASE("ranks that have set different schedules are told") {
  const Ranks ranks(2);
  REQUIRE(tuttiCommSetSchedule(ranks[1], kExchange, nullptr) == ncclSuccess);
  for (const std::size_t count : {1u, 1000u}) {
    check_refused(all_reduce(ranks, count, false), ncclInvalidUsage, {"by a set schedule (", "on rank 1", "on rank 0"});
  }
  REQUIRE(tuttiCommSetSchedule(ranks[0], kDirect, nullptr) == ncclSuccess);
  check_refused(all_reduce(ranks, 1000, false), ncclInvalidUsage, {"by a set schedule (", "on rank 1", "on rank 0"});
  // Blanks and comments make no difference.
  set_all(ranks, kExchange);
  REQUIRE(tuttiCommSetSchedule(ranks[0], fmt::format("# mine\n{}", kExchange).c_str(), nullptr) == ncclSuccess);
  CHECK(all_reduce(ranks, 1000, false) == ncclSuccess);
}

TEST_CASE("a schedule is used in the forms in which it is right") {
  const Ranks ranks(2);
  int forms = -1;
  REQUIRE(tuttiCommSetSchedule(ranks[0], kExchange, &forms) == ncclSuccess);
  CHECK(forms == (tuttiScheduleOutOfPlace | tuttiScheduleInPlace));
  REQUIRE(tuttiCommSetSchedule(ranks[0], kDirect, &forms) == ncclSuccess);
  CHECK(forms == 15);
  // In place the copy overwrites what the next step reads, and would be multiplied twice.
  const std::string copies = replaced(kExchange, "  in[0.0] -> send 1\n", "  in[0.0] -> out[0.0], send 1\n");
  for (int r = 0; r < 2; ++r) REQUIRE(tuttiCommSetSchedule(ranks[r], copies.c_str(), &forms) == ncclSuccess);
  CHECK(forms == tuttiScheduleOutOfPlace);
  CHECK(all_reduce(ranks, 1000, false) == ncclSuccess);
  check_refused(all_reduce(ranks, 1000, true), ncclInvalidUsage,
                {"\"exchange\"", "not right in place", "rank 0, lane 0, step 1", "PreMulSum"});
  CHECK(all_reduce(ranks, 1000, false) == ncclSuccess);
}

TEST_CASE("where some ranks are in place and some are not, a schedule has to be right both ways") {
  // Right where each rank's input lies in its output.
  constexpr const char* kFromOutputs = R"(
schedule outputs all_gather ranks 2 units 1 lanes 1 input 1 output 2 scratch 0
rank 0 lane 0
  out[0.0] -> send 1
  recv 1 -> out[1.0]
rank 1 lane 0
  out[1.0] -> send 0
  recv 0 -> out[0.0]
)";
  const std::string both = replaced(replaced(kFromOutputs, "  out[0.0] -> send 1", "  in[0.0] -> out[0.0], send 1"),
                                    "  out[1.0] -> send 0", "  in[0.0] -> out[1.0], send 0");
  const Ranks ranks(2);
  const int in_place = GENERATE(0, 1);
  constexpr std::size_t kCount = 5000;
  std::vector<int> out[2];
  const std::vector<int> in[2] = {std::vector<int>(kCount, 7), std::vector<int>(kCount, 8)};
  const auto gather = [&](bool all) {
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 2; ++r) {
      out[r].assign(2 * kCount, -1);
      int* const block = out[r].data() + static_cast<std::size_t>(r) * kCount;
      const bool here = r == in_place || all;
      if (here) std::ranges::copy(in[r], block);
      const int* const send = here ? block : in[r].data();
      CHECK(ncclAllGather(send, out[r].data(), kCount, ncclInt, ranks[r], nullptr) == ncclSuccess);
    }
    return ncclGroupEnd();
  };
  set_all(ranks, kFromOutputs);
  check_refused(gather(false), ncclInvalidUsage, {"\"outputs\"", "in place on some ranks", "rank 0, lane 0"});
  std::vector<int> wanted = in[0];
  wanted.insert(wanted.end(), in[1].begin(), in[1].end());
  const auto is_wanted = [&](const std::vector<int>& values) { return values == wanted; };
  REQUIRE(gather(true) == ncclSuccess);
  CHECK(std::ranges::all_of(out, is_wanted));
  set_all(ranks, both.c_str());
  REQUIRE(gather(false) == ncclSuccess);
  CHECK(std::ranges::all_of(out, is_wanted));
}

TEST_CASE("a schedule that is wrong is refused, and the one before stays") {
  const Ranks ranks(2);
  set_all(ranks, kExchange);
  const auto refuse = [&](const std::string& text, ncclResult_t code, const std::vector<std::string>& parts) {
    INFO(text);
    check_refused(tuttiCommSetSchedule(ranks[0], text.c_str(), nullptr), code, parts);
  };
  refuse(replaced(kExchange, "recv 0 + in[0.0]", "in[0.0]"), ncclInvalidUsage,
         {"tuttiCommSetSchedule", "rank 0, lane 0, step 0", "sends message number 1 to rank 1"});
  refuse(replaced(kExchange, " finish", ""), ncclInvalidUsage, {"rank 0, lane 0, step 1", "expected finish"});
  refuse(replaced(kExchange, "in[0.0] -> send 0", "in[0.0] -> sned 0"), ncclInvalidArgument, {"line 7", "\"sned\""});
  refuse(
      "schedule solo all_reduce ranks 1 units 1 lanes 1 input 1 output 1 scratch 0\nrank 0 lane 0\n  in[0.0] -> "
      "out[0.0] finish\n",
      ncclInvalidUsage, {"is for 1 ranks, but the communicator has 2"});
  refuse(
      "schedule p send ranks 2 root 1 caller 0 units 1 lanes 1 input 1 output 1 scratch 0\nrank 0 lane 0\n  in[0.0] -> "
      "send 1\n"
      "rank 1 lane 0\n  recv 0 -> out[0.0]\n",
      ncclInvalidUsage, {"for send cannot be set"});
  refuse(replaced(kExchange, "lanes 1", "lanes 3"), ncclInvalidArgument, {"line"});
  refuse("", ncclInvalidArgument, {"expected a line that starts with \"schedule\""});
  refuse("\x01\xff\n", ncclInvalidArgument, {"line 1"});
  check_invalid(tuttiCommSetSchedule(nullptr, kExchange, nullptr), {"comm is NULL"});
  REQUIRE(ncclGroupStart() == ncclSuccess);
  refuse(kExchange, ncclInvalidUsage, {"inside a group"});
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  CHECK_THAT(explain(ranks[0], tuttiAllReduce), Catch::Contains("schedule exchange"));
  CHECK(all_reduce(ranks, 1000, true) == ncclSuccess);
}

TEST_CASE("hostile sizes are refused before they cost anything") {
  const Ranks ranks(2);
  const auto refuse = [&](const char* from, const char* to, ncclResult_t code) {
    const std::string text = replaced(kExchange, from, to);
    INFO(text);
    CHECK(tuttiCommSetSchedule(ranks[0], text.c_str(), nullptr) == code);
  };
  refuse("ranks 2", "ranks 131072", ncclInvalidArgument);
  refuse("ranks 2", "ranks 99999999999999999999", ncclInvalidArgument);
  refuse("units 1", "units 1048576000", ncclInvalidArgument);
  refuse("lanes 1", "lanes 1024", ncclInvalidArgument);
  refuse("units 1 lanes 1 input 1 output 1 scratch 0", "units 1048576 lanes 1 input 1 output 1 scratch 131072",
         ncclInvalidUsage);
  refuse("scratch 0", "scratch 131072", ncclSuccess);  // unused: 131072 empty blocks are nothing yet
  set_all(ranks, replaced(kExchange, "scratch 0", "scratch 131072").c_str());
  check_refused(all_reduce(ranks, 1 << 20, false), ncclInvalidUsage, {"bytes of scratch", "declare fewer"});
}

TEST_CASE("a reproducible communicator takes sums in rank order only, made in one step") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comms[3];
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int rank = 0; rank < 3; ++rank) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.reproducible = 1;
    CHECK(tuttiCommInitRank(&comms[rank], 3, id, rank, &config) == ncclSuccess);
  }
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  const std::string star = R"(
schedule star reduce ranks 3 root 0 units 1 lanes 1 input 1 output 1 scratch 1
rank 0 lane 0
  in[0.0] + recv 1 + recv 2 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
rank 2 lane 0
  in[0.0] -> send 0
)";
  CHECK(tuttiCommSetSchedule(comms[0], star.c_str(), nullptr) == ncclSuccess);
  check_refused(tuttiCommSetSchedule(comms[0], replaced(star, "recv 1 + recv 2", "recv 2 + recv 1").c_str(), nullptr),
                ncclInvalidUsage, {"one after the other from rank 0 on"});
  const std::string nested =
      replaced(star, "in[0.0] + recv 1 + recv 2", "in[0.0] + recv 1 -> scratch[0.0]\n  scratch[0.0] + recv 2");
  check_refused(tuttiCommSetSchedule(comms[0], nested.c_str(), nullptr), ncclInvalidUsage,
                {"keeps the sum of 2 ranks, not finished"});
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
}

TEST_CASE("with a float32 wire, calls of narrow floats take no schedule that rounds on the way") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comms[3];
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int rank = 0; rank < 3; ++rank) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.wideWire = 1;
    CHECK(tuttiCommInitRank(&comms[rank], 3, id, rank, &config) == ncclSuccess);
  }
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  const std::string line = R"(
schedule line reduce ranks 3 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  recv 1 + in[0.0] -> out[0.0] finish
rank 1 lane 0
  recv 2 + in[0.0] -> send 0
rank 2 lane 0
  in[0.0] -> send 1
)";
  const std::string wide = replaced(replaced(line, "recv 1 +", "recv 1 partial +"), "-> send 0", "-> send 0 partial");
  const auto reduce = [&](const std::string& text, ncclDataType_t type) {
    for (ncclComm_t comm : comms) REQUIRE(tuttiCommSetSchedule(comm, text.c_str(), nullptr) == ncclSuccess);
    static float in[100], out[100];
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (ncclComm_t comm : comms) CHECK(ncclReduce(in, out, 100, type, ncclSum, 0, comm, nullptr) == ncclSuccess);
    return ncclGroupEnd();
  };
  CHECK(reduce(line, ncclFloat) == ncclSuccess);
  check_refused(reduce(line, ncclBfloat16), ncclInvalidUsage, {"\"line\"", "float32 wire", "rank 1, lane 0, step 0"});
  CHECK(reduce(wide, ncclFloat) == ncclSuccess);
  CHECK(reduce(wide, ncclBfloat16) == ncclSuccess);
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
}

TEST_CASE("damaged schedules are refused, or run right") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const Ranks ranks(2);
  const std::vector<std::string> words{"0",       "1",        "2",          "+",    "->",   ",",
                                       "in[0.0]", "out[0.0]", "recv",       "send", "wait", "finish",
                                       "\n",      " ",        "4294967296", "push", "pull"};
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = i % 2 == 0 ? kExchange : kDirect;
    for (unsigned n = 1 + random() % 2; n > 0; --n) {
      const std::size_t at = random() % text.size();
      const std::string& word = words[random() % words.size()];
      switch (random() % 4) {
        case 0: text.erase(at, random() % 8); break;
        case 1: text.insert(at, word); break;
        case 2: text[at] = word[0]; break;
        default: {  // two lines change places
          const std::size_t line = text.find('\n', at);
          const std::size_t next = line == std::string::npos ? line : text.find('\n', line + 1);
          if (next == std::string::npos) break;
          const std::string moved = text.substr(line, next - line);
          text.erase(line, next - line);
          const std::size_t before = line == 0 ? std::string::npos : text.rfind('\n', line - 1);
          text.insert(before == std::string::npos ? 0 : before, moved);
        }
      }
    }
    INFO(text);
    if (tuttiCommSetSchedule(ranks[0], text.c_str(), nullptr) != ncclSuccess) {
      ++refused;
      continue;
    }
    ++accepted;
    REQUIRE(tuttiCommSetSchedule(ranks[1], text.c_str(), nullptr) == ncclSuccess);
    for (const bool in_place : {false, true}) {
      const ncclResult_t result = all_reduce(ranks, 1 + random() % 3000, in_place);
      INFO(ncclGetLastError(nullptr));
      CHECK((result == ncclSuccess || result == ncclInvalidUsage));
    }
  }
  CHECK(accepted > 50);
  CHECK(refused > 500);
}
