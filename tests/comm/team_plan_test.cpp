// Who works with whom in teams, and which memory the steps of a call touch.
#include "comm/team_plan.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

using namespace tutti;
using namespace tutti::comm;

using Ints = std::vector<std::int32_t>;

TEST_CASE("teams are made of several hosts with as many ranks each", "[teams]") {
  CHECK_FALSE(TeamLayout::of({0, 0, 0, 0}, 0));
  CHECK_FALSE(TeamLayout::of({0, 1, 2, 3}, 0));
  CHECK_FALSE(TeamLayout::of({0, 0, 0, 1}, 3));
  const auto layout = TeamLayout::of({0, 1, 0, 1, 0, 1}, 3);
  REQUIRE(layout);
  CHECK(layout->inside == std::vector<int>{1, 3, 5});
  CHECK(layout->across == std::vector<int>{2, 3});
  CHECK(layout->place == 1);
  CHECK(layout->host == 1);
  CHECK(layout->place_of(4) == 2);
  CHECK(layout->host_of(4) == 0);
}

struct Shape {
  Collective collective;
  schedule::Groups hosts;
  std::size_t count;
  std::size_t part_bytes;
};

/// Every step's places lie in the call's buffers, or in the half of the scratch memory that is the part's.
void check_places(const Shape& shape, int rank) {
  const auto layout = TeamLayout::of(shape.hosts, rank);
  REQUIRE(layout);
  const std::size_t ranks = shape.hosts.size();
  const bool scatters = shape.collective == Collective::kReduceScatter;
  const bool gathers = shape.collective == Collective::kAllGather;
  Ints in(scatters ? shape.count * ranks : shape.count);
  Ints out(gathers ? shape.count * ranks : shape.count);
  CallArgs call;
  call.collective = shape.collective;
  call.send = in.data();
  call.receive = out.data();
  call.count = shape.count;
  call.type = DataType::kInt32;
  call.root = 1;
  TeamPlan plan(call, *layout, shape.part_bytes);
  std::vector<std::byte> scratch(plan.scratch_bytes());
  plan.put_scratch(scratch.data());
  std::vector<bool> written(out.size());
  const auto lies_in = [](const void* place, std::size_t bytes, const void* memory, std::size_t length) {
    const auto* const begin = static_cast<const std::byte*>(memory);
    const auto* const at = static_cast<const std::byte*>(place);
    return at >= begin && at + bytes <= begin + length;
  };
  const auto may_use = [&](const void* place, std::size_t bytes, std::size_t part) {
    const std::size_t half = scratch.size() / 2;
    return lies_in(place, bytes, in.data(), in.size() * 4) || lies_in(place, bytes, out.data(), out.size() * 4) ||
           lies_in(place, bytes, scratch.data() + part % 2 * half, half);
  };
  const auto writes = [&](void* place, std::size_t bytes) {
    if (!lies_in(place, bytes, out.data(), out.size() * 4)) return;
    const auto first = static_cast<std::size_t>(static_cast<std::int32_t*>(place) - out.data());
    for (std::size_t i = first; i < first + bytes / 4; ++i) {
      CHECK_FALSE(written[i]);
      written[i] = true;
    }
  };
  const std::size_t k = layout->inside.size();
  for (std::size_t part = 0; part < plan.parts(); ++part) {
    for (const TeamStep& step : {plan.first(part), plan.last(part)}) {
      for (const auto* copies : {&step.before, &step.after}) {
        for (const TeamCopy& copy : *copies) {
          CHECK(may_use(copy.from, copy.bytes, part));
          CHECK(may_use(copy.to, copy.bytes, part));
          writes(copy.to, copy.bytes);
        }
      }
      if (!step.call) continue;
      const bool spreads =
          step.call->collective == Collective::kReduceScatter || step.call->collective == Collective::kScatter;
      const std::size_t bytes = step.call->count * 4;
      if (step.call->send != nullptr) CHECK(may_use(step.call->send, spreads ? k * bytes : bytes, part));
      if (step.call->receive == nullptr) continue;
      CHECK(may_use(step.call->receive, spreads ? bytes : k * bytes, part));
      writes(step.call->receive, spreads ? bytes : k * bytes);
    }
    const CallArgs across = plan.across(part);
    const std::size_t h = layout->across.size();
    CHECK(may_use(across.send, across.count * 4 * (scatters ? h : 1), part));
    CHECK(may_use(across.receive, across.count * 4 * (gathers ? h : 1), part));
    CHECK(across.count * 4 * (scatters || gathers ? h : 1) <= std::max<std::size_t>(shape.part_bytes, 4 * h));
    if (scatters) writes(across.receive, across.count * 4);
  }
  const bool has_output = shape.collective != Collective::kReduce || rank == 1;
  CHECK(std::ranges::all_of(written, [&](bool one) { return one == has_output; }));
}

TEST_CASE("a plan's steps keep to the call's buffers and to their part's scratch memory, and write each element once",
          "[teams]") {
  const auto collective = GENERATE(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
                                   Collective::kReduceScatter, Collective::kAllGather);
  const schedule::Groups hosts =
      GENERATE(schedule::Groups{0, 0, 1, 1}, schedule::Groups{0, 1, 0, 1, 0, 1}, schedule::Groups{0, 0, 1, 1, 2, 2});
  const std::size_t count = GENERATE(1, 5, 1009, 4096, 20011);
  const std::size_t part_bytes = GENERATE(4096, 65536);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    check_places({collective, hosts, count, part_bytes}, static_cast<int>(rank));
}

}  // namespace
