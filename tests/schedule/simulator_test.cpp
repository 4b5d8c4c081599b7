#include "schedule/simulator.h"
#include "algorithm/algorithm.h"
#include "algorithm/packed_trees.h"
#include "schedule/fair_shares.h"
#include "schedule/text.h"
#include "tests/schedule/simple_simulator.h"

#include <catch2/catch.hpp>

#include <cstdio>
#include <random>
#include <set>
#include <string>

using namespace tutti;
using namespace tutti::schedule;

namespace {

constexpr double kMegabyte = 1e6;

Schedule parsed(const std::string& text) {
  Result<Schedule> schedule = parse(text);
  INFO((schedule.ok() ? "" : schedule.error().message));
  REQUIRE(schedule.ok());
  return std::move(schedule).value();
}

/// A link of 1 GB/s, which is 1 MB in 1000 us, from each rank to the next.
SimulatedMachine chain_machine(int ranks, double latency_us, double credit_us, double gbps = 1) {
  SimulatedMachine machine;
  for (int rank = 0; rank < ranks; ++rank) machine.links.push_back({gbps});
  machine.path = [=](int, int from, int) { return MessagePath{{{from, 1}}, latency_us, credit_us}; };
  return machine;
}

double time_of(const Schedule& schedule, const SimulatedMachine& machine, const SimulatedCall& call,
               const SimulationLimits& limits = {}) {
  const Result<SimulatedRun> run = simulate(schedule, machine, call, limits);
  INFO((run.ok() ? "" : run.error().message));
  REQUIRE(run.ok());
  return run.value().us;
}

SimulatedCall call_of(double bytes) {
  SimulatedCall call;
  call.count = static_cast<std::uint64_t>(bytes / 4);
  call.slots = {8, 1u << 30};
  return call;
}

/// One rank sends `units` units to the next, which sends them on, and so on.
Schedule chain_of(int ranks, int units) {
  std::string text = "schedule chain broadcast ranks " + std::to_string(ranks) + " units " + std::to_string(units) +
                     " lanes 1 input 1 output 1 scratch 0\n";
  for (int rank = 0; rank < ranks; ++rank) {
    text += "rank " + std::to_string(rank) + " lane 0\n";
    for (int unit = 0; unit < units; ++unit) {
      const std::string place = "[0." + std::to_string(unit) + "]";
      text += rank == 0 ? "  in" + place : "  recv " + std::to_string(rank - 1);
      text += " -> out" + place;
      if (rank + 1 < ranks) text += ", send " + std::to_string(rank + 1);
      text += "\n";
    }
  }
  return parsed(text);
}

Schedule row(const char* name, Collective collective, int ranks) {
  const Request request{collective, ranks, 0, 0};
  return make_schedule(*algorithm::find(name, request), request);
}

}  // namespace

TEST_CASE("rates are max-min fair") {
  FairShares shares({{0.010}, {0.020}});  // 10 and 20 bytes a microsecond
  const LinkPath first{{0, 1}}, both{{0, 1}, {1, 1}}, second{{1, 1}}, half{{1, 0.5}};
  const int a = shares.add(first);
  const int b = shares.add(both);
  const int c = shares.add(second);
  shares.settle();
  CHECK(shares.rate(a) == Approx(5));
  CHECK(shares.rate(b) == Approx(5));
  CHECK(shares.rate(c) == Approx(15));
  shares.remove(a);
  shares.settle();
  CHECK(shares.rate(b) == Approx(10));
  CHECK(shares.rate(c) == Approx(10));
  // Half of its bytes cross: it may be twice as fast.
  const int d = shares.add(half);
  shares.settle();
  CHECK(shares.rate(b) == Approx(8));
  CHECK(shares.rate(c) == Approx(8));
  CHECK(shares.rate(d) == Approx(8));
  // Three times the weight, three times the rate, where nothing else holds it.
  shares.remove(d);
  const int e = shares.add(second, 3);
  shares.settle();
  CHECK(shares.rate(b) == Approx(4));
  CHECK(shares.rate(c) == Approx(4));
  CHECK(shares.rate(e) == Approx(12));
}

