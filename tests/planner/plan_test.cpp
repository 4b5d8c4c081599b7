#include "planner/plan_cache.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace tutti;
using planner::Access;
using planner::MeasuredCosts;
using planner::Question;
using planner::Rules;

namespace {

Rules rules_for(std::string_view algorithms, bool reproducible = false) {
  auto rules = planner::make_rules(algorithms, reproducible);
  REQUIRE(rules.ok());
  rules.value().slots = {4, 32 << 10};
  return rules.value();
}

Question question(Collective collective, int ranks, std::uint64_t count, Access access = Access::kSlots) {
  return {{collective, ranks, 0, 0}, count, 4, access, false};
}

/// Pieces of all lanes and rounds lie side by side and cover each block once.
void check_cover(const planner::Plan& plan, std::uint64_t count) {
  std::uint64_t next = 0;
  for (std::uint32_t lane = 0; lane < plan.shape.lanes; ++lane) {
    const std::uint64_t rounds = plan.tiling.rounds(lane);
    REQUIRE(rounds < 10000000);
    for (std::uint64_t round = 0; round<rounds; round += rounds> 1000 ? rounds - 1 : 1) {
      if (rounds > 1000 && round > 0) next = plan.tiling.slab_of(lane, round).offset;
      for (std::uint32_t unit = 0; unit < plan.shape.units; ++unit) {
        const schedule::Piece piece = plan.tiling.piece(lane, round, unit, 1);
        if (piece.count != 0) REQUIRE(piece.offset == next);
        next += piece.count;
      }
    }
  }
  CHECK(next == count);
}

}  // namespace

TEST_CASE("every candidate cuts every count into pieces that cover it and fit a slot") {
  const Rules rules = rules_for("");
  for (const int ranks : {1, 2, 3, 8, 16}) {
    for (const std::uint64_t count : {1ull, 15ull, 16ull, 17ull, 8191ull, 100003ull, (1ull << 31) + 11}) {
      for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kBroadcast}) {
        const Question q = question(collective, ranks, count);
        const auto found = planner::candidates(q, rules);
        REQUIRE(found.ok());
        for (const planner::Candidate& candidate : found.value()) {
          INFO(candidate.algorithm->name << " ranks " << ranks << " count " << count);
          const planner::Plan plan = planner::make_plan(q, rules, candidate, ranks - 1);
          check_cover(plan, count);
          if (candidate.widest != 0) CHECK(plan.tiling.message_bytes_max(candidate.widest) <= rules.slots.slot_bytes);
        }
      }
    }
  }
}

TEST_CASE("a list for all collectives is ignored where it leaves nothing, a collective's own is not") {
  CHECK(planner::candidates(question(Collective::kAllToAll, 4, 100), rules_for("tree")).ok());
  const auto own = planner::candidates(question(Collective::kAllToAll, 4, 100), rules_for("alltoall:tree"));
  REQUIRE_FALSE(own.ok());
  CHECK(own.error().code == Code::kInvalidUsage);
  CHECK_THAT(own.error().message, Catch::Contains("all_to_all") && Catch::Contains("pairwise"));
}

TEST_CASE("reproducible sums and an algorithm that cannot give them contradict each other") {
  const auto found = planner::candidates(question(Collective::kAllReduce, 4, 100), rules_for("ring", true));
  REQUIRE_FALSE(found.ok());
  CHECK(found.error().code == Code::kInvalidUsage);
  CHECK_THAT(found.error().message, Catch::Contains("reproducible") && Catch::Contains("twoshot"));
  // What moves bytes only has no order of sums.
  CHECK(planner::candidates(question(Collective::kAllGather, 4, 100), rules_for("ring", true)).ok());
  const auto free_choice = planner::candidates(question(Collective::kAllReduce, 4, 100), rules_for("", true));
  REQUIRE(free_choice.ok());
  for (const auto& candidate : free_choice.value()) CHECK(candidate.algorithm->reproducible);
}

