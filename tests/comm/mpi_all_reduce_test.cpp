// MpiAllReduce over an MPI that is imitated: messages move in pieces, at times and in an order that the seed says, and are read and written as
// late as MPI may.
#include "comm/mpi_all_reduce.h"

#include "base/reduce.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

namespace {

using namespace tutti;
using namespace tutti::comm;
using transport::MpiDirection;
using transport::MpiMessage;
using transport::MpiUse;

/// A send and its receive, once both are posted.
struct Transfer {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t sent = 0;
  std::size_t wanted = 0;
  std::size_t moved = 0;
  bool released = false;  ///< the sender's memory, which may be some time after all has moved
  bool cancelled = false;

  bool has_met() const { return from != nullptr && to != nullptr && !cancelled; }
  bool has_arrived() const { return has_met() && moved == sent; }
  bool has_begun() const { return has_met() && moved != 0; }
};

class Wires {
 public:
  explicit Wires(unsigned seed) : random_(seed) {}

  std::shared_ptr<Transfer> post(int from, int to, MpiUse use, MpiDirection direction, void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Pair& pair = pairs_[{from, to, use}];
    const bool sends = direction == MpiDirection::kSend;
    const std::size_t number = sends ? pair.sends++ : pair.receives++;
    if (number == pair.transfers.size()) pair.transfers.push_back(std::make_shared<Transfer>());
    const std::shared_ptr<Transfer> transfer = pair.transfers[number];
    if (sends) transfer->from = static_cast<const std::byte*>(data), transfer->sent = bytes;
    if (!sends) transfer->to = static_cast<std::byte*>(data), transfer->wanted = bytes;
    open_.push_back(transfer);
    return transfer;
  }

  /// One of those that can move does, a little or wholly; or nothing.
  void go_on() {
    const std::lock_guard lock(mutex_);
    if (open_.empty()) return;
    const std::size_t at = random_() % open_.size();
    Transfer& transfer = *open_[at];
    if (!transfer.has_met()) return;
    REQUIRE(transfer.sent == transfer.wanted);
    const std::size_t left = transfer.sent - transfer.moved;
    const std::size_t now = random_() % 3 == 0 ? left : std::min<std::size_t>(left, random_() % 100000);
    std::memcpy(transfer.to + transfer.moved, transfer.from + transfer.moved, now);
    transfer.moved += now;
    if (transfer.moved == transfer.sent && random_() % 2 == 0) {
      transfer.released = true;
      open_[at] = open_.back();
      open_.pop_back();
    }
  }

  /// That have begun, and are not through.
  std::size_t unfinished() const {
    const auto is_unfinished = [](const auto& one) { return one->has_begun() && !one->has_arrived(); };
    return static_cast<std::size_t>(std::ranges::count_if(open_, is_unfinished));
  }
  void cancel(Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    transfer.cancelled = !transfer.has_begun();
  }
  bool is_over(const Transfer& transfer, bool sends) {
    const std::lock_guard lock(mutex_);
    return sends ? transfer.released : transfer.cancelled || transfer.has_arrived();
  }
  /// What MPI does with what was left to it.
  void finish() {
    for (int i = 0; i < 20000; ++i) go_on();
  }

  int posts_until_failure = -1;

 private:
  struct Pair {
    std::size_t sends = 0;
    std::size_t receives = 0;
    std::vector<std::shared_ptr<Transfer>> transfers;
  };
  std::mutex mutex_;
  std::mt19937 random_;
  std::map<std::tuple<int, int, MpiUse>, Pair> pairs_;
  std::vector<std::shared_ptr<Transfer>> open_;
};

class FakeMessage final : public MpiMessage {
 public:
  FakeMessage(Wires& wires, std::shared_ptr<Transfer> transfer, bool sends)
      : wires_(wires), transfer_(std::move(transfer)), sends_(sends) {}
  State look() override {
    if (!transfer_) return State::kFailed;
    wires_.go_on();
    return wires_.is_over(*transfer_, sends_) ? State::kDone : State::kUnderWay;
  }
  void cancel() override {
    if (transfer_ && !sends_) wires_.cancel(*transfer_);
  }
  bool give_up() override { return false; }
  std::string problem() const override { return transfer_ ? "" : "MPI_Isend: no such luck"; }

