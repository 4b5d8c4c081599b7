// Single copies: how a lane cuts what only system calls reach into tiles.
#include "executor/host_machine.h"
#include "planner/plan.h"
#include "protocol/lane.h"
#include "protocol/lane_storage.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

using namespace tutti;

namespace {

constexpr std::uint64_t kAbort = 0;

/// "Other processes": this one's own memory.
class Copies final : public executor::RemoteMemory {
 public:
  std::vector<std::size_t> read_bytes, written_bytes;

  bool read(std::uint32_t, std::uint64_t address, std::byte* local, std::size_t bytes) override {
    read_bytes.push_back(bytes);
    std::memcpy(local, reinterpret_cast<const void*>(address), bytes);
    return true;
  }
  bool write(std::uint32_t, std::uint64_t address, const std::byte* local, std::size_t bytes) override {
    written_bytes.push_back(bytes);
    std::memcpy(reinterpret_cast<void*>(address), local, bytes);
    return true;
  }
};

/// What rank 0 does in a two-shot all-reduce in place of so many bytes per rank, whose peers have announced all and push nothing.
class Rank {
 public:
  Copies copies;

  Rank(int ranks, std::size_t bytes_of_rank) : ranks_(ranks) {
    const std::size_t count = bytes_of_rank / sizeof(std::uint32_t) * static_cast<std::size_t>(ranks);
    buffers_.assign(static_cast<std::size_t>(ranks), std::vector<std::uint32_t>(count));
    for (std::size_t r = 0; r < buffers_.size(); ++r) {
      std::iota(buffers_[r].begin(), buffers_[r].end(), static_cast<std::uint32_t>(r * 1000003));
    }
  }

  void all_reduce() {
    planner::Question q;
    q.request = {Collective::kAllReduce, ranks_, 0, 0};
    q.count = buffers_[0].size();
    q.element_bytes = sizeof(std::uint32_t);
    q.access = planner::Access::kSingleCopy;
    q.in_place = true;
    planner::Rules rules = planner::make_rules("twoshot", false).value();
    rules.slots = {4, 8192};
    rules.single_copy_min_bytes = 1;
    const auto plan = planner::make_plan(q, rules, planner::candidates(q, rules).value().front(), 0);
    REQUIRE(plan.direct);
    const auto& program = plan.program->lanes.front();
    const auto peers = static_cast<std::size_t>(ranks_);
    std::vector<protocol::PairLine> mine(peers), theirs(peers);
    std::vector<protocol::Channel> channels(peers);
    std::vector<protocol::PeerBuffers> reach(peers);
    for (std::size_t r = 0; r < peers; ++r) {
      channels[r].mine = &mine[r];
      channels[r].theirs = &theirs[r];
      theirs[r].tail = 2;  // its input and its sum are there
      theirs[r].head = 1;  // it has read what it wanted
      reach[r].input = reach[r].output = reinterpret_cast<std::uint64_t>(buffers_[r].data());
    }
    protocol::LaneStorage storage;
    protocol::LaneCall call;
    call.steps = program.steps.data();
    call.step_count = static_cast<std::uint32_t>(program.steps.size());
    call.endpoints = program.endpoints.data();
    call.tiling = plan.tiling;
    call.input = call.output = reinterpret_cast<std::byte*>(buffers_[0].data());
    call.channels = channels.data();
    call.slot_shape = rules.slots;
    call.peers = reach.data();
    call.direct = true;
    call.workspace = storage.workspace(program.steps, ranks_, {});
    protocol::Lane<executor::HostMachine> lane;
    executor::HostMachine machine{&kAbort, &copies};
    machine.set_reduce(reduce_function(DataType::kUint32, ReduceOp::kSum));
    lane.start(call);
    protocol::Progress progress = protocol::Progress::kAdvanced;
    for (int i = 0; i < 10 && progress != protocol::Progress::kDone; ++i) progress = lane.advance(machine);
    CHECK(progress == protocol::Progress::kDone);
  }
  /// Rank 0's part of every buffer holds the sum.
  bool is_summed() const {
    const std::size_t part = buffers_[0].size() / buffers_.size();
    for (std::size_t i = 0; i < part; ++i) {
      std::uint32_t sum = 0;
      for (std::size_t r = 0; r < buffers_.size(); ++r) sum += static_cast<std::uint32_t>(r * 1000003 + i);
      const auto has_sum = [&](const std::vector<std::uint32_t>& buffer) { return buffer[i] == sum; };
      if (!std::ranges::all_of(buffers_, has_sum)) return false;
    }
    return true;
  }

 private:
  int ranks_;
  std::vector<std::vector<std::uint32_t>> buffers_;
};

}  // namespace

TEST_CASE("steps of few sources are cut into long tiles, others into short ones", "[tiles]") {
  constexpr std::size_t kLong = executor::HostMachine::kLongTileBytes;
  constexpr std::size_t kShort = protocol::Lane<executor::HostMachine>::kTileBytes;
  constexpr int kFew = protocol::Lane<executor::HostMachine>::kLongTileSources;
  for (const int ranks : {2, kFew, kFew + 1}) {
    CAPTURE(ranks);
    const std::size_t tile = ranks <= kFew ? kLong : kShort;
    Rank rank(ranks, 2 * tile + 4096);
    rank.all_reduce();
    CHECK(rank.is_summed());
    const auto peers = static_cast<std::size_t>(ranks - 1);
    for (const auto* const bytes : {&rank.copies.read_bytes, &rank.copies.written_bytes}) {
      REQUIRE(bytes->size() == 3 * peers);
      CHECK(bytes->front() == tile);
      CHECK(bytes->back() == 4096);
    }
  }
}
