// Rails without a network: all ranks in one thread, which take turns at random, parts that come at random, every
// pattern, and shares, among up to eight hosts; calls that some ranks make otherwise; what plan_rails() says.
#include "comm/rails.h"
#include "comm/far_inputs.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace {

using tutti::comm::FarInputs;
using tutti::comm::HostRanks;
using tutti::comm::LineRoutes;
using tutti::comm::PartCarrier;
using tutti::comm::plan_rails;
using tutti::comm::RailPlan;
using tutti::comm::RailRoom;
using tutti::comm::Rails;
using Pattern = LineRoutes::Pattern;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class Network;

/// A rank's end of the network.
class End final : public PartCarrier {
 public:
  End(Network& network, int rank) : network_(network), rank_(rank) {}
  void send_part(int peer, std::uint32_t number, std::uint32_t part, const void* bytes, std::size_t size) override;
  void hold_lines(int peer, std::uint32_t number) override { held.insert_or_assign(peer, number); }
  void await_part(int peer) override { awaited = peer; }
  void expect_part(std::uint32_t number, std::uint32_t part, std::size_t bytes, void* place) override {
    far_inputs.expect(number, part, bytes, static_cast<std::byte*>(place));
  }
  std::byte* part_of(std::uint32_t number, std::uint32_t part, std::size_t bytes) const override {
    return far_inputs.of(number, part, bytes);
  }
  bool has_part(std::uint32_t number, std::uint32_t part) const override { return far_inputs.has(number, part); }

  FarInputs far_inputs;
  std::map<int, std::uint32_t> held;  ///< lines, by peer
  int awaited = -1;

 private:
  Network& network_;
  const int rank_;
};

struct Message {
  std::uint32_t number, part;
  const void* bytes;
  std::size_t size;
};

class Network {
 public:
  explicit Network(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) ends.push_back(std::make_unique<End>(*this, rank));
  }
  bool is_sent(int rank) const {
    return std::ranges::none_of(under_way,
                                [rank](const auto& pair) { return pair.first.first == rank && !pair.second.empty(); });
  }
  /// What the pair's first message has, at the time it comes. `current`: the receiver's last call that has begun.
  void deliver(const std::pair<int, int>& pair, std::uint32_t current) {
    auto& queue = under_way.at(pair);
    const Message message = queue.front();
    queue.pop_front();
    FarInputs& inputs = ends[at(pair.second)]->far_inputs;
    std::byte* const place = inputs.place_for(message.number, message.part, message.size, current);
    REQUIRE(place != nullptr);
    if (message.size != 0) std::memcpy(place, message.bytes, message.size);
    inputs.note_arrived(message.number, message.part);
  }

  std::vector<std::unique_ptr<End>> ends;
  std::map<std::pair<int, int>, std::deque<Message>> under_way;
  std::uint64_t sent = 0;
};

void End::send_part(int peer, std::uint32_t number, std::uint32_t part, const void* bytes, std::size_t size) {
  network_.under_way[{rank_, peer}].push_back({number, part, bytes, size});
  network_.sent += size;
  if (const auto found = held.find(peer); found != held.end() && found->second == number) held.erase(found);
}

/// A rank, its buffers and where it is.
struct Rank {
  std::unique_ptr<Rails> rails;
  tutti::executor::HostMachine machine{nullptr, nullptr};
  std::vector<float> input, output;
  std::uint32_t begun = ~0u;
  bool in_call = false;
  bool knows = false;  ///< that calls differ
};

/// What a rank calls.
struct Call {
  std::size_t count;
  bool in_place;
  int divisor;
};

/// How the ranks of a rail add up.
struct Way {
  Pattern pattern;
  bool shares = false;

  bool fits(int hosts, int per_host) const {
    const bool pairs = (hosts & (hosts - 1)) == 0;
    return (pattern != Pattern::kDoubling || pairs) && (shares || per_host != 1);
  }
};
constexpr Way kShares = {Pattern::kDirect, true};
constexpr Way kWays[] = {{Pattern::kDirect}, {Pattern::kDoubling}, {Pattern::kStar}, kShares};

class Crowd {
 public:
  Crowd(int hosts, int per_host, Way way, unsigned seed)
      : random_(seed), network_(hosts * per_host), ranks_(at(hosts * per_host)) {
    for (int rank = 0; rank < hosts * per_host; ++rank) {
      if (rank % per_host == 0) hosts_.emplace_back();
      hosts_.back().push_back(rank);
    }
    for (int host = 0; host < hosts; ++host) {
      rooms_.emplace_back(RailRoom::bytes_for(per_host) / sizeof(std::uint64_t));
      const std::span<std::byte> memory = std::as_writable_bytes(std::span(rooms_.back()));
      // Who has no mates has no memory in common with them.
      const RailRoom room(per_host == 1 ? std::span<std::byte>() : memory, per_host);
      const RailPlan plan{way.pattern, hosts / 2, RailRoom::kBytesMax, 0, way.shares};
      for (const int rank : hosts_[at(host)]) {
        ranks_[at(rank)].rails = std::make_unique<Rails>(*network_.ends[at(rank)], room, hosts_, rank, plan);
        ranks_[at(rank)].machine.set_reduce(tutti::reduce_function(tutti::DataType::kFloat32, tutti::ReduceOp::kSum));
      }
    }
  }

