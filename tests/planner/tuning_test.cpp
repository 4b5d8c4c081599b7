// Measured crossovers: what their text may say, what they choose, and what wins over them.
#include "planner/tuning.h"
#include "planner/plan_cache.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

using namespace tutti;
using planner::Access;
using planner::Question;
using planner::Reason;
using planner::Rules;

namespace {

const std::string kVersion = "tutti-tuning 1\n";

std::shared_ptr<const planner::Tuning> tuning(const std::string& rules) {
  auto parsed = planner::parse_tuning(kVersion + rules);
  INFO((parsed.ok() ? "" : parsed.error().message));
  REQUIRE(parsed.ok());
  return std::make_shared<planner::Tuning>(std::move(parsed).value());
}

Rules rules_for(const std::string& text, std::string_view algorithms = "", bool reproducible = false) {
  auto rules = planner::make_rules(algorithms, reproducible);
  REQUIRE(rules.ok());
  rules.value().slots = {4, 32 << 10};
  if (!text.empty()) rules.value().tuning = tuning(text);
  return rules.value();
}

Question question(std::uint64_t bytes, Access access = Access::kSlots, Collective collective = Collective::kAllReduce) {
  return {{collective, 4, 0, 0}, bytes / 4, 4, access, false};
}

planner::Candidate first(const Question& q, const Rules& rules) {
  const auto found = planner::candidates(q, rules);
  REQUIRE(found.ok());
  return found.value().front();
}

std::string chosen(const Question& q, const Rules& rules) {
  const planner::Candidate candidate = first(q, rules);
  return std::string(candidate.algorithm->name) + (candidate.direct ? " direct" : " slots");
}

}  // namespace

TEST_CASE("a tuning may name what only some hosts and machines have, and says nothing where they have it not") {
  const Rules rules = rules_for(
      "all_reduce ranks 4 access slots out_of_place: from 64K hosts_ring slots, from 1M hosts_ring_deep slots, from 4M "
      "packed_trees slots\n"
      "all_reduce ranks 2 access slots out_of_place: from 64K hosts_ring_deep slots\n");
  const Rules model = rules_for("");
  for (const std::uint64_t bytes : {64u << 10, 1u << 20, 4u << 20}) {
    CHECK(chosen(question(bytes), rules) == chosen(question(bytes), model));
    CHECK(first(question(bytes), rules).reason == Reason::kPrice);
  }
  Rules across = rules;
  across.groups = {0, 0, 1, 1};
  across.network = planner::kUsualNetwork;
  for (const auto& [bytes, name] :
       {std::pair(64u << 10, "hosts_ring slots"), std::pair(1u << 20, "hosts_ring_deep slots")}) {
    CHECK(chosen(question(bytes), across) == name);
    CHECK(first(question(bytes), across).reason == Reason::kTuning);
  }
}

TEST_CASE("a tuning says of each size which algorithm runs") {
  const Rules rules = rules_for(
      "all_reduce ranks 4 access slots out_of_place: from 1K tree slots, from 64K model, from 1M ring slots\n"
      "all_reduce ranks 4 access direct out_of_place: from 0 ring slots, from 4M oneshot direct\n");
  const Rules model = rules_for("");
  CHECK(chosen(question(512), rules) == chosen(question(512), model));
  CHECK(first(question(512), rules).reason == Reason::kPrice);
  for (const std::uint64_t bytes : {1u << 10, 32u << 10, (64u << 10) - 4}) {
    CHECK(chosen(question(bytes), rules) == "tree slots");
    CHECK(first(question(bytes), rules).reason == Reason::kTuning);
  }
  CHECK(chosen(question(64 << 10), rules) == chosen(question(64 << 10), model));
  CHECK(chosen(question(std::uint64_t{1} << 36), rules) == "ring slots");
  CHECK(chosen(question(4, Access::kMapped), rules) == "ring slots");
  CHECK(chosen(question(4 << 20, Access::kMapped), rules) == "oneshot direct");
  // Nothing about other accesses, forms, collectives and numbers of ranks.
  CHECK(first(question(1 << 20, Access::kSingleCopy), rules).reason == Reason::kPrice);
  CHECK(first(question(1 << 20, Access::kSlots, Collective::kAllGather), rules).reason == Reason::kPrice);
  Question other = question(1 << 20);
  other.in_place = true;
  CHECK(first(other, rules).reason == Reason::kPrice);
  other = question(1 << 20);
  other.request.ranks = 5;
  CHECK(first(other, rules).reason == Reason::kPrice);
}

