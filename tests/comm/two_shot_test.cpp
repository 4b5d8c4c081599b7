// Sums and broadcasts in two shots, on host memory: what one rank sends is what the other one expects, and the results are right.
#include "comm/two_shot.h"

#include "comm/call.h"
#include "comm/staged_rounds.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace {

using namespace tutti;
using namespace tutti::comm;

using Element = std::int32_t;
constexpr std::size_t kPartBytes = 4096;
constexpr Element kPoison = -77;

Element value(int rank, std::size_t i) { return static_cast<Element>(1000 * (rank + 1) + static_cast<int>(i) * 3); }
Element factor(int rank) { return rank + 2; }

Element* elements(const void* at) { return static_cast<Element*>(const_cast<void*>(at)); }

struct Case {
  Collective collective = Collective::kAllReduce;
  std::size_t count = 0;
  int ranks = 0;
  int root = 0;
  bool in_place = false;
  bool scaled = false;

  std::size_t all() const { return count * (collective == Collective::kReduceScatter ? ranks : 1); }
};

/// A rank's buffers, and the rounds of its call.
class Rank {
 public:
  Rank(const Case& of, int rank)
      : case_(of), place_{of.ranks, rank}, input_(of.all() + 1), output_(of.all() + 1, kPoison) {
    for (std::size_t i = 0; i < of.all(); ++i) input_[i] = value(rank, i);
    CallArgs call;
    call.collective = of.collective;
    call.count = of.count;
    call.type = DataType::kInt32;
    call.root = of.root;
    call.shot = Shot::kFirst;
    call.scaled = of.scaled;
    call.scale = static_cast<std::uint64_t>(factor(rank));
    call.send = input_.data();
    call.receive = of.in_place ? input_.data() + result_at() : output_.data();
    StagedRounds rounds({&call, 1}, of.ranks, rank, kPartBytes);
    scratch_.assign(rounds.scratch_bytes() / sizeof(Element), kPoison);
    rounds.put_scratch(reinterpret_cast<std::byte*>(scratch_.data()));
    rounds.leave_in_place(std::vector<bool>(static_cast<std::size_t>(of.ranks), true), true);
    while (!rounds.is_done()) rounds_.push_back(rounds.next());
  }

  std::size_t rounds() const { return rounds_.size(); }
  bool waits(std::size_t round) const { return rounds_[round].waits; }
  const StagedPart& part(std::size_t round) const { return rounds_[round].parts.at(0); }
  MessageBlocks blocks(std::size_t round, int peer) const { return blocks_of_shot(part(round).args, place_, peer); }

  void scale(std::size_t round) const {
    const ShotWork& work = part(round).shot;
    if (work.unscaled == nullptr) return;
    for (std::size_t b = 0; b < work.blocks.count; ++b) {
      const Element* const from = elements(work.unscaled + b * work.blocks.pitch);
      Element* const to = elements(static_cast<const std::byte*>(part(round).args.send) + b * work.blocks.bytes);
      for (std::size_t i = 0; i < work.blocks.bytes / sizeof(Element); ++i) to[i] = from[i] * factor(place_.rank);
    }
  }
  /// What the stream does when the round is over.
  void end(std::size_t round) const {
    const MessageBlocks own = blocks(round, place_.rank);
    if (own.sent != nullptr && own.received != nullptr) std::memmove(own.received, own.sent, own.sent_bytes);
    const StagedPart& now = part(round);
    if (now.shot.result == nullptr) return;
    if (!reduces(case_.collective)) {
      std::memmove(now.shot.result, now.shot.own, now.shot.count);
      return;
    }
    const std::size_t slot = Shares(now.args, place_.ranks).slot_bytes();
    for (std::size_t i = 0; i < now.shot.count; ++i) {
      Element sum = 0;
      for (int r = 0; r < place_.ranks; ++r) {
        const auto* const slots = static_cast<const std::byte*>(now.args.receive);
        sum += elements(r == place_.rank ? now.shot.own : slots + static_cast<std::size_t>(r) * slot)[i];
      }
      elements(now.shot.result)[i] = sum;
    }
  }

  void check() const {
    const bool is_root = place_.rank == case_.root;
    const std::vector<Element>& to = case_.in_place ? input_ : output_;
    const bool has_result = case_.collective != Collective::kReduce || is_root;
    bool right = true;
    for (std::size_t i = 0; i < case_.count && has_result; ++i)
      right &= to[result_at() * case_.in_place + i] == wanted(i);
    CHECK(right);
    if (!case_.in_place)
      CHECK(std::all_of(to.begin() + (has_result ? written() : 0), to.end(), [](Element v) { return v == kPoison; }));
  }

