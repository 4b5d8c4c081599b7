// How a thread waits: spin, then yield, then sleep. A sleeper wakes by itself, so nobody has to wake it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::executor {

/// Whether who is waited for needs the processor that waits.
class Crowding {
 public:
  explicit constexpr Crowding(bool crowded = false) : crowded_(crowded) {}
  /// Enough processors for all ranks of a host, but the system may put several on one. `processors`: a word of each rank's, shared by
  /// them; `rank`: whose thread waits.
  Crowding(std::span<std::uint32_t> processors, std::size_t rank) : processors_(processors), rank_(rank) {}

  bool is_certain() const { return crowded_; }
  /// Says where this thread waits, and whether another rank was last seen waiting there.
  bool meets_another() const;
  /// What the last look came to.
  bool has_met() const { return std::atomic_ref(met_).load(std::memory_order_relaxed); }
  /// Of a thread that waits for ranks of both.
  void join(const Crowding& other) {
    if (crowded_ || (!other.crowded_ && !processors_.empty())) return;
    crowded_ = other.crowded_;
    processors_ = other.processors_;
    rank_ = other.rank_;
  }

 private:
  bool crowded_ = false;
  mutable bool met_ = false;  ///< several threads of a rank may wait
  std::span<std::uint32_t> processors_;
  std::size_t rank_ = 0;
};

class Backoff {
 public:
  explicit Backoff(bool crowded) : Backoff(crowded ? kCertain : kNone) {}
  /// `crowding` stays where it is.
  explicit Backoff(const Crowding& crowding) : crowding_(&crowding) { reset(); }

  /// Waits a little; longer the more often it is called in a row.
  void wait();
  void reset() {
    pace_ = crowding_->is_certain() ? &kCrowded : &kPatient;
    waits_ = crowding_->has_met() ? pace_->hot_spins : 0;  // look at once
    looked_ = 0;
  }
  /// True every so often once spinning is over: time to look at clocks and peers. By time, as whoever gives the processor away where many
  /// want it may get it back much later.
  bool is_slow() {
    const bool may_be = waits_ > pace_->sleeps_from || (waits_ & (pace_->yield_every - 1)) == 0;
    return waits_ > pace_->spins && may_be && is_time();
  }

 private:
  struct Pace {
    std::uint32_t hot_spins;  ///< without a pause, which alone takes longer than a small call
    std::uint32_t spins;      ///< hot ones included
    /// One of so many waits after those gives the processor away, the others spin: what comes meanwhile is seen sooner. A power of 2.
    std::uint32_t yield_every;
    std::uint32_t sleeps_from;
  };
  bool is_time();

  static constexpr Crowding kCertain{true}, kNone{false};
  static constexpr Pace kPatient{100, 500, 64, 200000};  // some 20 us of spins; sleeps after some 10 ms
  static constexpr Pace kCrowded{0, 1, 1, 20000};

  const Crowding* crowding_;
  const Pace* pace_ = nullptr;
  std::uint32_t waits_ = 0;
  std::uint64_t looked_ = 0;  ///< in ticks; 0: not yet
};

}  // namespace tutti::executor