  int ranks() const { return static_cast<int>(ranks_.size()); }
  std::uint64_t sent() const { return network_.sent; }

  /// In place of a count: a call that does not go by rails.
  static constexpr std::size_t kNotByRails = ~std::size_t{0};

  /// All make the call of that number; but for `odd`, if that is one: it makes another one.
  void run(std::uint32_t number, const Call& call, int odd = -1, std::size_t odd_count = 0) {
    const bool differs = odd >= 0;
    for (int rank = 0; rank < ranks(); ++rank) fill(ranks_[at(rank)], rank, call);
    const bool goes = !differs || odd_count != kNotByRails;
    if (differs && goes) fill(ranks_[at(odd)], odd, {odd_count, call.in_place, call.divisor});
    is_by_rails_ = [=](int rank) { return goes || rank != odd; };
    std::vector<int> open(ranks_.size());
    for (int rank = 0; rank < ranks(); ++rank) open[at(rank)] = rank;
    for (int idle = 0; !open.empty();) {
      REQUIRE(++idle < 100000);  // steps at random in which nothing went on
      deliver_some();
      const std::size_t place = random_() % open.size();
      const int rank = open[place];
      if (step(rank, number, rank == odd ? odd_count : call.count, call, differs)) idle = 0;
      if (!is_through(rank, number, differs)) continue;
      ranks_[at(rank)].in_call = false;
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(place));
    }
    if (!differs) check(call);
    for (int rank = 0; rank < ranks() && differs; ++rank) {
      const auto& written = call.in_place ? ranks_[at(rank)].input : ranks_[at(rank)].output;
      CHECK((call.in_place ? written == inputs(rank, rank == odd && goes ? odd_count : call.count)
                           : std::ranges::all_of(written, [](float one) { return one == -1; })));
    }
  }

 private:
  static std::vector<float> inputs(int rank, std::size_t count) {
    std::vector<float> all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<float>((rank + 1) * static_cast<int>(i % 997 + 1));
    return all;
  }

  void fill(Rank& one, int rank, const Call& call) {
    one.input = inputs(rank, call.count);
    one.output.assign(call.in_place ? 0 : call.count, -1);
  }

  bool all_have_begun(std::uint32_t number) const {
    return std::ranges::all_of(ranks_, [number](const Rank& one) { return one.begun == number; });
  }

  bool step(int rank, std::uint32_t number, std::size_t count, const Call& call, bool differs) {
    Rank& one = ranks_[at(rank)];
    if (!one.in_call) {
      one.in_call = true;
      one.begun = number;
      one.knows = false;
      if (!is_by_rails_(rank)) return true;
      void* const output = call.in_place ? one.input.data() : one.output.data();
      one.rails->begin({number, one.input.data(), output, count, sizeof(float), call.divisor}, one.machine);
      return true;
    }
    if (!is_by_rails_(rank) || one.knows) return false;
    const bool alike = !differs && all_have_begun(number);
    const bool moved = one.rails->advance(one.machine, alike);
    if (alike && !one.rails->is_over()) {
      CHECK(one.rails->waiting_for() >= 0);
      CHECK(one.rails->waiting_for() != rank);
      // Of its own host parts are in memory, which nobody has to look for.
      const int awaited = network_.ends[at(rank)]->awaited;
      const bool is_mate = std::ranges::count(hosts_[at(rank) / hosts_.front().size()], one.rails->waiting_for()) != 0;
      CHECK(awaited == (is_mate ? -1 : one.rails->waiting_for()));
    }
    if (one.rails->is_over()) CHECK(network_.ends[at(rank)]->held.empty());
    return moved;
  }

  /// Calls that differ end when all have come, wherever they are, and what was sent has been taken.
  bool is_through(int rank, std::uint32_t number, bool differs) {
    Rank& one = ranks_[at(rank)];
    if (!one.in_call) return false;
    if (!differs) return one.rails->is_over() && network_.is_sent(rank);
    if (!all_have_begun(number) || (!one.knows && random_() % 4 != 0)) return false;
    one.knows = true;
    const bool ends = one.rails->end_refused(number, is_by_rails_);
    CHECK((ends ? one.rails->owed_by() < 0 : one.rails->owed_by() >= 0 && one.rails->owed_by() != rank));
    return ends && network_.is_sent(rank);
  }

  /// Who is in no call takes nothing.
  void deliver_some() {
    for (auto& [pair, queue] : network_.under_way)
      if (!queue.empty() && ranks_[at(pair.second)].in_call && random_() % 3 == 0)
        network_.deliver(pair, ranks_[at(pair.second)].begun);
  }

  void check(const Call& call) {
    const int sum = ranks() * (ranks() + 1) / 2;
    for (Rank& one : ranks_) {
      const std::vector<float>& found = call.in_place ? one.input : one.output;
      bool right = found.size() == call.count;
      for (std::size_t i = 0; right && i < call.count; ++i) {
        const auto all = static_cast<float>(sum * static_cast<int>(i % 997 + 1));
        right = found[i] == (call.divisor == 0 ? all : all / static_cast<float>(call.divisor));
      }
      CHECK(right);
    }
  }

  std::function<bool(int)> is_by_rails_;
  std::mt19937 random_;
  Network network_;
  HostRanks hosts_;
  std::deque<std::vector<std::uint64_t>> rooms_;
  std::vector<Rank> ranks_;
};

