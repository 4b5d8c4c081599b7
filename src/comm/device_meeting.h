// Where the ranks of a communicator meet whose threads all run in this process. A call starts when all ranks that it needs have made it;
// then one launch does everybody's part, or one on each device does its ranks'.
//
//   each rank's thread                                     the last one to come
//   post(): its calls, under the mutex                     post(): finds that a call is complete
//   wait until they are launched, or failed  <-----------  launch(): events join the ranks' streams, one kernel, events again
//
//  M1. A rank's collectives are matched in the order in which it posted them, the first with the others' first; a send with the
//      receive of the same number between the same two ranks. So what is matched does not depend on who comes first.
//  M2. Everything is under one mutex, launches too: two threads never put calls of one communicator on streams at the same time. Nor, where
//      those are of several devices, calls of any communicators (DeviceLauncher::across_devices()).
//  M3. A rank returns to its caller when its calls are on its stream, and what follows there waits for them. A kernel reads a rank's
//      input after all that this rank's stream was given before: the launch waits for every rank's stream.
//      Or its kernel takes from the others' what comes behind the same (device_lines.h).
//  M4. Nobody waits for ever: who waits looks at the failure record and at its patience, and takes its calls back.
#pragma once

#include "comm/control.h"
#include "comm/device_launch.h"

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace tutti::comm {

class Communicator;

class DeviceMeeting {
 public:
  /// The ranks that name the same control segment get the same one.
  static std::shared_ptr<DeviceMeeting> of(const Control& control);
  explicit DeviceMeeting(int ranks);
  /// Before the rank's first call.
  void join(int rank, LaunchPlace where);
  /// By all ranks or by none; they have their memory. The last one connects them.
  Status give_lanes(int rank, std::shared_ptr<DeviceLanes> lanes);

  /// Adds the calls to those that wait for others; what is complete then is put aside for launch(), by whoever is told that something is.
  /// `path_of`: how kernels do a call.
  using PathOf = std::function<DevicePath(const CallArgs&)>;
  bool post(int rank, std::span<const CallArgs> calls, const PathOf& path_of, DeviceSubmission& submission);
  /// Puts what is complete on the streams.
  void launch();
  /// Whether what the rank has on its streams is done, but for what goes by crews.
  bool is_through(const Communicator& communicator);
  /// Waits until it is; soon if the communicator fails.
  void finish(const Communicator& communicator);
  /// Takes back what has not matched; afterwards nobody knows the submission.
  void withdraw(DeviceSubmission& submission);
  /// The rank that the submission's first open call waits for, or -1; `what`: that call's name.
  int waiting_for(int rank, const DeviceSubmission& submission, std::string& what);

 private:
  using Queue = std::deque<PostedCall>;
  Queue& queue_of(int rank, const CallArgs& call);
  void match_collectives();
  void match_pair(std::size_t pair);
  void launch_matched();
  MatchedCall& begin_match();
  void end_match();
  static void refuse(std::span<PostedCall> calls);

  std::mutex mutex_;
  const int ranks_;
  DeviceLauncher launcher_;
  std::vector<Queue> collectives_;  ///< by rank
  std::vector<Queue> sends_;        ///< by sender and receiver
  std::vector<Queue> receives_;
  std::vector<MatchedCall> matched_;  ///< the first matched_count_; the others are there for their memory
  std::size_t matched_count_ = 0;
};

}  // namespace tutti::comm