 private:
  Wires& wires_;
  std::shared_ptr<Transfer> transfer_;  ///< nullptr: MPI has refused it
  bool sends_;
};

class FakeNetwork final : public transport::MpiNetwork {
 public:
  FakeNetwork(Wires& wires, int rank) : wires_(wires), rank_(rank) {}
  State state() const override { return State::kOpen; }
  std::string problem() const override { return ""; }
  std::unique_ptr<transport::ByteStream> stream(int, const std::uint64_t*) override { return nullptr; }
  std::unique_ptr<MpiMessage> message(int peer, MpiDirection direction, void* data, std::size_t bytes,
                                      MpiUse use) override {
    const bool sends = direction == MpiDirection::kSend;
    CHECK(bytes != 0);
    if (wires_.posts_until_failure-- == 0) return std::make_unique<FakeMessage>(wires_, nullptr, sends);
    auto transfer = wires_.post(sends ? rank_ : peer, sends ? peer : rank_, use, direction, data, bytes);
    return std::make_unique<FakeMessage>(wires_, std::move(transfer), sends);
  }

 private:
  Wires& wires_;
  int rank_;
};

constexpr float kBehind = -5;

float value(int rank, std::size_t i) {
  return static_cast<float>((static_cast<std::size_t>(rank) * 31 + i * 7) % 1009);
}

class Rank {
 public:
  Rank(Wires& wires, int ranks, int rank)
      : rank_(rank), sums_(std::make_unique<MpiAllReduce>(std::make_shared<FakeNetwork>(wires, rank), ranks, rank)) {
    machine_.set_reduce(reduce_function(DataType::kFloat32, ReduceOp::kSum));
  }

  void begin(std::size_t count, bool in_place, int divisor) {
    input_.assign(count + 1, kBehind);
    for (std::size_t i = 0; i < count; ++i) input_[i] = value(rank_, i);
    output_.assign(in_place ? 0 : count + 1, kBehind);
    result_ = in_place ? input_.data() : output_.data();
    sums_->begin({input_.data(), result_, count, sizeof(float), divisor});
  }
  bool advance() { return sums_->advance(machine_); }
  bool give_up(bool may_ask) { return sums_->give_up(may_ask); }
  const float* result() const { return result_; }
  MpiAllReduce& sums() { return *sums_; }
  void drop_sums() { sums_.reset(); }

 private:
  int rank_;
  std::uint64_t abort_word_ = 0;
  executor::HostMachine machine_{&abort_word_, nullptr};
  std::unique_ptr<MpiAllReduce> sums_;
  std::vector<float> input_;
  std::vector<float> output_;
  float* result_ = nullptr;
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

Ranks make_ranks(Wires& wires, int ranks) {
  Ranks all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(std::make_unique<Rank>(wires, ranks, rank));
  return all;
}

/// In an order of their own, until all are done; so many steps at most.
bool run(Ranks& all, std::mt19937& random, std::size_t steps) {
  std::vector<bool> done(all.size());
  for (; steps != 0 && std::ranges::find(done, false) != done.end(); --steps) {
    const std::size_t rank = random() % all.size();
    if (done[rank]) continue;
    all[rank]->advance();
    done[rank] = all[rank]->sums().is_over();
  }
  return std::ranges::find(done, false) == done.end();
}

std::size_t first_wrong(const Rank& rank, int ranks, std::size_t count, int divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += value(r, i);
    if (rank.result()[i] != (divisor == 0 ? sum : sum / static_cast<float>(divisor))) return i;
  }
  return rank.result()[count] == kBehind ? count + 1 : count;
}

}  // namespace