TEST_CASE(
    "random rates: every transfer has a full link on which none is faster for its weight, and changes move only what "
    "they reach") {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    const int links = 1 + static_cast<int>(random() % 6);
    LinkTable table;
    for (int i = 0; i < links; ++i) table.push_back({1.0 + static_cast<double>(random() % 9)});
    FairShares shares(table);
    std::vector<LinkPath> paths(40);
    std::vector<int> numbers(40, -1);
    std::vector<double> weights(40, 1);
    for (int change = 0; change < 60; ++change) {
      const std::size_t i = random() % paths.size();
      if (numbers[i] >= 0) {
        shares.remove(numbers[i]);
        numbers[i] = -1;
      } else {
        paths[i].clear();
        for (int link = 0; link < links; ++link) {
          if (random() % 3 == 0) paths[i].push_back({link, random() % 2 == 0 ? 1.0 : 0.25});
        }
        if (paths[i].empty()) paths[i].push_back({0, 1});
        weights[i] = random() % 2 == 0 ? 1 : 0.1 * static_cast<double>(1 + random() % 30);
        numbers[i] = shares.add(paths[i], weights[i]);
      }
      shares.settle();
      std::vector<double> used(table.size(), 0), fastest(table.size(), 0);
      for (std::size_t p = 0; p < paths.size(); ++p) {
        if (numbers[p] < 0) continue;
        for (const LinkPart& part : paths[p]) {
          used[static_cast<std::size_t>(part.link)] += shares.rate(numbers[p]) * part.part;
          double& most = fastest[static_cast<std::size_t>(part.link)];
          most = std::max(most, shares.rate(numbers[p]) / weights[p]);
        }
      }
      for (std::size_t p = 0; p < paths.size(); ++p) {
        if (numbers[p] < 0) continue;
        const bool held_back = std::ranges::any_of(paths[p], [&](const LinkPart& part) {
          const auto link = static_cast<std::size_t>(part.link);
          return used[link] >= table[link].gbps * 1e3 * (1 - 1e-9) &&
                 shares.rate(numbers[p]) / weights[p] >= fastest[link] * (1 - 1e-9);
        });
        CHECK(held_back);
      }
      for (std::size_t link = 0; link < table.size(); ++link) CHECK(used[link] <= table[link].gbps * 1e3 * (1 + 1e-9));
    }
  }
}

TEST_CASE("one message, and a chain of ranks: alpha and beta") {
  SimulatedCall call = call_of(kMegabyte);
  call.base_us = 7;
  call.step_us = 2;
  // The sender's step, the bytes, the way, the receiver's step.
  CHECK(time_of(chain_of(2, 1), chain_machine(2, 10, 0), call) == Approx(7 + 2 + 1000 + 10 + 2));
  CHECK(time_of(chain_of(5, 1), chain_machine(5, 10, 0), call) == Approx(7 + 4 * (2 + 1000 + 10) + 2));
  // Units follow each other: the last one sets out when those before have crossed. Of 250,000 elements 62,512 make a unit.
  call.step_us = 0;
  call.base_us = 0;
  const double unit_us = 62512 * 4 / 1e3;
  CHECK(time_of(chain_of(5, 4), chain_machine(5, 10, 0), call) == Approx(1000 + 10 + 3 * (unit_us + 10)).epsilon(1e-3));
}