TEST_CASE("with a float32 wire messages fit the slots too, however small, and none that rounds on the way is chosen") {
  for (const std::uint32_t slot_bytes : {64u, 192u, 4096u, 32u << 10}) {
    Rules rules = rules_for("");
    rules.wide_wire = true;
    rules.slots.slot_bytes = slot_bytes;
    rules.line_bytes = 60;
    for (const std::uint32_t bytes : {1u, 2u}) {
      for (const int ranks : {2, 3, 8, 37}) {
        for (const std::uint64_t count : {1ull, 33ull, 70001ull}) {
          for (const Collective collective :
               {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
            Question q = question(collective, ranks, count);
            q.element_bytes = bytes;
            q.wide_wire = true;
            const auto found = planner::candidates(q, rules);
            REQUIRE(found.ok());
            for (const planner::Candidate& candidate : found.value()) {
              INFO(candidate.algorithm->name << " ranks " << ranks << " count " << count << " slots " << slot_bytes);
              CHECK(candidate.algorithm->wide_wire);
              const planner::Plan plan = planner::make_plan(q, rules, candidate, ranks - 1);
              check_cover(plan, count);
              CHECK(plan.wide_wire);
              const std::uint64_t narrow = plan.tiling.message_bytes_max(candidate.widest);
              const std::uint64_t wide = plan.tiling.message_bytes_max(candidate.widest_wide) / bytes * 4;
              CHECK(std::max(narrow, wide) <= slot_bytes);
              CHECK(plan.lines == (std::max(narrow, wide) <= rules.line_bytes));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a float32 wire and an algorithm that rounds on the way contradict each other") {
  Rules rules = rules_for("halving_doubling");
  rules.wide_wire = true;
  Question q = question(Collective::kAllReduce, 4, 100);
  CHECK(planner::candidates(q, rules).ok());  // float32: nothing to widen
  q.element_bytes = 2;
  q.wide_wire = true;
  const auto found = planner::candidates(q, rules);
  REQUIRE_FALSE(found.ok());
  CHECK(found.error().code == Code::kInvalidUsage);
  CHECK_THAT(found.error().message, Catch::Contains("float32 wire") && Catch::Contains("ring, tree, oneshot, twoshot"));
  q.request.collective = Collective::kReduce;
  CHECK(planner::candidates(q, rules).ok());  // has no such algorithm anyway: the list says nothing about it
}

TEST_CASE("a float32 wire is for sums, products and averages of 16- and 8-bit floats") {
  Rules rules = rules_for("");
  const auto uses = [&](Collective c, DataType t, ReduceOp o) { return planner::uses_wide_wire(rules, c, t, o); };
  CHECK_FALSE(uses(Collective::kAllReduce, DataType::kBfloat16, ReduceOp::kSum));
  rules.wide_wire = true;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kAverage}) {
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2})
      CHECK(uses(Collective::kReduceScatter, type, op));
    for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kInt8, DataType::kUint64})
      CHECK_FALSE(uses(Collective::kAllReduce, type, op));
  }
  CHECK_FALSE(uses(Collective::kAllReduce, DataType::kBfloat16, ReduceOp::kMax));
  CHECK_FALSE(uses(Collective::kAllReduce, DataType::kFloat16, ReduceOp::kMin));
  CHECK_FALSE(uses(Collective::kAllGather, DataType::kBfloat16, ReduceOp::kSum));
}

TEST_CASE("wide messages cost what they carry") {
  const Rules rules = rules_for("ring");
  Question q = question(Collective::kAllReduce, 8, 1 << 22);
  q.element_bytes = 2;
  const double narrow = planner::candidates(q, rules).value().front().predicted_us;
  q.wide_wire = true;
  const double wide = planner::candidates(q, rules).value().front().predicted_us;
  CHECK(wide > 1.2 * narrow);
  CHECK(wide < 2 * narrow);
}

TEST_CASE("direct access is only planned where buffers can be reached") {
  const Rules rules = rules_for("");
  const auto through_slots = planner::candidates(question(Collective::kAllReduce, 4, 100000), rules);
  REQUIRE(through_slots.ok());
  for (const auto& candidate : through_slots.value()) CHECK_FALSE(candidate.direct);
  const auto mapped = planner::candidates(question(Collective::kAllReduce, 4, 100000, Access::kMapped), rules);
  REQUIRE(mapped.ok());
  CHECK(mapped.value().front().direct);
  CHECK(mapped.value().front().algorithm->name == "twoshot");
}

TEST_CASE("a plan is made once per shape") {
  planner::PlanCache cache(rules_for(""));
  const auto first = cache.find(question(Collective::kAllReduce, 4, 1000), 1);
  const auto again = cache.find(question(Collective::kAllReduce, 4, 1000), 1);
  const auto other = cache.find(question(Collective::kAllReduce, 4, 1001), 1);
  REQUIRE(first.ok());
  REQUIRE(other.ok());
  CHECK(first.value() == again.value());
  CHECK(first.value() != other.value());
}

TEST_CASE("measured costs decide between slots and single copies, and how") {
  Rules rules = rules_for("");
  rules.slots = {8, 64 << 10};
  const auto chosen = [&](std::uint64_t bytes) {
    const auto found = planner::candidates(question(Collective::kAllReduce, 2, bytes / 4, Access::kSingleCopy), rules);
    REQUIRE(found.ok());
    return found.value().front();
  };
  // Distant cores, quick system calls.
  rules.measured = {5, 0.8, 15};
  CHECK(chosen(2 << 20).direct);
  // Near cores, slow system calls.
  rules.measured = {72.7, 1.43, 12.6};
  CHECK_FALSE(chosen(2 << 20).direct);
  CHECK_FALSE(chosen(32 << 20).direct);
  // One message each way while it is the hand-over that costs, half as much to read once it is the bytes.
  CHECK(chosen(32 << 10).algorithm->name == "oneshot");
  CHECK(chosen(2 << 20).algorithm->name != "oneshot");
  CHECK(chosen(32 << 10).predicted_us < 3);
  CHECK_THAT(
      planner::describe_reason(question(Collective::kAllReduce, 2, 8, Access::kSingleCopy), rules, chosen(1 << 20)),
      Catch::Contains("slots 72.7 GB/s or past the caches 0.0, single copies 1.4 us and 12.6 GB/s"));
}

TEST_CASE("receivers read where copies are by system call, and a broadcast's root writes its share") {
  Rules rules = rules_for("");
  rules.slots = {8, 64 << 10};
  rules.measured = {5, 0.8, 15};
  for (const Collective collective : {Collective::kAllGather, Collective::kBroadcast}) {
    const Question q = question(collective, 2, 1 << 16, Access::kSingleCopy);
    const auto found = planner::candidates(q, rules);
    REQUIRE(found.ok());
    REQUIRE(found.value().front().direct);
    const planner::Plan plan = planner::make_plan(q, rules, found.value().front(), 1);
    const auto& ends = plan.program->lanes[0].endpoints;
    const auto is_push = [](const schedule::Endpoint& e) { return e.direct == schedule::Direct::kPush; };
    const auto is_pull = [](const schedule::Endpoint& e) { return e.direct == schedule::Direct::kPull; };
    CHECK(std::ranges::count_if(ends, is_push) == (collective == Collective::kBroadcast ? 1 : 0));
    CHECK(std::ranges::count_if(ends, is_pull) >= 1);
  }
}

TEST_CASE("slots are written past the caches where that was measured to be so much faster that cores share none") {
  Rules rules = rules_for("");
  rules.slots = {8, 64 << 10};
  const auto plan = [&](std::uint64_t bytes) {
    const Question q = question(Collective::kAllReduce, 2, bytes / 4, Access::kSlots);
    const auto found = planner::candidates(q, rules);
    REQUIRE(found.ok());
    return planner::make_plan(q, rules, found.value().front(), 0);
  };
  const auto streams = [&](std::uint64_t bytes) { return plan(bytes).streams_slots; };
  REQUIRE(plan(32 << 10).tiling.rounds(0) == 1);
  REQUIRE(plan(8 << 20).tiling.rounds(0) > 1);
  CHECK_FALSE(streams(32 << 10));  // nothing was measured
  // Threads of one core; cores that share a cache; cores that do not.
  rules.measured = {.slot_gbps = 42, .streamed_gbps = 12};
  CHECK_FALSE(streams(32 << 10));
  CHECK_FALSE(streams(8 << 20));
  rules.measured = {.slot_gbps = 15, .streamed_gbps = 21};
  CHECK_FALSE(streams(32 << 10));
  CHECK_FALSE(streams(8 << 20));
  const double near_us = plan(8 << 20).predicted_us;
  // Calls go through all of a channel's slots, and find many in the cache that the cores share.
  CHECK(planner::slot_gbps(rules) == Approx(2 * 15));
  rules.measured = {.slot_gbps = 3.5, .streamed_gbps = 18};
  CHECK(planner::slot_gbps(rules) == 18);
  CHECK(streams(32 << 10));
  CHECK(streams(8 << 20));
  CHECK(plan(8 << 20).predicted_us < 2 * near_us);  // by what streams have, not by the other way's price
  rules.slot_stores = planner::SlotStores::kOrdinary;
  CHECK_FALSE(streams(32 << 10));
  CHECK(plan(8 << 20).predicted_us > 4 * near_us);
  rules.slot_stores = planner::SlotStores::kStreamed;
  rules.measured = {.slot_gbps = 42, .streamed_gbps = 12};
  CHECK(streams(32 << 10));
  CHECK(streams(8 << 20));
}

TEST_CASE("where the cores may have moved, calls can be planned as if they had") {
  Rules rules = rules_for("");
  rules.slots = {8, 64 << 10};
  const MeasuredCosts near{.slot_gbps = 15, .call_us = 1.5, .call_gbps = 12, .streamed_gbps = 21};
  const MeasuredCosts far{.slot_gbps = 3.5, .call_us = 1.5, .call_gbps = 12, .streamed_gbps = 18};
  for (const MeasuredCosts& measured : {near, far}) {
    rules.measured = measured;
    planner::PlanCache plans(rules);
    Question q = question(Collective::kAllReduce, 2, 8 << 10, Access::kSlots);
    const auto here = plans.find(q, 0);
    q.way = planner::Way::kMoved;
    const auto elsewhere = plans.find(q, 0);
    REQUIRE((here.ok() && elsewhere.ok()));
    CHECK(here.value()->streams_slots == (measured.slot_gbps == far.slot_gbps));
    CHECK(elsewhere.value()->streams_slots != here.value()->streams_slots);
  }
  CHECK(planner::moved({.slot_gbps = 15}).slot_gbps == 0);  // what slots take past the caches is not known
}

TEST_CASE("a call can be planned so that its data goes otherwise") {
  Rules rules = rules_for("");
  rules.slots = {8, 64 << 10};
  for (const double call_gbps : {8.0, 40.0}) {
    rules.measured = {.slot_gbps = 15, .call_us = 1.5, .call_gbps = call_gbps, .streamed_gbps = 15};
    planner::PlanCache plans(rules);
    Question q = question(Collective::kAllReduce, 2, 512 << 10, Access::kSingleCopy);
    const auto here = plans.find(q, 0);
    q.way = planner::Way::kOther;
    const auto other = plans.find(q, 0);
    REQUIRE((here.ok() && other.ok()));
    CHECK(here.value()->direct == (call_gbps == 40));
    CHECK(other.value()->direct != here.value()->direct);
    CHECK(other.value()->predicted_us >= here.value()->predicted_us);
  }
  // There is none: slots alone, single copies by order, or one that is far too slow.
  const auto stays = [](Rules rules, Access access, std::uint64_t count) {
    planner::PlanCache plans(std::move(rules));
    Question q = question(Collective::kAllReduce, 2, count, access);
    const auto here = plans.find(q, 0);
    q.way = planner::Way::kOther;
    const auto other = plans.find(q, 0);
    REQUIRE((here.ok() && other.ok()));
    return other.value()->direct == here.value()->direct && other.value()->algorithm == here.value()->algorithm;
  };
  CHECK(stays(rules, Access::kSlots, 512 << 10));
  CHECK_FALSE(stays(rules, Access::kSingleCopy, 512 << 10));
  CHECK(stays(rules, Access::kSingleCopy, 256));
  CHECK_FALSE(stays(rules, Access::kSingleCopy, 16 << 20));  // too slow by a price that large copies may not have
  const Question large = question(Collective::kAllReduce, 2, 4 << 20, Access::kSingleCopy);
  CHECK_FALSE(planner::candidates(large, rules).value().front().direct);
  rules.last_cache_bytes = 480 << 20;
  CHECK(planner::candidates(large, rules).value().front().direct);
  rules.single_copy_min_bytes = 1;
  CHECK(stays(rules, Access::kSingleCopy, 512 << 10));
}

TEST_CASE("mapped buffers are reduced in two shots from 512 bytes on, in place and not, near and far") {
  Rules rules = rules_for("");
  rules.slots = {8, 64 << 10};
  for (const MeasuredCosts& measured :
       {MeasuredCosts{.slot_gbps = 15, .streamed_gbps = 21}, MeasuredCosts{.slot_gbps = 3.5, .streamed_gbps = 18}}) {
    rules.measured = measured;
    for (const bool in_place : {false, true}) {
      for (std::uint64_t bytes = 512; bytes <= (32 << 20); bytes *= 4) {
        CAPTURE(measured.slot_gbps, in_place, bytes);
        Question q = question(Collective::kAllReduce, 2, bytes / 4, Access::kMapped);
        q.in_place = in_place;
        const auto found = planner::candidates(q, rules);
        REQUIRE(found.ok());
        CHECK(found.value().front().direct);
        CHECK(found.value().front().algorithm->name == "twoshot");
      }
    }
  }
}

TEST_CASE("where ranks are in groups the grouped schedule is a candidate, else only on demand") {
  const Question q = question(Collective::kAllReduce, 8, 1 << 20);
  const auto has_grouped = [&](const Rules& rules) {
    const auto found = planner::candidates(q, rules);
    REQUIRE(found.ok());
    for (const planner::Candidate& c : found.value())
      if (c.algorithm->in_groups) return true;
    return false;
  };
  CHECK(!has_grouped(rules_for("")));
  CHECK(!has_grouped(rules_for("^ring")));
  CHECK(has_grouped(rules_for("grouped")));
  CHECK(has_grouped(rules_for("allreduce:ring,grouped")));
  Rules grouped = rules_for("");
  grouped.groups = {0, 0, 0, 0, 1, 1, 1, 1};
  CHECK(has_grouped(grouped));
  grouped = rules_for("^grouped");
  grouped.groups = {0, 0, 0, 0, 1, 1, 1, 1};
  CHECK(!has_grouped(grouped));
  grouped = rules_for("", true);  // sums in rank order
  grouped.groups = {0, 0, 0, 0, 1, 1, 1, 1};
  CHECK(!has_grouped(grouped));
}

TEST_CASE("the slower the links between groups, the more the grouped schedule gains") {
  const Question q = question(Collective::kAllReduce, 16, 4 << 20);
  Rules rules = rules_for("");
  for (int rank = 0; rank < 16; ++rank) rules.groups.push_back(rank % 2);
  const auto gain = [&](double gbps) {
    rules.between_groups_gbps = gbps;
    const auto found = planner::candidates(q, rules);
    REQUIRE(found.ok());
    double grouped = 0;
    double twoshot = 0;
    for (const planner::Candidate& c : found.value()) {
      if (c.algorithm->in_groups) grouped = c.predicted_us;
      if (c.algorithm->name == "twoshot") twoshot = c.predicted_us;
    }
    return twoshot / grouped;
  };
  CHECK(gain(1000) < gain(50));
  CHECK(gain(50) < gain(4));
  CHECK(gain(4) > 2);
  const auto found = planner::candidates(q, rules);
  REQUIRE(found.ok());
  CHECK(found.value().front().algorithm->in_groups);
}

TEST_CASE("over hosts large calls meet inside each host first, and single ranks keep the network busy") {
  Rules rules = rules_for("");
  rules.network = planner::kUsualNetwork;
  const auto first = [&](Collective collective, int ranks, std::uint64_t bytes) {
    const auto found = planner::candidates(question(collective, ranks, bytes), rules);
    REQUIRE(found.ok());
    return found.value().front().algorithm;
  };
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1, 1}}) {
    rules.groups = hosts;
    const int ranks = static_cast<int>(hosts.size());
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                        Collective::kBroadcast, Collective::kReduce}) {
      INFO(name_of(collective) << " of " << ranks << " ranks: " << first(collective, ranks, 16 << 20)->name);
      const auto* large = first(collective, ranks, 16 << 20);
      CHECK((large->over_hosts || large->in_groups));
    }
  }
  rules.groups = {0, 1};
  CHECK(!first(Collective::kAllReduce, 2, 1 << 10)->over_hosts);
  CHECK(first(Collective::kAllReduce, 2, 16 << 20)->name == "hosts_ring_deep");
  // The further the network, the more is under way at once.
  rules.groups = {0, 0, 1, 1};
  const auto gain = [&](double message_us) {
    rules.network.message_us = message_us;
    const auto found = planner::candidates(question(Collective::kAllReduce, 4, 16 << 20), rules);
    REQUIRE(found.ok());
    const auto us_of = [&](std::string_view name) {
      return std::ranges::find(found.value(), name, [](const auto& c) { return c.algorithm->name; })->predicted_us;
    };
    return us_of("hosts_ring") / us_of("hosts_ring_deep");
  };
  CHECK(gain(15) < gain(60));
  CHECK(gain(60) < gain(200));
  CHECK(gain(200) > 2);
  // Groups of one host are no hosts.
  rules.groups = {0, 0, 1, 1};
  rules.network = {};
  rules.between_groups_gbps = 1.5;
  const auto found = planner::candidates(question(Collective::kAllReduce, 4, 16 << 20), rules);
  REQUIRE(found.ok());
  for (const planner::Candidate& c : found.value()) CHECK(!c.algorithm->over_hosts);
}

