// tuttiCommSetTuning: what it chooses is what runs; ranks that differ are told so.
#include "in_process.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

using tutti::test::check_invalid;
using tutti::test::check_refused;
using tutti::test::check_usable;
using tutti::test::Ranks;

namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 6000;

std::string rule(const std::string& choice) {
  return "tutti-tuning 1\nall_reduce ranks 3 access direct out_of_place: from 1K " + choice + "\n";
}

void set_all(const Ranks& ranks, const char* text) {
  for (int r = 0; r < ranks.count(); ++r) {
    const ncclResult_t result = tuttiCommSetTuning(ranks[r], text);
    INFO(ncclGetLastError(nullptr));
    REQUIRE(result == ncclSuccess);
  }
}

/// Sums whose value tells the order of addition: 1e8 + 1 - 1e8 is 0 in float32, and 1 where the large ones meet first.
std::vector<float> order_of_sums(const Ranks& ranks, std::size_t count = kCount) {
  const float values[kRanks] = {1e8f, 1, -1e8f};
  std::vector<std::vector<float>> in, out;
  for (const float value : values) {
    in.emplace_back(count, value);
    out.emplace_back(count, -7);
  }
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < kRanks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    CHECK(ncclAllReduce(in[i].data(), out[i].data(), count, ncclFloat, ncclSum, ranks[r], nullptr) == ncclSuccess);
  }
  const ncclResult_t result = ncclGroupEnd();
  INFO(ncclGetLastError(nullptr));
  REQUIRE(result == ncclSuccess);
  CHECK(out[0] == out[1]);
  CHECK(out[0] == out[2]);
  return out[0];
}

bool in_rank_order(const std::vector<float>& sums) {
  return std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == 0; });
}

std::string candidate_rules(ncclComm_t comm, const void* send, void* receive, std::size_t count) {
  std::size_t needed = 0;
  REQUIRE(tuttiCandidateRules(comm, tuttiAllReduce, send, receive, count, ncclFloat, ncclSum, 0, nullptr, 0, &needed) ==
          ncclSuccess);
  std::string text(needed, '\0');
  REQUIRE(tuttiCandidateRules(comm, tuttiAllReduce, send, receive, count, ncclFloat, ncclSum, 0, text.data(), needed,
                              nullptr) == ncclSuccess);
  text.pop_back();
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    lines.push_back(text.substr(begin, text.find('\n', begin) - begin));
  return lines;
}

}  // namespace

TEST_CASE("the algorithm that a tuning chooses is the one that runs") {
  const Ranks ranks(kRanks);
  for (const char* choice : {"oneshot direct", "twoshot direct", "oneshot slots", "twoshot slots"}) {
    set_all(ranks, rule(choice).c_str());
    CHECK(in_rank_order(order_of_sums(ranks)));
  }
  for (const char* choice : {"ring direct", "ring slots"}) {
    set_all(ranks, rule(choice).c_str());
    CHECK_FALSE(in_rank_order(order_of_sums(ranks)));
    const std::vector<float> small = order_of_sums(ranks, 200);  // less than 1K: not the rule's
    CHECK(in_rank_order(small));
  }
  set_all(ranks, nullptr);
  CHECK(in_rank_order(order_of_sums(ranks)));
  set_all(ranks, rule("ring direct").c_str());
  CHECK_FALSE(in_rank_order(order_of_sums(ranks)));
  set_all(ranks, "");
  CHECK(in_rank_order(order_of_sums(ranks)));
}

TEST_CASE("the candidates' rules make each of them run, the one that runs now first") {
  const Ranks ranks(kRanks);
  std::vector<float> a(kCount), b(kCount);
  const std::vector<std::string> lines = lines_of(candidate_rules(ranks[0], a.data(), b.data(), kCount));
  CHECK(lines.size() >= 8);
  CHECK(std::set<std::string>(lines.begin(), lines.end()).size() == lines.size());
  for (const std::string& line : lines) {
    INFO(line);
    CHECK(line.find("all_reduce ranks 3 access direct out_of_place: from 16K ") == 0);
    set_all(ranks, ("tutti-tuning 1\n" + line + "\n").c_str());
    CHECK(lines_of(candidate_rules(ranks[1], a.data(), b.data(), kCount)).front() == line);
    check_usable(ranks);
    (void)order_of_sums(ranks);
  }
  const std::string in_place = candidate_rules(ranks[0], a.data(), a.data(), kCount);
  CHECK(in_place.find("all_reduce ranks 3 access direct in_place: from 16K ") == 0);
  CHECK(candidate_rules(ranks[0], a.data(), b.data(), 0).empty());
  CHECK(candidate_rules(ranks[0], a.data(), b.data(), 1).empty());  // travels in the line that opens the call
}

TEST_CASE("ranks that have set different tunings are told so, and nothing is done") {
  const Ranks ranks(2);
  REQUIRE(tuttiCommSetTuning(ranks[0], "tutti-tuning 1\n") == ncclSuccess);
  std::vector<float> in(1000, 1), out[2] = {std::vector<float>(1000, -7), std::vector<float>(1000, -7)};
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < 2; ++r)
    CHECK(ncclAllReduce(in.data(), out[r].data(), 1000, ncclFloat, ncclSum, ranks[r], nullptr) == ncclSuccess);
  check_refused(ncclGroupEnd(), ncclInvalidUsage, {"with a tuning that was set (", "rank 0", "rank 1"});
  CHECK(out[0] == std::vector<float>(1000, -7));
  REQUIRE(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(in.data(), 1000, ncclFloat, 1, ranks[0], nullptr) == ncclSuccess);
  CHECK(ncclRecv(out[1].data(), 1000, ncclFloat, 0, ranks[1], nullptr) == ncclSuccess);
  check_refused(ncclGroupEnd(), ncclInvalidUsage, {"with a tuning that was set ("});
}

TEST_CASE("a wrong tuning is refused, and what was set before stays") {
  const Ranks ranks(kRanks);
  set_all(ranks, rule("ring slots").c_str());
  check_invalid(
      tuttiCommSetTuning(ranks[0], "tutti-tuning 1\n\nall_reduce ranks 3 access slots in_place: from 3 model"),
      {"tuttiCommSetTuning", "line 3", "a power of two"});
  check_invalid(tuttiCommSetTuning(ranks[0], rule("ring fast").c_str()), {"line 2", "\"fast\"", "slots or direct"});
  check_invalid(tuttiCommSetTuning(nullptr, nullptr), {"comm is NULL"});
  REQUIRE(ncclGroupStart() == ncclSuccess);
  check_refused(tuttiCommSetTuning(ranks[0], nullptr), ncclInvalidUsage, {"ncclGroupStart"});
  (void)ncclGroupEnd();
  CHECK_FALSE(in_rank_order(order_of_sums(ranks)));
  check_invalid(tuttiCandidateRules(ranks[0], static_cast<tuttiCollective_t>(10), nullptr, nullptr, 1, ncclFloat,
                                    ncclSum, 0, nullptr, 0, nullptr),
                {"collective is 10"});
}
