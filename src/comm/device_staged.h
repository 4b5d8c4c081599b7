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
// staging memory has room for two of them: while the host works on one, the stream copies those before and after it.
//
//  S1. A stream waits for this rank's thread only, and that thread for nothing that is put on a stream after the wait: everything of a
//      round that comes before the wait is there before it. So it does not matter which of the rank's streams share a queue of the device (but
//      where MPI copies itself: D4 of device_messages.h). Those of several ranks of one process on one GPU must not, if one's wait may come
//      before what another rank's thread has still to put there.
//  S2. The thread calls no CUDA function, but to have MPI do so (device_messages.h). What can fail there fails in the thread that makes the
//      call.
//  S3. Rounds of a communicator run in the order in which their calls were made, or their graphs launched, on any streams: each call's first
//      operation waits for the last one of the call before (device_order.h). So staging memory is used again only when what was in it has been
//      copied.
//  S4. Whatever ends a round, done becomes n: no stream waits for ever. After a failure outputs are undefined, and the communicator says
//      so (keep_async, or its failure).
//  S5. Memory that streams may still touch is let go of when the last operation is through, also after an abort. After a failure a rank of the
//      same process may still be reading it in a host call: then it stays until all of these have ended their threads. (What a graph keeps, S6,
//      ends with the graph.)
//  S6. The captured calls of a graph have words and memory of their own, which the graph keeps. In place of writing `ready`, a replay calls a
//      function that hands the round to the thread and returns, so that the driver's thread for such functions never waits. Replays run
//      when they come, also before a call that was made earlier, if the program orders them itself (NCCL_GRAPH_MIXING_SUPPORT=0), but never
//      within one.
#pragma once

#include "comm/communicator.h"
#include "comm/device_order.h"
#include "comm/staged_memory.h"
#include "comm/staged_rounds.h"
#include "executor/backoff.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace tutti::comm {

class StagedRank;
struct StagedFamily;

/// How a replay finds its rank, which may have ended.
struct StagedGate {
  std::mutex mutex;
  StagedRank* rank = nullptr;
};

/// A rank's calls in a graph, one after another.
struct CapturedCalls {
  struct Round {
    CapturedCalls* calls = nullptr;
    std::vector<StagedPart> parts;  ///< with host memory for buffers
    std::vector<std::weak_ptr<void>> memory;
    std::uint32_t number = 0;  ///< 1: a replay begins
    bool is_last = false;
    bool binds = false;  ///< StagedWays::binds
  };

  std::shared_ptr<StagedGate> gate;
  std::shared_ptr<DeviceOrder> order;  ///< the rank's
  StagedResources resources;
  std::deque<Round> rounds;  ///< the graph has their addresses
  bool broke_off = false;    ///< a part of a call is in the graph

  /// What the graph calls when a round's inputs are there.
  static void replay(void* round);
};

class StagedRank {
 public:
  /// A round for the thread.
  struct Work {
    std::vector<StagedPart> parts;              ///< with host memory for buffers
    std::vector<std::weak_ptr<void>> memory{};  ///< of the library's, in which they have buffers
    std::uint32_t number = 0;
    const CapturedCalls* replay = nullptr;  ///< only its address counts
    std::uint32_t* done = nullptr;
    bool is_first = false;     ///< of a group's calls: has their ticket
    std::uint64_t ticket = 0;  ///< post() takes it
    bool is_last = false;
    bool binds = false;  ///< StagedWays::binds
  };

  /// `communicator` must outlive it.
  static Result<std::shared_ptr<StagedRank>> create(Communicator& communicator, std::shared_ptr<cuda::Device> device);
  /// No call is under way any more; replays that come later do nothing. Waits a little for the streams to get through.
  ~StagedRank();
  StagedRank(const StagedRank&) = delete;
  StagedRank& operator=(const StagedRank&) = delete;

  /// Of everything that puts calls on streams.
  std::mutex& submitting() { return submitting_; }
  StagedResources& resources() { return resources_.front(); }
  bool shares_gpu() const { return shares_gpu_; }  ///< processes have a GPU by turns
  DeviceOrder& order() { return *order_; }
  /// What the calls of this capture have in common, which the graph keeps.
  Result<std::shared_ptr<CapturedCalls>> capture(const cuda::Capture& into);
  /// After a failure: further calls of the capture have nothing to do with those that are in it, whose replays fail the communicator.
  void forget_capture();
  /// Before the first post().
  Status start();
  /// One, which was made before, as nothing may fail here: the calls of a group have their place in the communicator's order from their first
  /// round on.
  void post(std::list<Work> one);
  /// The same of a replay. False: it cannot be, or there is no memory, and the communicator has failed.
  bool post_replay(const CapturedCalls::Round& round);

 private:
  StagedRank(Communicator& communicator, std::shared_ptr<cuda::Device> device, StagedResources resources,
             DeviceOrder order);
  void run();
  template <class Act>
  void survive(const Act& act);
  void run_replay();
  std::optional<Work> next_of(const CapturedCalls* replay);
  /// Whether this thread has anything to wait for: the communicator has not failed, nor is it over. Fails it if the stream, on which `what`
  /// is to come, has taken longer than peers wait for each other.
  bool may_wait(executor::Backoff& backoff, std::chrono::steady_clock::time_point& since, const char* what);
  bool has_replays();
  bool is_ending();
  void finish(const Work& work);
  void run_calls(const Work& work);
  bool wait_until_ready(const Work& work);

  Communicator& comm_;
  const std::shared_ptr<cuda::Device> device_;
  const bool shares_gpu_;
  const std::shared_ptr<StagedFamily> family_;
  const std::shared_ptr<StagedGate> gate_;
  std::mutex submitting_;
  const std::shared_ptr<DeviceOrder> order_;
  std::list<StagedResources> resources_;  ///< one
  std::uint64_t capture_id_ = 0;
  std::weak_ptr<CapturedCalls> captured_;  ///< of the capture with that id
  std::thread thread_;

  /// Of what follows, and of tickets, which are in the order of the queue. No CUDA function is called while it is held.
  std::mutex mutex_;
  std::condition_variable news_;
  std::list<Work> queue_;
  std::list<Work> replays_;
  bool ends_ = false;
};

}  // namespace tutti::comm
