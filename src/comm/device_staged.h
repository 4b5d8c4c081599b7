// The way of calls on device memory through host memory, which works whatever the ranks' devices reach: ranks in several processes, on
// several hosts, or on devices that do not reach each other.
//
//   the rank's stream                      the rank's thread "tutti-staged"        other ranks
//   input -> staging memory
//   ready = n                ------------> waits for ready >= n
//   waits for done >= n                    round n as host calls    <------------> the same
//                            <------------ done = n
//   staging memory -> output
//
// All of that is put on the stream when the call is made, and the caller goes on. A long call is cut into rounds (staged_rounds.h), the
// staging memory has room for kDepth of them: while the host works on one, the stream copies those before and after it.
//
//  S1. A stream waits for this rank's thread only, and that thread for nothing that is put on a stream after the wait: everything of a
//      round that comes before the wait is there before it. So it does not matter which streams share a queue of the device.
//  S2. The thread calls no CUDA function. What can fail there fails in the thread that makes the call.
//  S3. Rounds of a communicator run in the order in which their calls were made, on any streams: each call's first operation waits for the
//      last one of the call before. So staging memory is used again only when what was in it has been copied.
//  S4. Whatever ends a round, done becomes n: no stream waits for ever. After a failure outputs are undefined, and the communicator says
//      so (keep_async, or its failure).
//  S5. Memory that streams may still touch is let go of when the last operation is through, also after an abort.
#pragma once

#include "comm/communicator.h"
#include "comm/staged_rounds.h"
#include "cuda/device.h"
#include "cuda/stream_words.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace tutti::comm {

/// Pinned host memory for copies; of a kind that ranks of other processes can map, if that can be pinned.
class StagingMemory {
 public:
  static Result<std::unique_ptr<StagingMemory>> allocate(const std::shared_ptr<cuda::Device>& device,
                                                         std::size_t bytes);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  StagingMemory() = default;
  std::byte* data_ = nullptr;
  void* shared_ = nullptr;
  cuda::RegisteredMemory registered_;
  cuda::PinnedMemory pinned_;  ///< in its place
};

/// What streams touch, and how to see that they are through with it.
struct StagedResources {
  std::shared_ptr<cuda::Device> device;
  cuda::PinnedMemory words;
  cuda::Event passed;  ///< recorded behind each call
  bool is_used = false;
  bool is_lost = false;  ///< `passed` could not be recorded: nobody knows when streams are through
  std::unique_ptr<StagingMemory> memory;
  std::vector<std::unique_ptr<StagingMemory>> outgrown;

  bool are_through() const;
};

class StagedRank {
 public:
  /// `communicator` must outlive it.
  static Result<std::shared_ptr<StagedRank>> create(Communicator& communicator, std::shared_ptr<cuda::Device> device);
  /// No call is under way any more. Waits a little for the streams to get through.
  ~StagedRank();
  StagedRank(const StagedRank&) = delete;
  StagedRank& operator=(const StagedRank&) = delete;

 private:
  friend class StagedCalls;
  static constexpr std::uint32_t kDepth = 2;

  /// A round for the thread.
  struct Work {
    std::vector<StagedPart> parts;  ///< with host memory for buffers
    std::uint32_t number = 0;
    std::optional<std::uint64_t> ticket;  ///< of the first round of a call: it waits for its turn
    bool is_last = false;
  };

  StagedRank(Communicator& communicator, StagedResources resources);
  Status start();
  void post(Work work);
  void run();
  void run(const Work& work);
  void run_calls(const Work& work);
  bool wait_until_ready(std::uint32_t number);
  std::uint32_t* ready() const;
  std::uint32_t* done() const;
  /// Memory of the round in the staging memory, which grows if that is too short.
  Result<std::byte*> place(std::uint32_t number, std::size_t bytes);

  Communicator& comm_;
  std::mutex submitting_;  ///< of everything up to `mutex_`: one thread puts a group's calls on streams
  StagedResources resources_;
  std::size_t slot_bytes_ = 0;
  std::uint32_t last_number_ = 0;
  std::thread thread_;

  std::mutex mutex_;  ///< of the queue; no CUDA function is called while it is held
  std::condition_variable news_;
  std::deque<Work> queue_;
  bool ends_ = false;
};

/// One communicator's calls of a group, on their way to the streams. Several go on by turns, a round each: then what one stream waits for
/// is never behind another's wait, even if the same thread gives both, or ranks share a stream.
class StagedCalls {
 public:
  /// Waits for other threads' calls of the communicator.
  StagedCalls(Communicator& communicator, std::shared_ptr<StagedRank> rank, std::span<const CallArgs> calls);
  ~StagedCalls();
  StagedCalls(const StagedCalls&) = delete;
  StagedCalls& operator=(const StagedCalls&) = delete;

  /// What keeps the calls from being made. Nothing has been done then.
  Status check();
  /// The calls have their place in the communicator's order from here on.
  void begin();
  bool is_done() const { return is_done_; }
  /// The next round; the failure of any step fails the communicator.
  Status step();

 private:
  struct Given {
    std::uint32_t number = 0;
    std::vector<StagedPart> parts;
    std::byte* memory = nullptr;
  };

  Status check_captures() const;
  Status join_streams();
  Status give(const StagedRound& round);
  Status copy_in(const Given& given) const;
  /// The stream waits for the oldest round that was given, and copies its outputs.
  Status take();
  Status part_streams();
  Status advance();
  void end();

  Communicator& comm_;
  const std::shared_ptr<StagedRank> rank_;
  const std::unique_lock<std::mutex> submitting_;
  std::vector<cuda::StreamHandle> streams_;  ///< that the calls name; everything goes on the first
  StagedRounds rounds_;
  std::deque<Given> given_;
  std::optional<std::uint64_t> ticket_;  ///< until the first round has it
  bool has_begun_ = false;
  bool has_joined_ = false;
  bool posted_last_ = false;
  bool is_done_ = false;
};

}  // namespace tutti::comm
