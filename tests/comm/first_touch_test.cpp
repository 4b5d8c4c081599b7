// Where memory of the control segment comes to lie: pages appear where they are first touched, so what one rank writes must share
// no page with what others write, and nobody may touch it before (docs/decisions/0008-topology-plug-in.md).
#include "comm/control.h"

#include "base/mapping.h"
#include "planner/tuning.h"

#include <sys/mman.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

using namespace tutti;
using comm::Control;

namespace {

constexpr std::size_t kPage = 4096;

Control opened(int ranks) {
  const std::size_t bytes = Control::bytes_for(ranks);
  auto file = create_memory_file("tutti-first-touch", bytes, Backing::kOnTouch);
  REQUIRE(file.ok());
  auto memory = Control::map(file.value().get(), bytes, ranks);
  REQUIRE(memory.ok());
  return Control::open(std::move(memory).value(), bytes, ranks, true, Control::slots_on_host(ranks));
}

bool is_whole_pages(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % kPage == 0 && bytes % kPage == 0;
}

std::size_t pages_present(void* at, std::size_t bytes) {
  std::vector<unsigned char> present(bytes / kPage);
  REQUIRE(mincore(at, bytes, present.data()) == 0);
  std::size_t count = 0;
  for (const unsigned char page : present) count += page & 1;
  return count;
}

bool has_slots_of_its_own(std::uint32_t lane) { return lane <= comm::kFirstCollectiveLane; }

}  // namespace

TEST_CASE("slots and lines of a channel are whole pages, and nobody has touched them at first", "[first-touch]") {
  for (const int ranks : {2, 3, 8, 16, 17, 64}) {
    INFO(ranks << " ranks");
    const Control control = opened(ranks);
    for (const int peer : {1, ranks - 1}) {
      for (std::uint32_t lane = 0; lane < comm::kFirstCollectiveLane + comm::collective_lanes(ranks); ++lane) {
        const protocol::Channel channel = control.channel(0, peer, lane);
        if (has_slots_of_its_own(lane)) {
          REQUIRE(is_whole_pages(channel.outbox, control.slot_shape().bytes()));
          CHECK(pages_present(channel.outbox, control.slot_shape().bytes()) == 0);
        }
        REQUIRE(is_whole_pages(channel.outlines, control.line_shape().bytes()));
        CHECK(pages_present(channel.outlines, control.line_shape().bytes()) == 0);
      }
    }
  }
}

TEST_CASE("channels of all lanes lie apart from each other, inside the segment", "[first-touch]") {
  for (const int ranks : {2, 3, 9, 17}) {
    INFO(ranks << " ranks");
    const Control control = opened(ranks);
    std::vector<std::pair<const std::byte*, const std::byte*>> parts;
    const auto add = [&](const void* at, std::size_t bytes) {
      const auto* const first = static_cast<const std::byte*>(at);
      parts.emplace_back(first, first + bytes);
    };
    for (std::uint32_t lane = 0; lane < comm::kFirstCollectiveLane + comm::collective_lanes(ranks); ++lane) {
      for (int me = 0; me < ranks; ++me) {
        for (int peer = 0; peer < ranks; ++peer) {
          if (me == peer) continue;
          const protocol::Channel channel = control.channel(me, peer, lane);
          if (has_slots_of_its_own(lane)) add(channel.outbox, control.slot_shape().bytes());
          add(channel.outlines, control.line_shape().bytes());
          add(channel.mine, sizeof(protocol::PairLine));
          const protocol::Channel other_end = control.channel(peer, me, lane);
          CHECK((channel.outbox == other_end.inbox && channel.outlines == other_end.inlines));
          CHECK(channel.mine == other_end.theirs);
        }
      }
    }
    std::ranges::sort(parts);
    const auto overlap = [](const auto& a, const auto& b) { return a.second > b.first; };
    CHECK(std::ranges::adjacent_find(parts, overlap) == parts.end());
    CHECK(parts.front().first >= control.memory().data());
    CHECK(parts.back().second <= control.memory().data() + control.memory().size());
  }
}

TEST_CASE("lanes of a plan lie apart from each other in the slots that they share", "[first-touch]") {
  for (const int ranks : {2, 8, 16, 64}) {
    const Control control = opened(ranks);
    const protocol::SlotShape whole = control.slot_shape();
    const auto slots_begin = [&](std::uint32_t lane) { return control.channel(0, 1, lane).outbox; };
    for (std::uint32_t lanes = 1; lanes <= comm::collective_lanes(ranks); ++lanes) {
      INFO(ranks << " ranks, " << lanes << " lanes");
      const protocol::SlotShape slots = planner::slots_of_plan(whole, lanes);
      CHECK(slots.slots == whole.slots);
      CHECK(slots.slot_bytes % 64 == 0);
      std::vector<const std::byte*> parts;
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        const std::byte* const first = slots_begin(comm::kFirstCollectiveLane + lane);
        for (std::uint32_t slot = 0; slot < whole.slots; ++slot) parts.push_back(first + slot * whole.slot_bytes);
        const std::byte* const own = slots_begin(comm::kFirstCollectiveLane);
        CHECK(first >= own);
        CHECK(first + slots.slot_bytes <= own + whole.slot_bytes);
      }
      std::ranges::sort(parts);
      const auto overlap = [&](const std::byte* a, const std::byte* b) { return b < a + slots.slot_bytes; };
      CHECK(std::ranges::adjacent_find(parts, overlap) == parts.end());
    }
  }
}

TEST_CASE("plans with more lanes have shorter messages, and many ranks have two lanes", "[first-touch]") {
  const protocol::SlotShape whole{8, 64 << 10};
  CHECK(planner::slots_of_plan(whole, 1).slot_bytes == 64 << 10);
  CHECK(planner::slots_of_plan(whole, 2).slot_bytes == 32 << 10);
  CHECK(planner::slots_of_plan(whole, 3).slot_bytes == 16 << 10);
  CHECK(planner::slots_of_plan(whole, 24).slot_bytes == 2 << 10);
  CHECK(planner::slots_of_plan(whole, 32).slot_bytes == 2 << 10);
  CHECK(comm::collective_lanes(64) == 32);
  CHECK(comm::collective_lanes(65) == 2);
}

TEST_CASE("a communicator's segment has 4 MB and one more for each peer at most, for each rank", "[first-touch]") {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    INFO(ranks << " ranks");
    CHECK(Control::bytes_for(ranks) <=
          static_cast<std::size_t>(ranks) * static_cast<std::size_t>(4 + ranks - 1) * 1000000);
  }
}

TEST_CASE("the machine's board takes no memory for texts that nobody has written", "[first-touch]") {
  const Control control = opened(8);
  for (int rank = 0; rank < 8; ++rank) control.machine().sit(rank, {}, {});
  // The board begins on a page, with headers and seats; texts follow.
  const std::size_t head = comm::MachineBoard::bytes_for(8) - comm::MachineBoard::kTextBytes;
  auto* const board = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(control.tuning_text()) +
                                                   (planner::kTuningBytesMax + kPage - 1) / kPage * kPage);
  const std::size_t whole = (head + comm::MachineBoard::kTextBytes) / kPage * kPage;
  CHECK(pages_present(board, whole) <= head / kPage + 1);
}
