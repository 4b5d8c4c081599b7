// Lanes whose channels lead to other hosts: messages are sent from buffers where they lie there already, and come straight to their
// places. A carrier that takes its time, as a network does, reads what was lent as late as it likes.
#include "base/reduce.h"
#include "executor/host_machine.h"
#include "planner/plan.h"
#include "protocol/lane.h"
#include "protocol/lane_storage.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

using namespace tutti;
using protocol::Progress;

namespace {

constexpr protocol::SlotShape kSlots{4, 512};
constexpr std::uint64_t kAbort = 0;

/// One rank's end of what leads to one peer, in one lane.
struct End {
  protocol::PairLine mine{}, theirs{};
  protocol::Crossing crossing;
  std::vector<std::byte> outbox = std::vector<std::byte>(kSlots.bytes());
  std::vector<std::byte> inbox = std::vector<std::byte>(kSlots.bytes());
  std::uint64_t carried = 0;
};

struct Counts {
  int messages = 0, lent = 0, landed = 0;
};

class World {
 public:
  World(const planner::Question& question, const planner::Candidate& candidate, const planner::Rules& rules,
        bool in_place, std::uint64_t seed)
      : ranks_(question.request.ranks), random_(seed) {
    const auto& request = question.request;
    for (int r = 0; r < ranks_; ++r) {
      plans_.push_back(planner::make_plan(question, rules, candidate, r));
      Rank& rank = all_.emplace_back();
      const std::uint64_t blocks = std::max(plans_[0].shape.input_blocks, plans_[0].shape.output_blocks);
      rank.in.resize(blocks * question.count);
      rank.out.resize(blocks * question.count, -1);
      for (std::size_t i = 0; i < rank.in.size(); ++i) rank.in[i] = input(r, i);
      std::uint64_t input_at = 0, output_at = 0;
      if (in_place && request.collective == Collective::kAllGather)
        input_at = static_cast<std::uint64_t>(r) * question.count;
      if (in_place && request.collective == Collective::kReduceScatter)
        output_at = static_cast<std::uint64_t>(r) * question.count;
      if (in_place) {
        const std::vector<float> given = rank.in;
        rank.out = given;
        std::copy_n(given.begin(), question.count, rank.out.begin() + static_cast<std::ptrdiff_t>(input_at));
      }
      rank.input = in_place ? rank.out.data() + input_at : rank.in.data();
      rank.output = rank.out.data() + output_at;
    }
    for (int r = 0; r < ranks_; ++r) start(r);
  }

  /// Whoever's turn it is; true when all is over.
  void run() {
    for (int turns = 0; turns < 10'000'000; ++turns) {
      if (random_() % 3 == 0 ? !carry() && is_over() : !advance() && is_over()) return;
    }
    FAIL("it does not come to an end");
  }

  static float input(int rank, std::size_t i) {
    return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 31) % 1000);
  }
  const float* output(int rank) const { return all_[static_cast<std::size_t>(rank)].output; }
  const Counts& counts() const { return counts_; }

 private:
  struct Running {
    protocol::Lane<executor::HostMachine> lane;
    protocol::LaneStorage storage;
    std::vector<protocol::Channel> channels;
    std::deque<End> ends;  ///< by rank
    std::vector<std::byte> scratch;
    bool done = false;
  };
  struct Rank {
    std::vector<float> in, out;
    const float* input = nullptr;
    float* output = nullptr;
    executor::HostMachine machine{&kAbort, nullptr};
    std::deque<Running> lanes;
  };

  void start(int r) {
    Rank& rank = all_[static_cast<std::size_t>(r)];
    const planner::Plan& plan = plans_[static_cast<std::size_t>(r)];
    rank.machine.set_reduce(reduce_function(DataType::kFloat32, ReduceOp::kSum));
    for (std::size_t l = 0; l < plan.program->lanes.size(); ++l) {
      Running& running = rank.lanes.emplace_back();
      running.ends.resize(static_cast<std::size_t>(ranks_));
      running.scratch.resize(plan.scratch_bytes);
      for (End& end : running.ends) {
        protocol::Channel& c = running.channels.emplace_back();
        c.mine = &end.mine;
        c.theirs = &end.theirs;
        c.outbox = end.outbox.data();
        c.inbox = end.inbox.data();
        c.crossing = &end.crossing;
      }
      const auto& program = plan.program->lanes[l];
      protocol::LaneCall call;
      call.steps = program.steps.data();
      call.step_count = static_cast<std::uint32_t>(program.steps.size());
      call.endpoints = program.endpoints.data();
      call.tiling = plan.tiling;
      call.lane = static_cast<std::uint32_t>(l);
      call.input = reinterpret_cast<std::byte*>(const_cast<float*>(rank.input));
      call.output = reinterpret_cast<std::byte*>(rank.output);
      call.scratch = running.scratch.data();
      call.channels = running.channels.data();
      call.slot_shape = kSlots;
      call.workspace = running.storage.workspace(program.steps, ranks_, {});
      running.lane.start(call);
    }
  }

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  bool advance() {
    Rank& rank = all_[below(all_.size())];
    Running& running = rank.lanes[below(rank.lanes.size())];
    if (running.done) return false;
    const Progress progress = running.lane.advance(rank.machine);
    running.done = progress == Progress::kDone;
    return progress != Progress::kBlocked;
  }

  /// One message of some rank to some other, if there is one, and the count of what that rank has read.
  bool carry() {
    const std::size_t from = below(all_.size()), to = below(all_.size()), lane = below(all_[0].lanes.size());
    if (from == to) return false;
    Running& sender = all_[from].lanes[lane];
    Running& receiver = all_[to].lanes[lane];
    End& out = sender.ends[to];
    End& in = receiver.ends[from];
    const bool told = in.theirs.head != out.mine.head;
    in.theirs.head = out.mine.head;
    if (out.carried == sender.channels[to].sent) return told;
    const std::uint64_t slot = out.carried % kSlots.slots;
    const std::uint32_t bytes = out.crossing.bytes[slot];
    const std::byte* const lent = out.crossing.from[slot];
    const std::uint64_t number = ++out.carried;
    const bool lands = in.crossing.expected == number && in.crossing.place_bytes == bytes;
    if (lands) in.crossing.landed = number;
    std::byte* const place = lands ? in.crossing.place : in.inbox.data() + slot * kSlots.slot_bytes;
    if (bytes != 0) std::memcpy(place, lent != nullptr ? lent : out.outbox.data() + slot * kSlots.slot_bytes, bytes);
    in.theirs.tail = number;
    counts_.messages += bytes != 0;
    counts_.lent += lent != nullptr;
    counts_.landed += lands && bytes != 0;
    return true;
  }

  bool is_over() const {
    for (const Rank& rank : all_) {
      for (const Running& running : rank.lanes) {
        if (!running.done) return false;
        for (std::size_t to = 0; to < all_.size(); ++to)
          if (running.ends[to].carried != running.channels[to].sent) return false;
      }
    }
    return true;
  }

  int ranks_;
  std::mt19937_64 random_;
  std::vector<planner::Plan> plans_;
  std::deque<Rank> all_;
  Counts counts_;
};