TEST_CASE(
    "gather and scatter over hosts go by rails where these take work off the root, not where all ranks share cores") {
  Rules rules = rules_for("");
  const auto first = [&](Collective collective, std::uint64_t count, int root = 0) {
    Question q = question(collective, static_cast<int>(rules.groups.size()), count);
    q.request.root = root;
    const auto found = planner::candidates(q, rules);
    REQUIRE(found.ok());
    return std::string(found.value().front().algorithm->name);
  };
  for (const Collective collective : {Collective::kGather, Collective::kScatter}) {
    INFO(name_of(collective));
    rules.network = planner::kUsualNetwork;
    for (const std::uint64_t count : {std::uint64_t{4} << 10, std::uint64_t{4} << 20}) {
      for (const schedule::Groups& hosts : {schedule::Groups{0, 0, 1, 1}, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}}) {
        rules.groups = hosts;
        CHECK(first(collective, count) == "hosts_oneshot");
      }
      // The root has its host for itself: nobody is there to help it.
      rules.groups = {0, 1, 1, 1};
      CHECK(first(collective, count) == "oneshot");
    }
    // Ranks that share cores: what is taken off the root is added to others on its core. Who asks for it gets it.
    rules.groups = {0, 0, 0, 0, 1, 1, 1, 1};
    rules.crowding = 1.5;
    CHECK(first(collective, 4 << 20) == "oneshot");
    CHECK(first(collective, 4 << 20, 7) == "oneshot");
    rules.everywhere = rules_for("hosts_oneshot").everywhere;
    CHECK(first(collective, 4 << 20) == "hosts_oneshot");
    rules.everywhere = {};
    rules.crowding = 1;
    // A message costs no more than a word in shared memory.
    rules.network = {0.3, 0.01, 100};
    CHECK(first(collective, 16) == "oneshot");
  }
  // Flat to rails, of 4 hosts of 4 and blocks of 64 KiB.
  rules.network = planner::kUsualNetwork;
  rules.groups = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  const auto gain = [&](Collective collective) {
    const auto found = planner::candidates(question(collective, 16, 16 << 10), rules);
    REQUIRE(found.ok());
    const auto us_of = [&](std::string_view name) {
      return std::ranges::find(found.value(), name, [](const auto& c) { return c.algorithm->name; })->predicted_us;
    };
    return us_of("oneshot") / us_of("hosts_oneshot");
  };
  CHECK(gain(Collective::kGather) > 1.4);
  CHECK(gain(Collective::kScatter) > 3.5);
}

TEST_CASE("plans of a grouped communicator follow its groups, on every rank alike") {
  Rules rules = rules_for("grouped");
  rules.groups = {1, 0, 0, 1, 0};
  const Question q = question(Collective::kAllReduce, 5, 1000);
  const auto found = planner::candidates(q, rules);
  REQUIRE(found.ok());
  const planner::Plan plan = planner::make_plan(q, rules, found.value().front(), 3);
  CHECK(plan.shape.units == 4);  // the smaller group's two ranks, for two groups
  const schedule::Request request{Collective::kAllReduce, 5, 0, 0, &rules.groups};
  CHECK(*plan.program == found.value().front().algorithm->build(request, 3));
}
