// Who works with whom in teams, and which memory the steps of a call touch.
#include "comm/team_plan.h"

#include "comm/staged_rounds.h"
#include "schedule/schedule.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

namespace {

using namespace tutti;
using namespace tutti::comm;

using Ints = std::vector<std::int32_t>;

TEST_CASE("teams are made of several hosts, some of which have several ranks", "[teams]") {
  CHECK_FALSE(TeamLayout::of({0, 0, 0, 0}, 0));
  CHECK_FALSE(TeamLayout::of({0, 1, 2, 3}, 0));
  const auto layout = TeamLayout::of({0, 1, 0, 1, 0, 1}, 3);
  REQUIRE(layout);
  CHECK(layout->inside == std::vector<int>{1, 3, 5});
  CHECK(layout->across == std::vector<int>{2, 3});
  CHECK(layout->place == 1);
  CHECK(layout->host == 1);
  CHECK(layout->place_of(4) == 2);
  CHECK(layout->host_of(4) == 0);
  CHECK(layout->is_even());
  CHECK(layout->ranks() == 6);
}

TEST_CASE("of a host with more ranks than another one some are in no team across, the same to all", "[teams]") {
  // 2, 8 and 3 ranks.
  const schedule::Groups hosts{0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2};
  const std::vector<std::vector<int>> across{{0, 2, 10}, {1, 6, 11}};
  for (int rank = 0; rank < 13; ++rank) {
    INFO("rank " << rank);
    const auto layout = TeamLayout::of(hosts, rank);
    REQUIRE(layout);
    CHECK_FALSE(layout->is_even());
    CHECK(layout->shares == 2);
    CHECK(layout->longest == 8);
    CHECK(layout->hosts == HostRanks{{0, 1}, {2, 6, 3, 4, 5, 7, 8, 9}, {10, 11, 12}});
    CHECK(layout->inside[static_cast<std::size_t>(layout->place)] == rank);
    CHECK(layout->inside == layout->hosts[static_cast<std::size_t>(hosts[static_cast<std::size_t>(rank)])]);
    const auto of_rank = [rank](const std::vector<int>& team) { return std::ranges::count(team, rank) != 0; };
    const auto team = std::ranges::find_if(across, of_rank);
    CHECK(layout->across == (team == across.end() ? std::vector<int>() : *team));
  }
  const auto most = TeamLayout::of({0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, 14);
  REQUIRE(most);
  CHECK(most->inside == std::vector<int>{7, 8, 9, 10, 11, 12, 13, 14});
  CHECK(most->across.empty());
}

TEST_CASE("blocks go by teams unless more than they are would cross to fill up hosts' slices", "[teams]") {
  const auto goes = [](Collective collective, const schedule::Groups& hosts, std::size_t part_bytes = 4096) {
    CallArgs call;
    call.collective = collective;
    call.type = DataType::kInt64;
    call.count = 100000;
    return TeamPlan::knows(call, *TeamLayout::of(hosts, 0), part_bytes);
  };
  const auto blocks = GENERATE(Collective::kAllGather, Collective::kReduceScatter);
  const schedule::Groups lone{0, 1, 1, 1, 1, 1, 1, 1};
  const schedule::Groups lone_ones{0, 1, 2, 2, 2, 2, 2, 2, 2};
  CHECK(goes(blocks, lone));
  CHECK_FALSE(goes(blocks, lone_ones));
  CHECK_FALSE(goes(blocks, lone, 64));
  for (const auto shared : {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast})
    CHECK(goes(shared, lone_ones));
  CHECK_FALSE(goes(Collective::kAllToAll, lone));
}

/// So many ranks on each host, one after another.
schedule::Groups ranks_on(const std::vector<int>& hosts) {
  schedule::Groups groups;
  for (std::size_t host = 0; host < hosts.size(); ++host)
    groups.insert(groups.end(), static_cast<std::size_t>(hosts[host]), static_cast<int>(host));
  return groups;
}

/// Even ones, and others: with one share, with hosts that have nearly as many ranks as shares, and twice as many.
std::vector<schedule::Groups> layouts() {
  return {ranks_on({2, 2}), {0, 1, 0, 1, 0, 1},  ranks_on({2, 2, 2}), ranks_on({1, 2}), ranks_on({2, 3}),
          ranks_on({5, 2}), ranks_on({3, 1, 2}), ranks_on({7, 8}),    ranks_on({1, 6}), {0, 1, 2, 1, 0, 1, 0}};
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
  for (std::size_t part = 0; part < plan.parts(); ++part) {
    for (const TeamStep& step : {plan.first(part), plan.last(part)}) {
      for (const auto* copies : {&step.before, &step.after}) {
        for (const TeamCopy& copy : *copies) {
          CHECK(may_use(copy.from, copy.bytes, part));
          CHECK(may_use(copy.to, copy.bytes, part));
          writes(copy.to, copy.bytes);
        }
      }
      for (const CallArgs& one : step.calls) {
        const std::size_t bytes = one.count * 4;
        const schedule::Request request{one.collective, static_cast<int>(layout->inside.size()), one.root, 0};
        const std::size_t input = schedule::input_blocks(request, layout->place) * bytes;
        const std::size_t output = schedule::output_blocks(request, layout->place) * bytes;
        if (input != 0) CHECK(may_use(one.send, input, part));
        if (output == 0) continue;
        CHECK(may_use(one.receive, output, part));
        writes(one.receive, output);
      }
    }
    if (layout->across.empty()) continue;
    const CallArgs across = plan.across(part);
    const std::size_t h = layout->across.size();
    CHECK(may_use(across.send, across.count * 4 * (scatters ? h : 1), part));
    CHECK(may_use(across.receive, across.count * 4 * (gathers ? h : 1), part));
    CHECK(across.count * 4 * (scatters || gathers ? h : 1) <= std::max<std::size_t>(shape.part_bytes, 4 * h));
    if (scatters) writes(across.receive, across.count * 4);
    // It is one part there too.
    CHECK(across.count <= elements_per_part(across, static_cast<int>(h), shape.part_bytes));
  }
  const bool has_output = shape.collective != Collective::kReduce || rank == 1;
  CHECK(std::ranges::all_of(written, [&](bool one) { return one == has_output; }));
}

TEST_CASE("a plan's steps keep to the call's buffers and to their part's scratch memory, and write each element once",
          "[teams]") {
  const auto collective = GENERATE(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
                                   Collective::kReduceScatter, Collective::kAllGather);
  const schedule::Groups hosts = GENERATE(from_range(layouts()));
  const std::size_t count = GENERATE(1, 5, 1009, 4096, 20011);
  const std::size_t part_bytes = GENERATE(4096, 65536);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    check_places({collective, hosts, count, part_bytes}, static_cast<int>(rank));
}

/// What each rank has, and its plan.
struct Worker {
  std::optional<TeamLayout> layout;
  Ints in, out;
  std::vector<std::byte> scratch;
  std::optional<TeamPlan> plan;
};

/// A team's call, with sums of ints.
void work(const std::vector<CallArgs>& calls) {
  const CallArgs& first = calls[0];
  const auto root = static_cast<std::size_t>(first.root);
  const std::size_t ranks = calls.size();
  const auto input = [&](std::size_t rank, std::size_t i) {
    return static_cast<const std::int32_t*>(calls[rank].send)[i];
  };
  const auto sum = [&](std::size_t i) {
    std::uint32_t all = 0;  // what lies in no buffer may be anything
    for (std::size_t rank = 0; rank < ranks; ++rank) all += static_cast<std::uint32_t>(input(rank, i));
    return static_cast<std::int32_t>(all);
  };
  std::vector<Ints> outputs(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const CallArgs& call = calls[rank];
    REQUIRE(call.collective == first.collective);
    REQUIRE(call.count == first.count);
    REQUIRE(call.root == first.root);
    REQUIRE(call.op == first.op);
    const schedule::Request request{call.collective, static_cast<int>(ranks), call.root, 0};
    outputs[rank].resize(schedule::output_blocks(request, static_cast<int>(rank)) * call.count);
    for (std::size_t i = 0; i < outputs[rank].size(); ++i) {
      switch (call.collective) {
        case Collective::kAllReduce:
        case Collective::kReduce: outputs[rank][i] = sum(i); break;
        case Collective::kBroadcast: outputs[rank][i] = input(root, i); break;
        case Collective::kReduceScatter: outputs[rank][i] = sum(rank * call.count + i); break;
        case Collective::kScatter: outputs[rank][i] = input(root, rank * call.count + i); break;
        default: outputs[rank][i] = input(i / call.count, i % call.count); break;
      }
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    std::ranges::copy(outputs[rank], static_cast<std::int32_t*>(calls[rank].receive));
}

void copy(const std::vector<TeamCopy>& copies) {
  for (const TeamCopy& one : copies) std::memmove(one.to, one.from, one.bytes);
}

/// The step that `step` gives of each rank's plan, on all hosts.
template <class Step>
void work_inside(std::vector<Worker>& workers, Step&& step) {
  for (const auto& host : workers[0].layout->hosts) {
    std::vector<TeamStep> steps;
    for (const int rank : host) steps.push_back(step(*workers[static_cast<std::size_t>(rank)].plan));
    for (const TeamStep& one : steps) copy(one.before);
    for (std::size_t i = 0; i < steps[0].calls.size(); ++i) {
      std::vector<CallArgs> calls;
      for (const TeamStep& one : steps) {
        REQUIRE(one.calls.size() == steps[0].calls.size());
        calls.push_back(one.calls[i]);
      }
      work(calls);
    }
    for (const TeamStep& one : steps) copy(one.after);
  }
}

void work_across(std::vector<Worker>& workers, std::size_t part) {
  for (std::size_t share = 0; share < workers[0].layout->shares; ++share) {
    std::vector<CallArgs> calls;
    for (const auto& host : workers[0].layout->hosts)
      calls.push_back(workers[static_cast<std::size_t>(host[share])].plan->across(part));
    work(calls);
  }
}

TEST_CASE("all ranks' plans together are the call", "[teams]") {
  const auto collective = GENERATE(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
                                   Collective::kReduceScatter, Collective::kAllGather);
  const schedule::Groups hosts = GENERATE(from_range(layouts()));
  const std::size_t count = GENERATE(1, 5, 1009, 4096);
  const std::size_t ranks = hosts.size();
  const bool is_rooted = collective == Collective::kReduce || collective == Collective::kBroadcast;
  for (std::size_t root = 0; root < (is_rooted ? ranks : 1); ++root) {
    std::vector<Worker> workers(ranks);
    std::vector<CallArgs> whole(ranks);
    std::vector<Ints> wanted(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Worker& worker = workers[rank];
      const schedule::Request request{collective, static_cast<int>(ranks), static_cast<int>(root), 0};
      worker.in.resize(schedule::input_blocks(request, static_cast<int>(rank)) * count);
      worker.out.resize(schedule::output_blocks(request, static_cast<int>(rank)) * count);
      wanted[rank].resize(worker.out.size());
      for (std::size_t i = 0; i < worker.in.size(); ++i)
        worker.in[i] = static_cast<std::int32_t>(i * (rank + 3) % 1013);
      CallArgs& call = whole[rank];
      call.collective = collective;
      call.count = count;
      call.type = DataType::kInt32;
      call.root = static_cast<int>(root);
      call.send = worker.in.data();
      call.receive = worker.out.data();
      worker.layout = TeamLayout::of(hosts, static_cast<int>(rank));
      REQUIRE(TeamPlan::knows(call, *worker.layout, 4096));
      worker.plan.emplace(call, *worker.layout, 4096);
      worker.scratch.resize(worker.plan->scratch_bytes(), std::byte{0x5a});
      worker.plan->put_scratch(worker.scratch.data());
    }
    for (std::size_t part = 0; part < workers[0].plan->parts(); ++part) {
      work_inside(workers, [&](const TeamPlan& plan) { return plan.first(part); });
      work_across(workers, part);
      work_inside(workers, [&](const TeamPlan& plan) { return plan.last(part); });
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) whole[rank].receive = wanted[rank].data();
    work(whole);
    for (std::size_t rank = 0; rank < ranks; ++rank) CHECK(workers[rank].out == wanted[rank]);
  }
}

}  // namespace