planner::Question question_of(Collective collective, int ranks, std::uint64_t count, bool in_place) {
  planner::Question q;
  q.request = {collective, ranks, 0, 0};
  q.count = count;
  q.element_bytes = 4;
  q.in_place = in_place;
  return q;
}

/// What rank r's output holds at i.
float wanted(const planner::Question& q, int r, std::size_t i) {
  const auto at = [&](int rank, std::size_t place) { return World::input(rank, place); };
  float sum = 0;
  switch (q.request.collective) {
    case Collective::kAllGather: return at(static_cast<int>(i / q.count), i % q.count);
    case Collective::kBroadcast: return at(0, i);
    case Collective::kAllToAll:
      return at(static_cast<int>(i / q.count), static_cast<std::size_t>(r) * q.count + i % q.count);
    case Collective::kGather: return at(static_cast<int>(i / q.count), i % q.count);
    case Collective::kScatter: return at(q.request.root, static_cast<std::size_t>(r) * q.count + i % q.count);
    case Collective::kReduceScatter: i += static_cast<std::size_t>(r) * q.count; [[fallthrough]];
    default:
      for (int rank = 0; rank < q.request.ranks; ++rank) sum += at(rank, i);
      return sum;
  }
}

std::size_t length_of(const planner::Question& q, int r) { return q.count * schedule::output_blocks(q.request, r); }

}  // namespace

TEST_CASE("every schedule is right where messages are lent and land, however late they are carried", "[crossing]") {
  planner::Rules rules;
  rules.slots = kSlots;
  Counts all;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather, Collective::kBroadcast,
        Collective::kAllToAll, Collective::kGather, Collective::kScatter}) {
    for (const int ranks : {2, 3, 4, 5}) {
      for (const std::vector<int>& hosts : {std::vector<int>{}, {0, 0, 1, 1}, {0, 1, 1, 0, 1}, {0, 1, 1}}) {
        if (!hosts.empty() && static_cast<int>(hosts.size()) != ranks) continue;
        rules.groups = hosts;
        rules.network = hosts.empty() ? planner::NetworkCosts{} : planner::kUsualNetwork;
        for (const bool in_place : {false, true}) {
          if (in_place && (collective == Collective::kAllToAll || is_rooted(collective))) continue;
          const planner::Question q = question_of(collective, ranks, 1501, in_place);
          const auto found = planner::candidates(q, rules);
          REQUIRE(found.ok());
          for (const planner::Candidate& candidate : found.value()) {
            for (std::uint64_t seed = 1; seed <= 6; ++seed) {
              INFO(name_of(collective) << " by " << candidate.algorithm->name << ", " << ranks << " ranks"
                                       << (in_place ? ", in place" : "") << ", seed " << seed);
              World world(q, candidate, rules, in_place, seed);
              world.run();
              for (int r = 0; r < ranks; ++r) {
                std::size_t i = 0;
                while (i < length_of(q, r) && world.output(r)[i] == wanted(q, r, i)) ++i;
                INFO("rank " << r << ", element " << i);
                REQUIRE(i == length_of(q, r));
              }
              all.lent += world.counts().lent;
              all.landed += world.counts().landed;
              all.messages += world.counts().messages;
            }
          }
        }
      }
    }
  }
  CHECK(all.lent > all.messages / 3);
  CHECK(all.landed > all.messages / 20);
}

TEST_CASE("between two hosts out of place nothing is copied into slots", "[crossing]") {
  planner::Rules rules;
  rules.slots = kSlots;
  const planner::Question q = question_of(Collective::kAllReduce, 2, 1501, false);
  const auto found = planner::candidates(q, rules);
  REQUIRE(found.ok());
  for (const planner::Candidate& candidate : found.value()) {
    World world(q, candidate, rules, false, 1);
    world.run();
    INFO(candidate.algorithm->name);
    CHECK(world.counts().messages > 0);
    if (candidate.algorithm->name != "tree" && candidate.algorithm->name != "halving_doubling")
      CHECK(world.counts().lent == world.counts().messages);
  }
}