constexpr std::size_t kCounts[] = {0, 1, 15, 16, 17, 63, 257, 1000, 4099, 20000};

}  // namespace

TEST_CASE("rails: sums are right on all ranks, whoever goes on first and whatever comes first", "[rails]") {
  for (const Way& way : kWays) {
    for (int hosts = 2; hosts <= 8; ++hosts) {
      for (int per_host = 1; per_host <= (hosts <= 4 ? 5 : 2); ++per_host) {
        if (!way.fits(hosts, per_host)) continue;
        INFO("pattern " << static_cast<int>(way.pattern) << ", shares " << way.shares << ", " << hosts << " hosts of "
                        << per_host);
        Crowd crowd(hosts, per_host, way, static_cast<unsigned>(hosts * 10 + per_host));
        std::uint32_t number = 0;
        for (const std::size_t count : kCounts)
          for (const bool in_place : {false, true})
            crowd.run(++number, {count, in_place, count % 2 == 0 ? 0 : crowd.ranks()});
      }
    }
  }
}

TEST_CASE("rails: the longest buffers", "[rails]") {
  constexpr std::size_t kLongest = RailRoom::kBytesMax / sizeof(float);
  for (const Way& way : {Way{Pattern::kDirect}, kShares}) {
    for (const int per_host : {1, 2, 3, 7}) {
      if (!way.fits(2, per_host)) continue;
      Crowd crowd(2, per_host, way, 1);
      for (std::uint32_t number = 1; number <= 4; ++number) crowd.run(number, {kLongest, number % 2 == 0, 0});
    }
  }
}

TEST_CASE("rails: what some of them gave or sent in a call that differed is nobody's, and nothing is written",
          "[rails]") {
  const auto all = [](const Way& way, int hosts, int per_host) {
    if (!way.fits(hosts, per_host)) return;
    INFO("pattern " << static_cast<int>(way.pattern) << ", shares " << way.shares << ", " << hosts << " hosts of "
                    << per_host);
    Crowd crowd(hosts, per_host, way, static_cast<unsigned>(hosts));
    std::uint32_t number = 0;
    for (int odd = 0; odd < crowd.ranks(); ++odd) {
      // The same number of bytes, too: of another operation, say.
      for (const std::size_t odd_count : {std::size_t{1000}, std::size_t{1001}, std::size_t{3}, Crowd::kNotByRails})
        crowd.run(++number, {1000, odd % 2 == 0, 0}, odd, odd_count);
      crowd.run(++number, {1000, odd % 2 == 1, 0});
    }
  };
  for (const Way& way : kWays)
    for (const int hosts : {2, 3, 4})
      for (const int per_host : {1, 2}) all(way, hosts, per_host);
}

TEST_CASE("rails: numbers that wrap", "[rails]") {
  for (const Way& way : kWays) {
    INFO("pattern " << static_cast<int>(way.pattern) << ", shares " << way.shares);
    // What has never been written has number 0; so has a rank that has made no call yet.
    for (const std::uint32_t first : {~0u - 1, 0u}) {
      Crowd crowd(4, 3, way, 1);
      for (const std::uint32_t later : {0u, 1u, 2u, 3u}) crowd.run(first + later, {1000, later % 2 == 0, 0});
      Crowd differing(4, 3, way, 1);
      for (const std::uint32_t later : {0u, 1u, 2u, 3u})
        differing.run(first + later, {1000, false, 0}, 1, later % 2 == 0 ? 500 : Crowd::kNotByRails);
    }
  }
}

