#include "narrated_run.h"

#include "protocol/lane.h"
#include "protocol/lane_storage.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace tutti::docs {
namespace {

constexpr int kElements = 64;
constexpr int kElement = 5;
constexpr protocol::SlotShape kSlots{2, kElements * sizeof(float)};

/// All memory that the ranks have, private and shared, and the names of its parts.
struct World {
  explicit World(int count) : ranks(count), inputs(count), outputs(count), lines(count * count), boxes(count * count) {
    for (int r = 0; r < ranks; ++r) {
      inputs[r].fill(0);
      outputs[r].fill(-1);
      inputs[r][kElement] = static_cast<float>(100 * r + kElement);
    }
    for (auto& box : boxes) box.resize(kSlots.bytes());
  }

  int pair(int from, int to) const { return from * ranks + to; }
  protocol::Channel channel(int me, int peer) {
    protocol::Channel c;
    c.mine = &lines[pair(me, peer)];
    c.theirs = &lines[pair(peer, me)];
    c.outbox = boxes[pair(me, peer)].data();
    c.inbox = boxes[pair(peer, me)].data();
    return c;
  }

  std::string name_of(const void* pointer) const {
    const auto* at = static_cast<const std::byte*>(pointer);
    const auto within = [&](const void* start, std::size_t bytes) {
      return at >= static_cast<const std::byte*>(start) && at < static_cast<const std::byte*>(start) + bytes;
    };
    for (int r = 0; r < ranks; ++r) {
      if (within(inputs[r].data(), sizeof inputs[r])) return "its input";
      if (within(outputs[r].data(), sizeof outputs[r])) return "its output";
      for (int to = 0; to < ranks; ++to) {
        const auto& box = boxes[pair(r, to)];
        if (within(box.data(), box.size())) {
          return fmt::format("slot {} from {} to {}", (at - box.data()) / kSlots.slot_bytes, r, to);
        }
      }
    }
    return "?";
  }

  int ranks;
  std::vector<std::array<float, kElements>> inputs, outputs;
  std::vector<protocol::PairLine> lines;
  std::vector<std::vector<std::byte>> boxes;
};

/// What protocol/lane.h asks of a machine.
class Narrator {
 public:
  Narrator(World& world, int rank, Narrate what) : world_(world), rank_(rank), what_(what) {}

  std::uint64_t load_acquire(const std::uint64_t* word) const { return *word; }
  void store_release(std::uint64_t* word, std::uint64_t value) const {
    *word = value;
    if (what_ != Narrate::kChannel) return;
    if (word == &world_.lines[world_.pair(1, 2)].tail)
      fmt::print("rank 1: tail = {}, message {} is there\n", value, value);
    if (word == &world_.lines[world_.pair(2, 1)].head) fmt::print("rank 2: head = {}, its slot is free\n", value);
  }
  // Nothing goes as lines here.
  std::uint64_t load_word(const std::uint64_t* word) const { return *word; }
  void store_word(std::uint64_t* word, std::uint64_t value) const { *word = value; }
  void prepare_write(const std::byte*, std::size_t) {}
  bool aborted() const { return false; }

  void reduce(const ReduceArgs& args) const {
    bool seen = false;
    for (std::size_t i = 0; i < args.count; ++i) {
      float sum = 0;
      std::string terms;
      for (int s = 0; s < args.source_count; ++s) {
        const float term = static_cast<const float*>(args.sources[s])[i];
        sum += term;
        terms += fmt::format("{}{} ({})", s == 0 ? "" : " + ", term, world_.name_of(args.sources[s]));
      }
      for (int d = 0; d < args.destination_count; ++d) static_cast<float*>(args.destinations[d])[i] = sum;
      if (sum != 0 && !seen) tell(args, sum, terms);
      seen = seen || sum != 0;
    }
    if (what_ == Narrate::kChannel) tell_slots(args);
  }

  // No memory here is out of reach.
  bool read_remote(std::uint32_t, std::uint64_t, std::byte*, std::size_t) { return false; }
  bool write_remote(std::uint32_t, std::uint64_t, const void*, std::size_t) { return false; }
  std::byte* staging(std::size_t, std::size_t) { return nullptr; }