TEST_CASE("ring: 2 (n - 1) hops of a unit") {
  for (const int ranks : {2, 3, 4, 8}) {
    SimulatedCall call = call_of(ranks * kMegabyte);
    call.step_us = 0.5;
    for (const bool direct : {false, true}) {
      call.direct = direct;
      const double hop = 0.5 + 1000 + 3;
      CHECK(time_of(row("ring", Collective::kAllReduce, ranks), chain_machine(ranks, 3, 1), call) ==
            Approx(2 * (ranks - 1) * hop + 0.5));
      CHECK(time_of(row("ring", Collective::kReduceScatter, ranks), chain_machine(ranks, 3, 1), call_of(kMegabyte)) ==
            Approx((ranks - 1) * (1000 + 3)));
    }
  }
}

TEST_CASE("transfers on one link share it") {
  // All others send to rank 0 over its one link.
  for (const int ranks : {2, 4, 9}) {
    SimulatedMachine machine;
    machine.links = {{1}};
    machine.path = [](int, int, int) { return MessagePath{{{0, 1}}, 5, 1}; };
    CHECK(time_of(row("oneshot", Collective::kReduce, ranks), machine, call_of(kMegabyte)) ==
          Approx((ranks - 1) * 1000 + 5));
  }
}

TEST_CASE("slots bound what is under way, and come back after the credit's way") {
  constexpr int kUnits = 25;
  const Schedule schedule = chain_of(2, kUnits);
  const double bytes = kUnits * 16000.0;  // 16 us a unit
  for (const std::uint32_t slots : {1u, 2u, 3u, 4u, 8u}) {
    SimulatedCall call = call_of(bytes);
    call.slots.slots = slots;
    const double there_and_back = 16 + 20 + 30;
    // Every `slots` units wait for the first of those before to be read, unless these are still under way.
    const double turn = std::max(there_and_back, 16.0 * slots);
    const int turns = (kUnits - 1) / static_cast<int>(slots);
    const int rest = (kUnits - 1) % static_cast<int>(slots);
    CHECK(time_of(schedule, chain_machine(2, 20, 30), call) == Approx(turns * turn + rest * 16 + 16 + 20));
  }
}

TEST_CASE("a message larger than a slot goes in rounds; what is extrapolated is near what is run") {
  SimulatedCall call = call_of(64 * kMegabyte);
  call.slots = {4, 64 << 10};
  call.step_us = 0.3;
  for (const char* name : {"ring", "tree", "twoshot", "halving_doubling"}) {
    const Schedule schedule = row(name, Collective::kAllReduce, 4);
    SimulatedMachine machine = chain_machine(16, 4, 2, 10);
    machine.path = [](int, int from, int to) { return MessagePath{{{from * 4 + to, 1}}, 4, 2}; };
    const Result<SimulatedRun> whole = simulate(schedule, machine, call, {});
    const Result<SimulatedRun> part = simulate(schedule, machine, call, {4000, 0, {}});
    REQUIRE(whole.ok());
    REQUIRE(part.ok());
    INFO(name << ": " << whole.value().us << " and " << part.value().us);
    CHECK(whole.value().rounds_run == whole.value().rounds);
    CHECK(part.value().rounds_run < part.value().rounds);
    CHECK(part.value().us == Approx(whole.value().us).epsilon(0.01));
  }
}

TEST_CASE("rounds that are extrapolated take what lanes take together, not what the last one takes alone") {
  // Lane 0 sends all the time, lane 1 waits for an answer first: it falls behind, and is alone on the link once lane 0 is done.
  const Schedule schedule = parsed(
      "schedule drift broadcast ranks 2 units 1 lanes 2 input 1 output 1 scratch 0\n"
      "rank 0 lane 0\n  in[0.0] -> out[0.0], send 1\n"
      "rank 0 lane 1\n  in[0.0] -> out[0.0], send 1\n  wait 1\n"
      "rank 1 lane 0\n  recv 0 -> out[0.0]\n"
      "rank 1 lane 1\n  recv 0 -> out[0.0]\n  -> signal 0\n");
  SimulatedCall call = call_of(2 * 320 * kMegabyte);
  call.slots = {8, 1'000'000};
  const SimulatedMachine machine = chain_machine(2, 500, 0);
  const double whole = time_of(schedule, machine, call);
  CHECK(whole > 320 * 2 * 1000);  // the link's own time
  CHECK(time_of(schedule, machine, call, {160, 0, {}}) == Approx(whole).epsilon(0.03));
}