TEST_CASE("roots, types and operations do not matter to a tuning, and receives follow sends") {
  const auto reduces = tuning("reduce ranks 4 access slots out_of_place: from 1K chain slots\n");
  const auto sends = tuning("send ranks 4 access single_copy out_of_place: from 1K p2p direct\n");
  Question q = question(4096, Access::kSlots, Collective::kReduce);
  q.request.root = 3;
  q.element_bytes = 1;
  CHECK(reduces->find(q) != nullptr);  // 1024 bytes
  q.count /= 2;
  CHECK(reduces->find(q) == nullptr);
  for (const Collective collective : {Collective::kSend, Collective::kReceive}) {
    CHECK(sends->find(question(4096, Access::kSingleCopy, collective)) != nullptr);
  }
}

TEST_CASE("NCCL_ALGO, reproducible sums, a float32 wire and the order to copy win over a tuning") {
  const std::string ring = "all_reduce ranks 4 access slots out_of_place: from 0 ring slots\n";
  CHECK(chosen(question(4096), rules_for(ring, "tree")) == "tree slots");
  CHECK(first(question(4096), rules_for(ring, "tree")).reason == Reason::kNamed);
  CHECK(chosen(question(4096), rules_for(ring, "tree,ring")) == "ring slots");
  CHECK(first(question(4096), rules_for(ring, "", true)).algorithm->reproducible);
  Question wide = question(4096);
  wide.element_bytes = 2;
  wide.wide_wire = true;
  CHECK(first(wide, rules_for("all_reduce ranks 4 access slots out_of_place: from 0 halving_doubling slots\n"))
            .algorithm->wide_wire);
  Rules ordered =
      rules_for("all_reduce ranks 4 access single_copy out_of_place: from 0 tree slots, from 1M tree direct\n");
  const Question small = question(4096, Access::kSingleCopy), large = question(1 << 20, Access::kSingleCopy);
  CHECK(chosen(small, ordered) == "tree slots");
  ordered.single_copy_min_bytes = 1024;
  CHECK(first(small, ordered).direct);
  CHECK(first(small, ordered).reason == Reason::kSingleCopy);
  CHECK(chosen(large, ordered) == "tree direct");  // which of the single copies is still the tuning's
  CHECK(first(large, ordered).reason == Reason::kTuning);
}

TEST_CASE("the reason is told in words") {
  const std::string rule = "all_reduce ranks 4 access slots out_of_place: from 1K tree slots";
  const auto words = [&](const Rules& rules, Access access = Access::kSlots) {
    const Question q = question(4096, access);
    return planner::describe_reason(q, rules, first(q, rules));
  };
  CHECK(words(rules_for("")) == "the lowest expected time");
  CHECK(words(rules_for(rule + "\n")) == "the tuning, by its rule \"" + rule + "\"");
  CHECK(words(rules_for(rule, "ring")) ==
        "the lowest expected time of those that NCCL_ALGO=ring leaves; the tuning's tree slots is overruled");
  Rules ordered = rules_for("");
  ordered.single_copy_min_bytes = 2048;
  CHECK_THAT(words(ordered, Access::kSingleCopy), Catch::Contains("TUTTI_SINGLE_COPY_MIN_BYTES=2048"));
}

TEST_CASE("one choice per power of two of the count is the tuning's at every size") {
  planner::PlanCache cache(
      rules_for("all_reduce ranks 4 access slots out_of_place: from 4K tree slots, from 16K ring slots\n"));
  for (std::uint64_t bytes = 1024; bytes <= (64 << 10); bytes += 252) {
    const auto plan = cache.find(question(bytes), 0);
    REQUIRE(plan.ok());
    INFO(bytes << " bytes: " << plan.value()->algorithm->name);
    CHECK((plan.value()->reason == Reason::kTuning) == (bytes >= 4096));
    if (bytes >= 4096) CHECK(plan.value()->algorithm->name == (bytes < 16384 ? "tree" : "ring"));
  }
}

TEST_CASE("a tuning that is set replaces the rules' own until it is taken back, and has a fingerprint") {
  planner::PlanCache cache(rules_for(""));
  cache.set_rules(rules_for("all_reduce ranks 4 access slots out_of_place: from 0 tree slots\n"));
  const auto runs = [&] { return std::string(cache.find(question(4096), 1).value()->algorithm->name); };
  CHECK(runs() == "tree");
  CHECK(cache.tuning_fingerprint() == 0);
  const std::uint64_t version = cache.schedules_version();
  cache.set_tuning(tuning("all_reduce ranks 4 access slots out_of_place: from 0 ring slots\n"));
  CHECK(runs() == "ring");
  CHECK(cache.schedules_version() != version);
  const std::uint32_t print = cache.tuning_fingerprint();
  CHECK(print != 0);
  cache.set_tuning(tuning("# the same\n  all_reduce ranks 4 access slots  out_of_place : from 0 ring slots"));
  CHECK(cache.tuning_fingerprint() == print);
  cache.set_tuning(tuning("all_reduce ranks 4 access slots out_of_place: from 1 ring slots\n"));
  CHECK(cache.tuning_fingerprint() != print);
  cache.set_tuning(nullptr);
  CHECK(runs() == "tree");
  CHECK(cache.tuning_fingerprint() == 0);
}

