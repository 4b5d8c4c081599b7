#include "comm/calibration.h"

#include "base/elapsed.h"
#include "base/reduce.h"
#include "executor/backoff.h"
#include "executor/host_machine.h"
#include "transport/peer_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 9;
constexpr std::size_t kFewBytes = 64;
/// Two for each round and way of writing, rank 0's odd, and the last.
constexpr std::uint64_t kTurns = 4 * kRounds + 1;

/// Whether what rank 0 reads in its turn was written past the caches.
bool is_streamed(std::uint64_t turn) { return turn % 4 == 3; }

/// Of the rounds after the first two, which touch memory for the first time.
class Samples {
 public:
  void add(double us) { us_[count_++] = us; }
  double median() {
    const auto begin = us_.begin() + 2;
    const auto middle = begin + (count_ - 2) / 2;
    std::nth_element(begin, middle, us_.begin() + count_);
    return *middle;
  }

 private:
  std::array<double, kRounds> us_{};
  int count_ = 0;
};

/// Waits for the other's turns, as long as the whole may take.
class Turns {
 public:
  explicit Turns(const CalibrationArgs& args) : args_(args) {}

  bool wait_for(std::uint64_t turn) const {
    executor::Backoff backoff(false);
    while (executor::load_acquire(&args_.board.turn) != turn) {
      if (backoff.is_slow() && (args_.given_up() || us_since(start_) > kCalibrationMsMax * 1e3)) return false;
      backoff.wait();
    }
    return true;
  }

 private:
  const CalibrationArgs& args_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

planner::MeasuredCosts calibrate(const CalibrationArgs& args) {
  const Turns turns(args);
  std::array<Samples, 2> reads;
  Samples copy;
  Samples few;
  std::vector<std::byte> here(args.bytes);
  for (std::uint64_t turn = 1; turn < kTurns; turn += 2) {
    if (!turns.wait_for(turn)) return {};
    const auto start = Clock::now();
    std::memcpy(here.data(), args.slots, args.bytes);
    reads[is_streamed(turn)].add(us_since(start));
    for (const std::size_t bytes : {args.bytes, kFewBytes}) {
      if (is_streamed(turn) || args.partner == 0) break;
      const auto before = Clock::now();
      if (!transport::read_process(args.partner, args.board.address, here.data(), bytes).ok()) return {};
      (bytes == kFewBytes ? few : copy).add(us_since(before));
    }
    executor::store_release(&args.board.turn, turn + 1);
  }
  // The partner's last figures are there after its last turn.
  if (!turns.wait_for(kTurns)) return {};
  const auto bytes = static_cast<double>(args.bytes);
  const auto rate = [&](double both_us) { return both_us > 0 ? 2 * bytes / both_us * 1e-3 : 0; };
  planner::MeasuredCosts costs;
  costs.slot_gbps = rate(reads[0].median() + args.board.write_us);
  costs.streamed_gbps = rate(reads[1].median() + args.board.streamed_write_us);
  if (costs.slot_gbps == 0) return {};
  if (args.partner == 0) return costs;
  costs.call_us = few.median();
  const double more_us = copy.median() - costs.call_us;
  if (!(more_us > 0)) return {};
  costs.call_gbps = (bytes - kFewBytes) / more_us * 1e-3;
  return costs;
}

void help_calibrate(const CalibrationArgs& args) {
  const Turns turns(args);
  std::array<Samples, 2> writes;
  std::vector<std::byte> here(args.bytes);
  args.board.address = reinterpret_cast<std::uint64_t>(here.data());
  for (std::uint64_t turn = 1; turn < kTurns; turn += 2) {
    std::memset(here.data(), static_cast<int>(turn), args.bytes);
    const auto start = Clock::now();
    if (is_streamed(turn)) {
      copy_past_caches(args.slots, here.data(), args.bytes);
    } else {
      std::memcpy(args.slots, here.data(), args.bytes);
    }
    writes[is_streamed(turn)].add(us_since(start));
    executor::store_release(&args.board.turn, turn);
    // `here` must outlive rank 0's copies: where it has not answered in time, its next call fails or reads what is gone.
    if (!turns.wait_for(turn + 1)) return;
  }
  args.board.write_us = writes[0].median();
  args.board.streamed_write_us = writes[1].median();
  executor::store_release(&args.board.turn, kTurns);
}

namespace {

/// No lock: a process may fork at any time.
struct Remembered {
  std::atomic<double> slot_gbps{0};
  std::atomic<double> call_us{0};
  std::atomic<double> call_gbps{0};
  std::atomic<double> streamed_gbps{0};
};
Remembered remembered;

}  // namespace

planner::MeasuredCosts remembered_costs() {
  const double slot_gbps = remembered.slot_gbps.load(std::memory_order_acquire);
  if (slot_gbps == 0) return {};
  return {slot_gbps, remembered.call_us, remembered.call_gbps, remembered.streamed_gbps};
}

void remember_costs(const planner::MeasuredCosts& costs) {
  remembered.call_us = costs.call_us;
  remembered.call_gbps = costs.call_gbps;
  remembered.streamed_gbps = costs.streamed_gbps;
  remembered.slot_gbps.store(costs.slot_gbps, std::memory_order_release);
}

}  // namespace tutti::comm
