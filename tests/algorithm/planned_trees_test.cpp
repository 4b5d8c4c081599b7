#include "algorithm/planned_trees.h"
#include "algorithm/algorithm.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

using namespace tutti;
using algorithm::kNoParent;
using algorithm::PlannedTrees;

namespace {

/// A line of three, by each root.
algorithm::RootedTrees line_of_three() { return {{kNoParent, 0, 1}, {1, kNoParent, 1}, {1, 2, kNoParent}}; }

std::vector<PlannedTrees> plans() {
  return {{Collective::kAllReduce, {{kNoParent, 0, 1}, {1, 2, kNoParent}}, {}},
          {Collective::kAllGather, {}, {line_of_three(), line_of_three()}},
          {Collective::kReduceScatter, {}, {line_of_three()}},
          {Collective::kAllReduce, {}, {}, {{{kNoParent, 0, 1}, {kNoParent, 0, 0}}}}};
}

std::string refusal(const std::string& text) {
  const auto read = algorithm::parse_trees(text, 3, 2);
  return read.ok() ? "none" : read.error().message;
}

}  // namespace

TEST_CASE("planned trees: what is written is read back") {
  std::string text;
  for (const PlannedTrees& trees : plans()) text += to_text(trees);
  CHECK(text.starts_with("trees all_reduce ranks 3 lanes 2\n- 0 1\n1 2 -\ntrees all_gather ranks 3 lanes 2\n- 0 1\n"));
  const auto read = algorithm::parse_trees(text, 3, 2);
  REQUIRE(read.ok());
  CHECK(read.value() == plans());
  const auto none = algorithm::parse_trees("", 3, 2);
  REQUIRE(none.ok());
  CHECK(none.value().empty());
}

TEST_CASE("planned trees: what is no such text is refused with the line") {
  CHECK(refusal("trees all_reduce ranks 3 lanes 1\n- 0 1\n") == "none");
  CHECK(refusal("trees broadcast ranks 3 lanes 1\n- 0 1\n") ==
        "trees, line 1: expected \"trees COLLECTIVE ranks N lanes N\", found \"trees broadcast ranks 3 lanes 1\"");
  CHECK(
      refusal("trees all_reduce ranks 4 lanes 1\n- 0 1 1\n").starts_with("trees, line 1: expected trees for 3 ranks"));
  CHECK(refusal("trees all_reduce ranks 3 lanes 3\n- 0 1\n").starts_with("trees, line 1: expected 1 to 2 lanes"));
  CHECK(refusal("trees all_reduce ranks 3 lanes 0\n").starts_with("trees, line 1: expected 1 to 2 lanes"));
  for (const char* line : {"", "- 0", "- 0 1 2", "- - 1", "1 0 -", "1 2 0", "0 1 -"})
    CHECK(refusal(std::string("trees all_reduce ranks 3 lanes 1\n") + line + "\n")
              .starts_with("trees, line 2: expected the parents of 3 ranks that all lead to one root"));
  for (const char* line : {"- 0 3", "- 0 -1", "- 0 x", "- 0 99999999999999999999"})
    CHECK(refusal(std::string("trees all_reduce ranks 3 lanes 1\n") + line + "\n")
              .starts_with("trees, line 2: expected a rank below 3"));
  CHECK(refusal("trees all_gather ranks 3 lanes 1\n- 0 1\n- 0 1\n1 2 -\n")
            .starts_with("trees, line 3: expected a tree with the root 1"));
  CHECK(refusal("pairs all_reduce ranks 3 lanes 1\n- 0 1\n- 0 0\n") == "none");
  CHECK(refusal("pairs all_reduce ranks 3 lanes 1\n- 0 1\n1 - 1\n") ==
        "trees, line 3: expected a tree with the root 0, found \"1 - 1\n\"");
  CHECK(refusal("pairs all_reduce ranks 3 lanes 1\n- 0 1\n").starts_with("trees, line 3: expected the parents of 3"));
  CHECK(refusal("pairs all_gather ranks 3 lanes 1\n- 0 1\n- 0 0\n")
            .starts_with("trees, line 1: expected \"pairs all_reduce\""));
}

TEST_CASE("planned trees: rows of the table run them, and nothing else") {
  for (const int slots : {2, 4, 8}) {
    std::vector<schedule::Schedule> made;
    for (const PlannedTrees& trees : plans()) made.push_back(schedule_of(trees, slots));
    for (const char* const name : {"packed_trees", "packed_pairs"}) {
      for (int c = 0; c < kCollectives; ++c) {
        const auto collective = static_cast<Collective>(c);
        schedule::Request request{collective, 3, 0, 0};
        CHECK(algorithm::find(name, request) == nullptr);
        request.planned = &made;
        const algorithm::Algorithm* row = algorithm::find(name, request);
        const auto is_it = [&](const auto& s) { return s.algorithm == name && s.request.collective == collective; };
        const auto same = std::ranges::find_if(made, is_it);
        REQUIRE((row != nullptr) == (same != made.end()));
        if (row == nullptr) continue;
        CHECK(row->planned);
        CHECK(make_schedule(*row, request) == *same);
        CHECK(same->shape.units == 2 * algorithm::kPlannedUnitsPerHop);
        for (const bool in_place : {false, true}) {
          const bool may_be_direct = in_place ? row->direct_in_place : row->direct;
          for (const bool direct : {false, may_be_direct})
            CHECK(schedule::verify(*same, {slots, in_place, direct, false, row->wide_wire}).ok());
        }
        request.ranks = 4;
        CHECK(algorithm::find(name, request) == nullptr);
      }
    }
  }
}