TEST_CASE("lanes that wait for their own data halve a chain of trees; those that do not use both directions") {
  const algorithm::Parents line{1, algorithm::kNoParent, 1, 2};
  const Schedule schedule = algorithm::packed_trees({line}, 256);
  SimulatedMachine machine;
  for (int i = 0; i < 16; ++i) machine.links.push_back({50});
  machine.path = [](int, int from, int to) { return MessagePath{{{from * 4 + to, 1}}, 3, 0.6}; };
  SimulatedCall call = call_of(128 * kMegabyte);
  call.slots = {8, 512 << 10};
  const double bound = 128 * kMegabyte / 50e3;
  CHECK(bound / time_of(schedule, machine, call) > 0.96);
  call.held = true;
  CHECK(bound / time_of(schedule, machine, call) == Approx(0.48).margin(0.03));
}

TEST_CASE("host memory: a step's copies cross its core and the memory that all share") {
  // Each of two ranks copies its input to a slot, then adds two sources to one sink: 1 + 2 units of work at 1 GB/s a core.
  SimulatedMachine machine;
  machine.links = {{1}, {1}, {100}};
  machine.path = [](int, int, int) { return MessagePath{{}, 0.5, 0.1}; };
  machine.work = {{{0, 1}, {2, 1}}, {{1, 1}, {2, 1}}};
  SimulatedCall call = call_of(kMegabyte);
  call.held = true;
  const Schedule schedule = row("oneshot", Collective::kAllReduce, 2);
  CHECK(time_of(schedule, machine, call) == Approx(3000 + 0.5));
  machine.links[2] = {1};  // both at once on a memory no faster than a core
  CHECK(time_of(schedule, machine, call) == Approx(6000 + 0.5));
}

TEST_CASE("what cannot end says who waits; progress may end a run") {
  const Schedule stuck = parsed(
      "schedule bad all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0\n"
      "rank 0 lane 0\n  in[0.0] + recv 1 -> out[0.0] finish\n  in[0.0] -> send 1\n"
      "rank 1 lane 0\n  in[0.0] + recv 0 -> out[0.0] finish\n  in[0.0] -> send 0\n");
  const auto run = simulate(stuck, chain_machine(2, 1, 1), call_of(64));
  REQUIRE_FALSE(run.ok());
  CHECK_THAT(run.error().message, Catch::Contains("rank 0, lane 0, step 0 of round 0 waits for a message of rank 1"));

  SimulationLimits limits;
  double last = 0;
  int calls = 0;
  limits.progress = [&](double part) {
    CHECK(part >= last);
    last = part;
    return ++calls < 2;
  };
  SimulatedCall call = call_of(64 * kMegabyte);
  call.slots = {4, 4 << 10};
  const auto ended = simulate(row("ring", Collective::kAllReduce, 4), chain_machine(4, 1, 1), call, limits);
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().code == Code::kInProgress);
  CHECK(calls == 2);
}