 private:
  void tell(const ReduceArgs& args, float sum, const std::string& terms) const {
    if (what_ != Narrate::kNumbers) return;
    std::string sinks;
    for (int d = 0; d < args.destination_count; ++d) {
      sinks += (d == 0 ? "" : ", ") + world_.name_of(args.destinations[d]);
    }
    fmt::print("rank {}: {} = {} -> {}\n", rank_, terms, sum, sinks);
  }
  void tell_slots(const ReduceArgs& args) const {
    const auto tell_if = [&](const void* pointer, const char* verb) {
      const std::string name = world_.name_of(pointer);
      if (name.ends_with("from 1 to 2")) fmt::print("rank {}: {} {}\n", rank_, verb, name.substr(0, 6));
    };
    for (int s = 0; s < args.source_count; ++s) tell_if(args.sources[s], "reads");
    for (int d = 0; d < args.destination_count; ++d) tell_if(args.destinations[d], "writes");
  }

  World& world_;
  int rank_;
  Narrate what_;
};

/// One rank: its lanes, its ends of the channels, its machine.
struct Player {
  std::vector<std::vector<protocol::Channel>> channels;
  std::vector<protocol::Lane<Narrator>> lanes;
  std::vector<protocol::LaneStorage> storage;
  std::vector<bool> done;
};

Player make_player(World& world, const schedule::Schedule& schedule, int rank) {
  const auto& programs = schedule.ranks[rank].lanes;
  Player player;
  player.channels.resize(programs.size());
  player.lanes.resize(programs.size());
  player.storage.resize(programs.size());
  player.done.assign(programs.size(), false);
  for (int peer = 0; peer < world.ranks; ++peer) player.channels[0].push_back(world.channel(rank, peer));
  for (std::size_t l = 0; l < programs.size(); ++l) {
    protocol::LaneCall call;
    call.steps = programs[l].steps.data();
    call.step_count = static_cast<std::uint32_t>(programs[l].steps.size());
    call.endpoints = programs[l].endpoints.data();
    call.tiling.count = kElements;
    call.tiling.element_bytes = sizeof(float);
    call.tiling.units = schedule.shape.units;
    call.tiling.slab = kElements;
    call.input = reinterpret_cast<std::byte*>(world.inputs[rank].data());
    call.output = reinterpret_cast<std::byte*>(world.outputs[rank].data());
    call.channels = player.channels[l].data();
    call.slot_shape = kSlots;
    call.workspace = player.storage[l].workspace(programs[l].steps, world.ranks, call.line_shape);
    player.lanes[l].start(call);
  }
  return player;
}

}  // namespace

int run(const schedule::Schedule& schedule, Narrate what) {
  const auto& shape = schedule.shape;
  if (schedule.request.collective != Collective::kAllReduce || shape.lanes != 1 || shape.scratch_blocks != 0) {
    fmt::print(stderr, "only an all_reduce of one lane without scratch can be told\n");
    return 2;
  }
  World world(schedule.request.ranks);
  std::vector<Player> players;
  std::vector<Narrator> machines;
  for (int r = 0; r < world.ranks; ++r) {
    players.push_back(make_player(world, schedule, r));
    machines.emplace_back(world, r, what);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < world.ranks; ++r) {
      if (players[r].done[0]) continue;
      const auto progress = players[r].lanes[0].advance(machines[r]);
      players[r].done[0] = progress == protocol::Progress::kDone;
      moved = moved || progress != protocol::Progress::kBlocked;
    }
  }
  float expected = 0;
  bool right = true;
  for (int r = 0; r < world.ranks; ++r) expected += world.inputs[r][kElement];
  for (int r = 0; r < world.ranks; ++r) right = right && players[r].done[0] && world.outputs[r][kElement] == expected;
  fmt::print("{}\n",
             right ? fmt::format("all {} ranks are done; element {} is {} on each", world.ranks, kElement, expected)
                   : "stuck, or wrong");
  return right ? 0 : 1;
}

}  // namespace tutti::docs
