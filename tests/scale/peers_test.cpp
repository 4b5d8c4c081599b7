// 1024 ranks of 128 hosts as peers in one thread: the library's own plans, announcements and lanes over channels in memory. Every rank
// checks every element. Prints what a rank takes, and bounds it.
#include "executor/host_machine.h"
#include "sim/heap_memory.h"
#include "sim/random.h"
#include "sim/world.h"

#include <malloc.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

using namespace tutti;

namespace {

using executor::HostMachine;
using protocol::Progress;

constexpr int kHosts = 128;
constexpr int kRanksPerHost = 8;
constexpr int kRanks = kHosts * kRanksPerHost;

/// The peers, one step of each in turn, in an order that is another one each time round.
class Peers {
 public:
  Peers(const sim::RunShape& shape, const std::vector<sim::PlannedCall>& calls)
      : random_(kSeed, 1), order_(static_cast<std::size_t>(shape.ranks)), over_(order_.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    for (int rank = 0; rank < shape.ranks; ++rank) {
      machines_.push_back(std::make_unique<HostMachine>(&abort_word_, nullptr));
      machines_.back()->set_reduce(reduce_function(DataType::kUint32, ReduceOp::kSum));
      pointers_.push_back(machines_.back().get());
    }
    world_ = std::make_unique<sim::World<HostMachine>>(shape, calls, memory_, pointers_);
  }

  /// Until all are through, or nobody can go on. `absent`: never does anything. Empty, or what went wrong.
  std::string run(int absent = -1) {
    for (;;) {
      for (std::size_t i = order_.size(); i > 1; --i)
        std::swap(order_[i - 1], order_[random_.below(static_cast<std::uint32_t>(i))]);
      bool moved = false;
      for (const int rank : order_) {
        if (over_[static_cast<std::size_t>(rank)] || rank == absent) continue;
        const Progress progress = world_->rank(rank).advance();
        if (progress == Progress::kFailed) return name(rank) + " gives up: " + world_->rank(rank).problem();
        over_[static_cast<std::size_t>(rank)] = progress == Progress::kDone;
        moved |= progress != Progress::kBlocked;
      }
      if (!moved) break;
    }
    const auto first = std::find(over_.begin(), over_.end(), false);
    return first == over_.end() ? "" : name(static_cast<int>(first - over_.begin())) + " waits for ever";
  }

  /// Whether all but `absent` and those that are through give up once the abort word is set.
  bool all_give_up(int absent) {
    abort_word_ = 1;
    for (std::size_t rank = 0; rank < over_.size(); ++rank) {
      if (over_[rank] || static_cast<int>(rank) == absent) continue;
      if (world_->rank(static_cast<int>(rank)).advance() != Progress::kFailed) return false;
    }
    return true;
  }
  std::size_t through() const { return static_cast<std::size_t>(std::count(over_.begin(), over_.end(), true)); }

 private:
  static constexpr std::uint64_t kSeed = 1024;
  static std::string name(int rank) { return "rank " + std::to_string(rank); }

  sim::Random random_;
  std::uint64_t abort_word_ = 0;
  sim::HeapMemory memory_;
  std::vector<std::unique_ptr<HostMachine>> machines_;
  std::vector<HostMachine*> pointers_;
  std::unique_ptr<sim::World<HostMachine>> world_;
  std::vector<int> order_;
  std::vector<bool> over_;  ///< by rank
};

double allocated_bytes() {
  const struct mallinfo2 now = mallinfo2();
  return static_cast<double>(now.uordblks + now.hblkhd);
}

schedule::Groups hosts_of_ranks() {
  schedule::Groups hosts;
  for (int rank = 0; rank < kRanks; ++rank) hosts.push_back(rank / kRanksPerHost);
  return hosts;
}

sim::RunShape shape_of_peers() {
  sim::RunShape shape;
  shape.ranks = kRanks;
  shape.slots = {2, 1024};
  shape.lines = {2, 64};
  shape.used_channels_only = true;
  return shape;
}

/// Twice the same call, so that channels are used again.
std::vector<sim::PlannedCall> planned(const sim::RunShape& shape, const char* row, sim::Protocol protocol,
                                      std::uint64_t count, const schedule::Groups& hosts) {
  sim::CallCase call;
  call.request = {Collective::kAllReduce, kRanks, 0, 0, &hosts};
  call.algorithm = algorithm::find(row, call.request);
  REQUIRE(call.algorithm != nullptr);
  call.protocol = protocol;
  call.count = count;
  auto plans = sim::make_plans(shape, call);
  INFO(row << ": " << (plans.ok() ? "" : plans.error().message));
  REQUIRE(plans.ok());
  return std::vector<sim::PlannedCall>(2, sim::PlannedCall{call, std::move(plans).value()});
}

}  // namespace

TEST_CASE("1024 simulated ranks of 128 hosts sum by every kind of schedule", "[peers]") {
  // The array of a rank's channel ends is as long as there are ranks, in each of two lanes, and so is the list of all ranks' buffers. The
  // rest are its plan and the memory of the channels that it uses.
  const auto [row, protocol, count, kib_max] = GENERATE(table<const char*, sim::Protocol, std::uint64_t, double>({
      {"oneshot", sim::Protocol::kAnnounce, 2, 600},
      {"hosts_tree", sim::Protocol::kLines, 14, 800},
      {"hosts_ring", sim::Protocol::kSlots, 501, 1200},
      {"hosts_twoshot", sim::Protocol::kSlots, 501, 1800},
      {"tree", sim::Protocol::kDirect, 501, 700},
      {"ring", sim::Protocol::kSlots, 1100, 1200},
  }));
  INFO(row << " over " << sim::name_of(protocol));
  const double before = allocated_bytes();
  const schedule::Groups hosts = hosts_of_ranks();
  const sim::RunShape shape = shape_of_peers();
  const auto calls = planned(shape, row, protocol, count, hosts);
  Peers peers(shape, calls);
  CHECK(peers.run() == "");
  const double kib = (allocated_bytes() - before) / 1024 / kRanks;
  std::printf("%d peers: %14s over %-8s %5.0f KiB per rank\n", kRanks, row, std::string(sim::name_of(protocol)).c_str(),
              kib);
  CHECK(kib <= kib_max);
}

TEST_CASE("1023 simulated ranks wait for the one that does not come, and give up when they are told to", "[peers]") {
  constexpr int kAbsent = 517;
  const schedule::Groups hosts = hosts_of_ranks();
  const sim::RunShape shape = shape_of_peers();
  const auto calls = planned(shape, "hosts_tree", sim::Protocol::kSlots, 501, hosts);
  Peers peers(shape, calls);
  CHECK(peers.run(kAbsent) == "rank 0 waits for ever");
  CHECK(peers.through() == 0);
  CHECK(peers.all_give_up(kAbsent));
}
