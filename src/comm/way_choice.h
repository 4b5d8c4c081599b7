// Which of several plans a kind of call takes (planner::Way): that for the cores as they were when costs were measured, that for cores that have
// moved since, as those of virtual machines do, or the best whose data goes otherwise, as measurements of a few KiB do not hold for all pages and
// sizes. Short inputs go beside the announcements, or by one of these. Who receives, or rank 0, measures them and says in its announcement which
// one all take; nothing else is agreed upon. Who receives says it a call ahead as well, for two ranks that send to each other: the lower one
// chooses for both. A choice only counts and compares times: it must not know what the ways are.
#pragma once

#include "planner/plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace tutti::comm {

/// Of one kind of call. Now and then, and at once when calls take longer than they did, a few calls try another plan, each in turn.
class WayChoice {
 public:
  /// A planner::Way, or beside the announcements.
  static constexpr int kBesideLines = planner::kWays;

  /// `way`: of the first call. Another one that can be tried is kMeasured, until set_ways() says more.
  explicit WayChoice(int way = 0) : ways_(1u << way | 1u), kept_(way), agreed_(way), told_(way) {}

  /// Of the next call.
  int way() const { return trying_ ? other_ : kept_; }
  /// Where another rank chooses: what it chose for the last call.
  void follow(int way) { kept_ = way; }
  /// Where the other rank is told one call ahead: what it was told. Trials begin and end one call later then.
  int agreed() const { return agreed_; }
  void agree(int way) { agreed_ = way; }
  /// The other way round: what this rank was told.
  int told() const { return told_; }
  void be_told(int way) { told_ = way; }
  /// Of the calls from now on: a bit for each way that has a plan of its own. Whether there is a choice.
  bool set_ways(std::uint32_t ways) {
    ways_ = ways;
    return std::popcount(ways) > 1;
  }

  /// Whether this call's time is wanted: that of all calls of a trial, of all long ones, and else of a few in a row. A clock costs more than this.
  bool wants_time() {
    if (!trying_) return are_long() || skipped_++ % kLookEvery < kTries;
    if (++tried_ <= 4 * tries()) return true;
    // Calls in groups and on streams tell no time: a trial that began before them ends without a verdict.
    trying_ = false;
    calls_ = 0;
    return false;
  }

  /// How long a call took from when all had announced it, if wants_time() said so.
  void note(double us) {
    recent_[calls_++ % kTries] = us;
    if (trying_ && are_long() && is_hopeless(us)) return end_trial(us);
    if (calls_ < kTries) return;
    const double best = *std::ranges::min_element(recent_);
    if (trying_) {
      if (calls_ >= tries()) end_trial(best);
      return;
    }
    if (calls_ >= interval_ || best > kSlower * usual_us_) begin_trial(best);
  }

  static constexpr std::uint32_t kTries = 3;
  static constexpr std::uint32_t kLookEvery = 48;  ///< short calls, of which as many are timed as a trial has
  static constexpr double kLongUs = 20;            ///< to which two looks at a clock add nothing
  static constexpr double kPastCachesUs = 1000;    ///< from there on the data of a call fits into no core's caches
  /// Timed calls from one trial to the next. Once all others have had one since another way was taken, the interval doubles; that of long calls, all
  /// of which are timed, becomes four times as long.
  static constexpr std::uint32_t kFirstInterval = kTries;
  static constexpr std::uint32_t kLongestInterval = 32 * kTries;
  static constexpr std::uint32_t kLongestIntervalOfLong = 32 * kLookEvery;

 private:
  static constexpr std::uint32_t kTriesOfLong = 8;
  static constexpr double kSlower = 1.5;
  static constexpr double kFaster = 0.8;
  static constexpr double kFasterOfLong = 0.92;  ///< their times differ less, and the first after a change is slower
  static constexpr double kHopeless = 2;

  /// Each call is worth a look then. What no trial has been compared with yet may be.
  bool are_long() const { return usual_us_ >= kLongUs; }
  bool are_past_caches() const { return usual_us_ >= kPastCachesUs; }
  /// Calls of a trial, the last kTries of which count. Data that fits into caches is in the wrong ones at first, for some calls.
  std::uint32_t tries() const { return are_long() && !are_past_caches() ? kTriesOfLong : kTries; }
  /// By the last call of a trial of long ones. Those past the caches cost most, and hardly get faster from one to the next.
  bool is_hopeless(double us) const {
    if (are_past_caches() && calls_ == 2) return std::min(recent_[0], recent_[1]) > usual_us_;
    return calls_ > tries() - kTries && us > kHopeless * usual_us_;
  }

  void begin_trial(double best) {
    if (best > kSlower * usual_us_) begin_round(0);
    usual_us_ = best;
    choose_other();
    trying_ = true;
    tried_ = 0;
    calls_ = 0;
  }
  void end_trial(double best) {
    trying_ = false;
    calls_ = 0;
    const bool is_faster = best < (are_long() ? kFasterOfLong : kFaster) * usual_us_;
    if (is_faster) {
      begin_round(1u << kept_ | 1u << other_);
      kept_ = other_;
      usual_us_ = best;
    }
    done_ |= 1u << other_;
    if ((others() & ~done_) != 0) return;
    done_ = 0;
    interval_ =
        are_long() ? std::min(4 * interval_, kLongestIntervalOfLong) : std::min(2 * interval_, kLongestInterval);
  }

  /// Of trials of all others but these, one soon after the other.
  void begin_round(std::uint32_t done) {
    done_ = done;
    interval_ = kFirstInterval;
  }
  std::uint32_t others() const { return ways_ & ~(1u << kept_); }

  void choose_other() {
    const std::uint32_t left = others() & ~done_;
    const std::uint32_t from = left != 0 ? left : others();
    constexpr int kWays = kBesideLines + 1;
    for (int i = 0; i < kWays; ++i) {
      other_ = (other_ + 1) % kWays;
      if ((from >> other_ & 1) != 0) return;
    }
    other_ = kept_;
  }

  std::uint32_t ways_;
  std::uint32_t done_ = 0;  ///< of them: compared with the one that is kept in this round
  int kept_;
  int agreed_;
  int told_;
  int other_ = 0;              ///< the way that is tried, or was last
  bool trying_ = false;        ///< that one
  std::uint32_t tried_ = 0;    ///< calls of this trial, timed or not
  std::uint32_t skipped_ = 0;  ///< calls, but for those of trials
  std::uint32_t calls_ = 0;    ///< timed ones, since the last change
  std::uint32_t interval_ = kFirstInterval;
  double usual_us_ = std::numeric_limits<double>::infinity();  ///< before the last trial, or in it if it won
  std::array<double, kTries> recent_{};
};

}  // namespace tutti::comm