TEST_CASE("all-reduces by MPI's messages are right, whatever order these come in") {
  constexpr std::size_t kMebi = std::size_t{1} << 18;  // elements of 1 MiB
  for (const int ranks : {2, 3, 5, MpiAllReduce::kRanksMax}) {
    const auto n = static_cast<std::size_t>(ranks);
    // One element; less than a share for each; shares of several sizes; one piece, several, and more than are under way at a time.
    std::vector<std::size_t> counts = {1, 63, 64 * n - 1, 1000 * n + 7, 20011, 200011, kMebi + 5, 150001};
    if (ranks <= 3) counts.push_back(n * 3 * kMebi + 1);
    if (ranks == MpiAllReduce::kRanksMax) counts.push_back(n * kMebi / 2);
    for (unsigned seed = 1; seed <= 3; ++seed) {
      Wires wires(seed);
      std::mt19937 random(seed * 77);
      Ranks all = make_ranks(wires, ranks);
      for (const std::size_t count : counts) {
        INFO(ranks << " ranks, " << count << " elements, seed " << seed);
        const int divisor = random() % 3 == 0 ? ranks : 0;
        for (auto& rank : all) rank->begin(count, random() % 2 == 0, divisor);
        REQUIRE(run(all, random, 5'000'000));
        std::size_t sent = 0;
        for (auto& rank : all) {
          CHECK(first_wrong(*rank, ranks, count, divisor) == count + 1);
          CHECK(rank->sums().waiting_for() == -1);
          CHECK(rank->sums().problem().empty());
          sent += rank->sums().sent_bytes();
        }
        CHECK(sent == 2 * (n - 1) * count * sizeof(float));
      }
    }
  }
}

TEST_CASE("an all-reduce by MPI's messages says whom it waits for, and what MPI refused") {
  Wires wires(1);
  Ranks all = make_ranks(wires, 3);
  all[0]->begin(30000, false, 0);
  for (int i = 0; i < 100; ++i) all[0]->advance();
  CHECK(!all[0]->sums().is_over());
  CHECK(all[0]->sums().waiting_for() == 1);
  wires.posts_until_failure = 3;
  all[1]->begin(30000, false, 0);
  all[1]->advance();
  CHECK(all[1]->sums().problem() == "MPI_Isend: no such luck");
  all[1]->give_up(true);
}

TEST_CASE("a share that MPI refuses to send is told, though all wait for what would come of it") {
  Wires wires(2);
  std::mt19937 random(2);
  Ranks all = make_ranks(wires, 3);
  for (auto& rank : all) rank->begin(3000, false, 0);
  wires.posts_until_failure = 4;  // behind the receives
  all[1]->advance();
  CHECK(!run(all, random, 20000));
  CHECK(all[1]->sums().problem() == "MPI_Isend: no such luck");
  for (auto& rank : all) rank->give_up(true);
}

/// Under AddressSanitizer a transfer that goes on in memory that is gone is found.
TEST_CASE("an all-reduce by MPI's messages that fails leaves MPI nothing of the caller's that it has begun with") {
  constexpr std::size_t kCount = 700000;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Wires wires(seed);
    std::mt19937 random(seed);
    Ranks all = make_ranks(wires, 3);
    for (auto& rank : all) rank->begin(kCount, random() % 2 == 0, 0);
    // Somewhere on the way, some further than others.
    for (auto& rank : all)
      for (unsigned i = random() % 30; i != 0; --i) rank->advance();
    Ranks some;
    for (int i = 0; i < 2; ++i) some.push_back(std::move(all[static_cast<std::size_t>(i)]));
    run(some, random, random() % 400);
    some.push_back(std::move(all[2]));
    std::vector<std::thread> threads;
    for (auto& rank : some) threads.emplace_back([&rank] { rank->give_up(true); });
    for (std::thread& thread : threads) thread.join();
    CHECK(wires.unfinished() == 0);
    some.clear();
    wires.finish();
  }
}

TEST_CASE("where MPI must not be asked any more, what it may write to is kept") {
  Wires wires(4);
  std::mt19937 random(4);
  Ranks all = make_ranks(wires, 2);
  for (auto& rank : all) rank->begin(300000, false, 0);
  run(all, random, 10);
  CHECK(all[0]->give_up(false));
  all[0]->drop_sums();
  wires.finish();
  all[1]->give_up(true);
}