 private:
  std::ptrdiff_t written() const { return static_cast<std::ptrdiff_t>(case_.count); }
  std::size_t result_at() const {
    return case_.collective == Collective::kReduceScatter ? static_cast<std::size_t>(place_.rank) * case_.count : 0;
  }
  Element wanted(std::size_t i) const {
    if (case_.collective == Collective::kBroadcast) return value(case_.root, i);
    Element sum = 0;
    for (int r = 0; r < place_.ranks; ++r) sum += value(r, result_at() + i) * (case_.scaled ? factor(r) : 1);
    return sum;
  }

  const Case case_;
  const ShotPlace place_;
  std::vector<Element> input_;
  std::vector<Element> output_;
  std::vector<Element> scratch_;
  std::vector<StagedRound> rounds_;
};

void pass_messages(const std::vector<std::unique_ptr<Rank>>& ranks, std::size_t round) {
  const int n = static_cast<int>(ranks.size());
  bool meet = true;
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      if (from == to) continue;
      const MessageBlocks sent = ranks[from]->blocks(round, to);
      const MessageBlocks received = ranks[to]->blocks(round, from);
      meet &= (sent.sent == nullptr) == (received.received == nullptr);
      if (sent.sent == nullptr || received.received == nullptr) continue;
      meet &= sent.sent_bytes == received.received_bytes;
      std::memcpy(received.received, sent.sent, std::min(sent.sent_bytes, received.received_bytes));
    }
  }
  CHECK(meet);
}

/// `late`: a round ends on the streams when the next one has been exchanged, as long as they may be so late.
void run(const Case& of, bool late) {
  CAPTURE(static_cast<int>(of.collective), of.count, of.ranks, of.root, of.in_place, of.scaled, late);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < of.ranks; ++r) ranks.push_back(std::make_unique<Rank>(of, r));
  const std::size_t rounds = ranks[0]->rounds();
  std::size_t ended = 0;
  const auto end_until = [&](std::size_t round) {
    for (; ended < round; ++ended) {
      for (const auto& rank : ranks) rank->end(ended);
    }
  };
  for (std::size_t round = 0; round < rounds; ++round) {
    const bool waits = ranks[0]->waits(round);
    for (const auto& rank : ranks) {
      REQUIRE(rank->rounds() == rounds);
      CHECK(rank->waits(round) == waits);
      CHECK(rank->part(round).args.shot == ranks[0]->part(round).args.shot);
      CHECK(rank->part(round).args.count == ranks[0]->part(round).args.count);
    }
    end_until(!late || waits ? round : std::max<std::size_t>(round, 1) - 1);
    for (const auto& rank : ranks) rank->scale(round);
    pass_messages(ranks, round);
  }
  end_until(rounds);
  for (const auto& rank : ranks) rank->check();
}

}  // namespace

TEST_CASE("two shots: what ranks send meets what others expect, and comes to the result", "[two_shot]") {
  const int ranks = GENERATE(2, 3, 5, 8);
  const bool in_place = GENERATE(false, true);
  const bool late = GENERATE(false, true);
  // One element, fewer than ranks, a prime number of them in a part, several parts, an odd number of parts.
  const std::size_t count =
      GENERATE(std::size_t{1}, std::size_t{2}, std::size_t{997}, std::size_t{2003}, std::size_t{5003});
  for (const int root : {0, 1, ranks - 1}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter, Collective::kBroadcast}) {
      run({collective, count, ranks, root, in_place, false}, late);
      if (reduces(collective)) run({collective, count, ranks, root, in_place, true}, late);
    }
  }
}

TEST_CASE("two shots: a rank sends and receives its share of the bytes", "[two_shot]") {
  const int ranks = 4;
  const std::size_t count = 1000;
  for (int r = 0; r < ranks; ++r) {
    const auto moved = [&](Collective collective) {
      const Rank rank({collective, count, ranks, 1, false, false}, r);
      std::size_t bytes = 0;
      for (std::size_t round = 0; round < rank.rounds(); ++round) {
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer != r && rank.blocks(round, peer).sent != nullptr) bytes += rank.blocks(round, peer).sent_bytes;
        }
      }
      return bytes / sizeof(Element);
    };
    CHECK(moved(Collective::kAllReduce) == 2 * 750);
    CHECK(moved(Collective::kReduceScatter) == 3 * count);
    CHECK(moved(Collective::kReduce) == (r == 1 ? 750 : 1000));
    CHECK(moved(Collective::kBroadcast) == (r == 1 ? 1000 : r == 3 ? 2 * 332 : 2 * 334));
  }
}