TEST_CASE("a tuning's text comes back the same") {
  const std::string text =
      kVersion +
      "all_reduce ranks 2 access slots out_of_place: from 0 oneshot slots, from 512 model, from 64K twoshot slots\n"
      "broadcast ranks 65536 access direct in_place: from 1 binomial direct, from 16M chain direct, from 1024G ring "
      "slots\n"
      "send ranks 3 access single_copy out_of_place: from 2G p2p direct\n";
  const auto parsed = planner::parse_tuning("# comment\n\n" + text + "\n  # another");
  REQUIRE(parsed.ok());
  CHECK(to_text(parsed.value()) == text);
  REQUIRE(planner::parse_tuning(kVersion).ok());
  CHECK(to_text(planner::parse_tuning(kVersion).value()) == kVersion);
  CHECK(planner::parse_tuning("tutti-tuning 1").ok());
}

TEST_CASE("what is wrong with a tuning is told with its line, what was found and what is accepted") {
  const std::string key = "all_reduce ranks 2 access slots out_of_place: ";
  const std::string direct = "all_reduce ranks 2 access direct in_place: ";
  struct Wrong {
    std::string text;
    std::vector<std::string> words;
  };
  const std::vector<Wrong> cases = {
      {"", {"line 1", "tutti-tuning"}},
      {"# only this\n", {"line 2", "tutti-tuning"}},
      {key + "from 0 ring slots\n", {"line 1", "expected \"tutti-tuning\"", "found \"all_reduce\""}},
      {"tutti-tuning 2\n", {"line 1", "version 1", "found \"2\""}},
      {kVersion + "\nall_redcue ranks 2\n", {"line 3", "all_redcue", "all_reduce, reduce, broadcast"}},
      {kVersion + "receive ranks 2\n", {"line 2", "send"}},
      {kVersion + "all_reduce 2\n", {"expected \"ranks\"", "found \"2\""}},
      {kVersion + "all_reduce ranks 0 access slots in_place: from 0 model\n", {"at least 1 rank"}},
      {kVersion + "all_reduce ranks 131073 access slots in_place: from 0 model\n", {"131072"}},
      {kVersion + "all_reduce ranks 2 access magic in_place: from 0 model\n", {"found \"magic\"", "single_copy"}},
      {kVersion + "all_reduce ranks 2 access slots inplace: from 0 model\n", {"found \"inplace\"", "in_place"}},
      {kVersion + key + "\n", {"expected \"from\"", "the end of the line"}},
      {kVersion + key + "from 0 rign slots\n", {"found \"rign\"", "ring, tree, oneshot"}},
      {kVersion + key + "from 0 pairwise slots\n", {"found \"pairwise\"", "all_reduce"}},
      {kVersion + key + "from 0 ring\n", {"slots or direct", "the end of the line"}},
      {kVersion + key + "from 0 ring direct\n", {"with access slots"}},
      {kVersion + direct + "from 0 oneshot direct\n", {"oneshot cannot run direct in place"}},
      {kVersion + direct + "from 0 halving_doubling direct\n", {"halving_doubling cannot run direct"}},
      {kVersion + key + "from 48K ring slots\n", {"49152", "a power of two, such as 64K"}},
      {kVersion + key + "from 2048G ring slots\n", {"too large", "1024G"}},
      {kVersion + key + "from -1 ring slots\n", {"a size such as", "found \"-\""}},
      {kVersion + key + "from 99999999999999999999 ring slots\n", {"too large"}},
      {kVersion + key + "from 4K ring slots, from 4K model\n", {"from 4K after from 4K", "growing"}},
      {kVersion + key + "from 4K ring slots from 8K model\n", {"\",\" and another choice"}},
      {kVersion + key + "from 0 model\n" + key + "from 1K model\n", {"line 3", "a second rule for all_reduce ranks 2"}},
      {kVersion + std::string("\0\xff", 2), {"line 2", "\\x00"}},
      {kVersion + std::string(planner::kTuningBytesMax, ' '), {"16384"}},
  };
  for (const Wrong& wrong : cases) {
    const auto parsed = planner::parse_tuning(wrong.text);
    INFO(wrong.text.substr(0, 200));
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().code == Code::kInvalidArgument);
    for (const std::string& word : wrong.words) CHECK_THAT(parsed.error().message, Catch::Contains(word));
  }
}