namespace {

/// Any links, any ways over them.
SimulatedMachine random_machine(int ranks, std::mt19937_64& random) {
  SimulatedMachine machine;
  const int links = 1 + static_cast<int>(random() % 8);
  for (int i = 0; i < links; ++i) machine.links.push_back({1.0 + static_cast<double>(random() % 50)});
  const std::uint64_t seed = random();
  machine.path = [seed, links](int lane, int from, int to) {
    std::mt19937_64 own(seed + static_cast<std::uint64_t>((lane * 64 + from) * 64 + to));
    MessagePath path;
    std::set<int> crossed;
    for (std::uint64_t hops = own() % 4; hops > 0; --hops)
      crossed.insert(static_cast<int>(own() % static_cast<std::uint64_t>(links)));
    for (const int link : crossed) path.links.push_back({link, own() % 3 == 0 ? 0.5 : 1.0});
    path.latency_us = static_cast<double>(own() % 50) / 10;
    path.credit_us = static_cast<double>(own() % 20) / 10;
    return path;
  };
  if (random() % 4 == 0) {
    for (int rank = 0; rank < ranks; ++rank)
      machine.work.push_back({{static_cast<int>(random() % static_cast<std::uint64_t>(links)), 1}});
  }
  return machine;
}

/// Below the root, from which ranks count on, each hangs on one before it.
algorithm::Parents random_tree(int ranks, int root, std::mt19937_64& random) {
  algorithm::Parents parents(static_cast<std::size_t>(ranks), algorithm::kNoParent);
  for (int i = 1; i < ranks; ++i) {
    const int above = static_cast<int>(random() % static_cast<std::uint64_t>(i));
    parents[static_cast<std::size_t>((root + i) % ranks)] = (root + above) % ranks;
  }
  return parents;
}

/// Channels that carry from none to all of the ranks' blocks.
Schedule random_rooted_trees(int ranks, std::mt19937_64& random) {
  const int units = 1 + static_cast<int>(random() % 12);
  std::vector<algorithm::RootedTrees> lanes(1 + random() % 2);
  for (algorithm::RootedTrees& trees : lanes) {
    for (int root = 0; root < ranks; ++root) trees.push_back(random_tree(ranks, root, random));
  }
  return random() % 2 == 0 ? algorithm::packed_out_trees(lanes, units, 4) : algorithm::packed_in_trees(lanes, units, 4);
}

Schedule random_schedule(int ranks, std::mt19937_64& random) {
  constexpr const char* kRows[] = {"ring", "tree", "oneshot", "twoshot", "halving_doubling"};
  constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter};
  if (random() % 3 == 0) {
    std::vector<algorithm::Parents> lanes(1 + random() % 3);
    for (algorithm::Parents& parents : lanes) parents = random_tree(ranks, 0, random);
    return algorithm::packed_trees(lanes, 1 + static_cast<int>(random() % 12));
  }
  for (;;) {
    const Request request{kCollectives[random() % 3], ranks, 0, 0};
    const algorithm::Algorithm* found = algorithm::find(kRows[random() % 5], request);
    if (found != nullptr) return make_schedule(*found, request);
  }
}

}  // namespace

TEST_CASE("a second, simple simulator agrees on random schedules and graphs") {
  const unsigned seed = 20;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  double worst = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const bool rooted = trial >= 400;
    const int ranks = 2 + static_cast<int>(random() % 5);
    const Schedule schedule = rooted ? random_rooted_trees(ranks, random) : random_schedule(ranks, random);
    SimulatedMachine machine = random_machine(ranks, random);
    // Their many short steps one after another would add up what times are rounded by.
    if (rooted) machine.work.clear();
    SimulatedCall call;
    call.count = 1 + random() % 40000;
    call.slots = {static_cast<std::uint32_t>(4 + random() % 5), 4096u << random() % 5};
    call.direct = random() % 2 == 0;
    call.held = !machine.work.empty() || (random() % 2 == 0 && !rooted);
    call.base_us = 1;
    call.step_us = static_cast<double>(random() % 4) / 8;
    call.wire_bytes = random() % 3 == 0 ? 2 : 1;
    const double expected = SimpleSimulator(schedule, machine, call).run();
    const double found = time_of(schedule, machine, call);
    INFO("trial " << trial << ": " << schedule.algorithm << " of " << ranks << ", direct " << call.direct << ", held "
                  << call.held << ", " << call.count << " elements");
    CHECK(found == Approx(expected).epsilon(1e-5));
    worst = std::max(worst, std::abs(found - expected) / expected);
  }
  std::printf("two simulators, 600 schedules: the times differ by %.1e of themselves at most\n", worst);
}
