// Calls on their way through host memory, as the thread that makes them puts them on streams (device_staged.h has the whole).
#pragma once

#include "comm/device_staged.h"

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace tutti::comm {

/// One communicator's calls of a group. Several go on by turns, a round each: then what one stream waits for is never behind another's wait,
/// even if the same thread gives both, or ranks share a stream.
class StagedCalls {
 public:
  /// Waits for other threads' calls of the communicator.
  StagedCalls(Communicator& communicator, std::shared_ptr<StagedRank> rank, std::span<const CallArgs> calls);
  ~StagedCalls();
  StagedCalls(const StagedCalls&) = delete;
  StagedCalls& operator=(const StagedCalls&) = delete;

  /// What keeps the calls from being made. Nothing has been done then.
  Status check();
  bool is_done() const { return is_done_; }
  /// The next round, once check() has succeeded. The failure of any fails the communicator, as others wait for this rank then; of captured calls nobody does.
  Status step();

 private:
  struct Given {
    std::uint32_t number = 0;
    std::vector<StagedPart> parts;
    std::byte* memory = nullptr;
  };

  Result<cuda::Capture> find_capture() const;
  StagedResources& resources() const { return captured_ ? captured_->resources : rank_->resources(); }
  Status advance();
  /// For the others, some of which may make another call, which goes by kernels.
  Status note() const;
  Status give(const StagedRound& round);
  /// Tells the rank's thread, when the stream comes here, that the inputs are there.
  Status hand_over(std::uint32_t number) const;
  Status copy_in(const Given& given) const;
  /// The stream waits for the oldest round that was given, and copies its outputs.
  Status take();
  Status copy_own_block(const CallArgs& args) const;
  void end();

  Communicator& comm_;
  const std::shared_ptr<StagedRank> rank_;
  const std::unique_lock<std::mutex> submitting_;
  std::vector<cuda::StreamHandle> streams_;  ///< that the calls name; everything goes on the first
  std::shared_ptr<CapturedCalls> captured_;  ///< nullptr: nothing is captured
  StagedRounds rounds_;
  std::deque<Given> given_;
  enum class Posted : std::uint8_t { kNothing, kSome, kAll } posted_ = Posted::kNothing;  ///< rounds, to the thread
  bool has_joined_ = false;
  bool is_done_ = false;
};

}  // namespace tutti::comm
