// Calls on their way through host memory, as the thread that makes them puts them on streams (device_staged.h has the whole).
#pragma once

#include "comm/device_staged.h"

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace tutti::comm {

/// How they go that do not go by themselves, but within a call of several communicators (teamed_call.h).
struct StagedWays {
  std::size_t part_bytes = 0;
  std::size_t round_calls = StagedRounds::kRoundCalls;
  /// What fails in one of them is the communicator's failure: others are in the midst of that call.
  bool binds = false;
  /// They are parts of one call, and what one reads no other one writes.
  bool pairs_calls = false;
  std::weak_ptr<void> memory{};  ///< of the library's, in which they have buffers
};

/// One communicator's calls of a group. Several go on by turns, a round each: then what one stream waits for is never behind another's wait,
/// even if the same thread gives both, or ranks share a stream.
class StagedCalls {
 public:
  /// `submitting`: the rank's, which has waited for other threads' calls of the communicator.
  StagedCalls(Communicator& communicator, std::shared_ptr<StagedRank> rank, std::unique_lock<std::mutex> submitting,
              std::span<const CallArgs> calls);
  StagedCalls(Communicator& communicator, std::shared_ptr<StagedRank> rank, std::unique_lock<std::mutex> submitting,
              std::span<const CallArgs> calls, const StagedWays& ways);
  ~StagedCalls();
  StagedCalls(const StagedCalls&) = delete;
  StagedCalls& operator=(const StagedCalls&) = delete;

  /// What keeps the calls from being made. Nothing has been done then.
  Status check();
  bool is_done() const { return is_done_; }
  /// The next round, once check() has succeeded. The failure of any fails the communicator, as others wait for this rank then; of captured calls nobody does.
  Status step();

  /// In place of step(), for who puts work of its own between: one begin(), as many give_next() as there are rounds, each followed by its
  /// take_next() before the second one after it, one finish(). They fail as step() does.
  Status begin();
  Status give_next() { return guard(give(rounds_.next())); }
  Status take_next() { return guard(take()); }
  Status finish();
  /// Something else has failed that belongs to the same call.
  void break_off(const Error& why);

  const cuda::Device& device() const { return resources().device(); }
  bool is_captured() const { return captured_ != nullptr; }
  /// Device memory that lives as long as what streams are given here may use it.
  Result<std::byte*> scratch(std::size_t bytes) { return resources().scratch(bytes); }
  std::shared_ptr<void> scratch_memory() const { return resources().scratch_memory(); }
  /// Second shots of the calls, each of which goes by two then (two_shot.h), where they are pairs.
  bool has_second_shots() const { return rounds_.has_second_shots(); }

 private:
  struct Given {
    std::uint32_t number = 0;
    std::vector<StagedPart> parts;
    std::byte* memory = nullptr;
  };

  bool has_set_schedule() const;
  Result<cuda::Capture> find_capture() const;
  StagedResources& resources() const { return captured_ ? captured_->resources : rank_->resources(); }
  Status advance();
  Status guard(Status status);
  Status join();
  Status part();
  /// For the others, some of which may make another call, which goes by kernels.
  Status note() const;
  Status give(const StagedRound& round);
  /// What MPI may still be at work on after a failure.
  std::vector<std::weak_ptr<void>> memory_of_round() const;
  /// Tells the rank's thread, when the stream comes here, that the inputs are there.
  Status hand_over(std::uint32_t number) const;
  Status copy_in(const Given& given) const;
  /// The stream waits for the oldest round that was given, and copies its outputs.
  Status take();
  Status copy_out(const Given& given, const StagedPart& part) const;
  Status copy_own_block(const CallArgs& args) const;
  void end();

  Communicator& comm_;
  const std::shared_ptr<StagedRank> rank_;
  const std::unique_lock<std::mutex> submitting_;
  std::vector<cuda::StreamHandle> streams_;  ///< that the calls name; everything goes on the first
  std::uint64_t capture_ = 0;                ///< 0: nothing is captured
  std::shared_ptr<CapturedCalls> captured_;  ///< of that
  const bool binds_;
  const std::weak_ptr<void> others_memory_;
  StagedRounds rounds_;
  std::deque<Given> given_;
  enum class Posted : std::uint8_t { kNothing, kSome, kAll } posted_ = Posted::kNothing;  ///< rounds, to the thread
  std::list<StagedRank::Work> last_;  ///< what end() posts, made before anything is
  bool has_joined_ = false;
  bool is_done_ = false;
};

}  // namespace tutti::comm