TEST_CASE("rails: each host sends what the pattern takes, and no more", "[rails]") {
  constexpr std::size_t kCount = 3 * 4 * 16;
  struct Case {
    int hosts, per_host;
    Way way;
    std::uint64_t times;  ///< the buffer, out of all hosts together
  };
  for (const Case& with : {Case{2, 2, {Pattern::kDirect}, 2},
                           {2, 3, {Pattern::kDoubling}, 2},
                           {4, 3, {Pattern::kDirect}, 12},
                           {4, 3, {Pattern::kDoubling}, 8},
                           {4, 4, {Pattern::kStar}, 6},
                           {3, 2, {Pattern::kStar}, 4},
                           {3, 1, kShares, 4},
                           {4, 1, kShares, 6},
                           {4, 3, kShares, 6}}) {
    Crowd crowd(with.hosts, with.per_host, with.way, 1);
    crowd.run(1, {kCount, false, 0});
    CHECK(crowd.sent() == with.times * kCount * sizeof(float));
  }
}

TEST_CASE("rails: what came very many calls ago has been read", "[rails]") {
  FarInputs inputs;
  for (const std::uint32_t number : {1u, 2u}) {
    REQUIRE(inputs.place_for(number, 0, 64, 1) != nullptr);
    inputs.note_arrived(number, 0);
  }
  CHECK(inputs.place_for(3, 0, 64, 1) == nullptr);
  constexpr std::uint32_t kLater = (1u << 31) + 2;  // as far behind as ahead
  for (const std::uint32_t number : {kLater, kLater + 1}) CHECK(inputs.place_for(number, 0, 64, kLater) != nullptr);
}

TEST_CASE("rails: hosts that share cores add up at one of them; far from each other, directly or by pairs", "[rails]") {
  const tutti::planner::NetworkCosts near{.message_us = 1, .work_us = 4, .gbps = 4};
  const tutti::planner::NetworkCosts far{.message_us = 50, .work_us = 4, .gbps = 4};
  CHECK(plan_rails(2, 2, near, 2, true).pattern == Pattern::kDirect);
  CHECK(plan_rails(2, 2, near, 2, true).longest == RailRoom::kBytesMax);
  CHECK(plan_rails(2, 2, near, 1, false).longest == RailRoom::kOverNetworkMax);
  CHECK(plan_rails(3, 2, near, 3, true).pattern == Pattern::kStar);
  CHECK(plan_rails(4, 2, near, 1, true).pattern == Pattern::kDoubling);
  CHECK(plan_rails(4, 2, far, 1, true).pattern == Pattern::kDirect);
  CHECK(plan_rails(8, 2, near, 1, true).pattern == Pattern::kDoubling);
  // Never by Bruck's pattern, in which sums do not double.
  CHECK(plan_rails(6, 2, {.message_us = 15, .work_us = 8, .gbps = 1}, 1, true).pattern == Pattern::kDirect);
  // Bytes more are worth as much as messages less.
  const RailPlan slow = plan_rails(4, 2, {.message_us = 50, .work_us = 4, .gbps = 0.1}, 1, true);
  CHECK(slow.longest < (std::size_t{64} << 10));
  // Which a host's ranks have together, unless it is their threads' own.
  CHECK(plan_rails(4, 2, {.message_us = 50, .work_us = 4, .gbps = 0.1}, 1, false).longest == slow.longest / 2);
}

TEST_CASE("rails and lines go the same ways on ranks whose threads round otherwise", "[rails]") {
  using Plan = std::vector<std::size_t>;
  std::mt19937 random(1);
  // Of round prices limits are whole numbers, but for the rounding, and ways equally long.
  const auto price = [&] { return static_cast<double>(random() % 100 + 1) / 10; };
  for (int i = 0; i < 20000; ++i) {
    const tutti::planner::NetworkCosts network{.message_us = price(), .work_us = price(), .gbps = price() / 10};
    const int hosts = 3 + i % 6;
    const int sharers = 1 + i % 3;
    const auto plan_in = [&](int rounding) {
      std::fesetround(rounding);
      const RailPlan rails = plan_rails(hosts, 2, network, sharers, sharers > 1);
      const Pattern lines = tutti::comm::choose_pattern(hosts, network, sharers, true);
      const tutti::comm::FarLimits far = tutti::comm::far_limits(hosts, lines, network, true, sharers > 1);
      std::fesetround(FE_TONEAREST);
      return Plan{static_cast<std::size_t>(rails.pattern),
                  rails.longest,
                  static_cast<std::size_t>(lines),
                  far.sums,
                  far.gathers,
                  far.passed_on};
    };
    const Plan usual = plan_in(FE_TONEAREST);
    for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      INFO(hosts << " hosts, " << network.message_us << " us, " << network.work_us << " us, " << network.gbps
                 << " GB/s");
      REQUIRE(plan_in(rounding) == usual);
    }
  }
}
