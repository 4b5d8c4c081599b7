// Slots that are written past the caches: which sinks of a step the lane tells the kernel to write so.
#include "executor/host_machine.h"
#include "planner/plan.h"
#include "protocol/lane.h"
#include "protocol/lane_storage.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

using namespace tutti;

namespace {

constexpr protocol::SlotShape kSlots{4, 8192};
constexpr std::uint64_t kAbort = 0;

struct Seen {
  int calls = 0;
  int streamed = 0;
  std::size_t past = 0;  ///< bytes of which some destination was
  std::vector<void*> destinations;
};
Seen seen;

void look(const ReduceArgs& args) {
  ++seen.calls;
  if (args.streamed_count > 0) seen.past += args.count;
  seen.streamed = args.streamed_count;
  seen.destinations.assign(args.destinations, args.destinations + args.destination_count);
}

/// What the root of a one-shot broadcast does with so many bytes: from its input to its output and into a slot.
struct Root {
  std::vector<std::byte> input, output, outbox = std::vector<std::byte>(kSlots.bytes());
  protocol::PairLine mine{}, theirs{};

  Seen broadcast(std::size_t bytes, std::uint32_t streamed_parts, bool streams_slots) {
    input.resize(bytes);
    output.resize(bytes);
    planner::Question q;
    q.request = {Collective::kBroadcast, 2, 0, 0};
    q.count = bytes;
    planner::Rules rules = planner::make_rules("oneshot", false).value();
    rules.slots = kSlots;
    const auto plan = planner::make_plan(q, rules, planner::candidates(q, rules).value().front(), 0);
    const auto& program = plan.program->lanes.front();
    std::vector<protocol::Channel> channels(2);
    channels[1].mine = &mine;
    channels[1].theirs = &theirs;
    channels[1].outbox = outbox.data();
    protocol::LaneStorage storage;
    protocol::LaneCall call;
    call.steps = program.steps.data();
    call.step_count = static_cast<std::uint32_t>(program.steps.size());
    call.endpoints = program.endpoints.data();
    call.tiling = plan.tiling;
    call.input = input.data();
    call.output = output.data();
    call.channels = channels.data();
    call.slot_shape = kSlots;
    call.streamed_parts = streamed_parts;
    call.streams_slots = streams_slots;
    call.workspace = storage.workspace(program.steps, 2, {});
    protocol::Lane<executor::HostMachine> lane;
    executor::HostMachine machine{&kAbort, nullptr};
    machine.set_reduce(look);
    seen = {};
    lane.start(call);
    CHECK(lane.advance(machine) == protocol::Progress::kDone);
    return seen;
  }
};

}  // namespace

TEST_CASE("a lane writes slots past the caches if it is told to, but for short messages", "[streams]") {
  Root root;
  const auto first = [&](const Seen& s) { return s.destinations.front(); };
  Seen s = root.broadcast(protocol::kStreamedBytes, 0, true);
  REQUIRE(s.calls == 1);
  REQUIRE(s.destinations.size() == 2);
  CHECK(s.streamed == 1);
  CHECK(first(s) == root.outbox.data());
  CHECK(root.broadcast(protocol::kStreamedBytes - 1, 0, true).streamed == 0);
  CHECK(root.broadcast(protocol::kStreamedBytes, 0, false).streamed == 0);
  CHECK(root.broadcast(protocol::kStreamedBytes, protocol::kStreamedParts, true).streamed == 2);
  s = root.broadcast(protocol::kStreamedBytes, protocol::kStreamedParts, false);
  CHECK(s.streamed == 1);
  CHECK(first(s) == root.output.data());
}

TEST_CASE("a lane writes as many parts of an output past the caches as it is told to", "[streams]") {
  constexpr std::size_t kUnit = std::size_t{protocol::kStreamedParts} * protocol::kStreamedElements;
  Root root;
  for (const std::uint32_t parts : {0u, 1u, 16u, 63u, 64u}) {
    const Seen s = root.broadcast(kUnit, parts, false);
    CHECK(s.past == kUnit / protocol::kStreamedParts * parts);
    CHECK(s.calls == (parts % protocol::kStreamedParts == 0 ? 1 : 2));
    CHECK(s.streamed == (parts == protocol::kStreamedParts ? 1 : 0));  // the last ones are not
    // Slots are written one way, whatever becomes of the output beside them.
    CHECK(root.broadcast(kUnit, parts, true).past == kUnit);
  }
}

TEST_CASE("what others read is stored whole, past the caches too", "[streams]") {
  for (const bool streams : {false, true}) {
    executor::HostMachine machine{&kAbort, nullptr};
    machine.set_stores({streams, 0});
    for (const std::size_t bytes : {3u, 64u, 1023u, 1024u, 2047u, 2048u, 2049u, 5001u, 8192u, 8193u}) {
      std::vector<std::byte> from(bytes), to(bytes + 64);
      for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
      machine.prepare_write(to.data(), bytes);
      machine.store_bytes(to.data(), from.data(), bytes);
      const auto is_whole = [&] {
        return std::equal(from.begin(), from.end(), to.begin()) &&
               std::all_of(to.begin() + static_cast<std::ptrdiff_t>(bytes), to.end(),
                           [](std::byte b) { return b == std::byte{0}; });
      };
      CHECK(is_whole());
      std::ranges::fill(to, std::byte{0});
      machine.store_ahead(to.data(), from.data(), bytes);
      CHECK(is_whole());
      std::ranges::fill(to, std::byte{0});
      machine.load_bytes(to.data(), from.data(), bytes);
      CHECK(is_whole());
    }
  }
}
