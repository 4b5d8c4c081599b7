// Who looks after the kernels of a rank that wait for other processes: nobody on the host does. A thread that passes on what goes wrong,
// both ways, and looks a few hundred times a second.
//
//   a kernel gave up (its failure record)              -> the communicator's failure, which all ranks see
//   the communicator has failed (a peer died, abort)   -> the abort word and the bells, so that kernels and streams go on
//   a peer does not make a call, or left without it    -> the communicator's failure
#pragma once

#include "comm/communicator.h"
#include "comm/device_bells.h"
#include "comm/device_segment.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace tutti::comm {

class DeviceWatch {
 public:
  /// All outlive it. `bells`: nullptr where kernels wait for each other by themselves.
  static Result<std::unique_ptr<DeviceWatch>> start(Communicator& communicator, const DeviceSegment& segment,
                                                    const DeviceBells* bells);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  /// Before this rank's next call goes to its stream: the others' messages can name it then, and wait for it no more. `eager`: not
  /// captured into a graph, whose replays nobody counts.
  void note(const Signature& signature, bool in_windows, bool eager);
  /// What a call is announced by.
  static std::uint32_t fingerprint_of(const Signature& signature, bool in_windows) {
    return signature.fingerprint() ^ (in_windows ? 0x9e3779b8u : 0u);
  }

 private:
  using Clock = std::chrono::steady_clock;
  DeviceWatch(Communicator& communicator, const DeviceSegment& segment, const DeviceBells* bells)
      : comm_(communicator),
        segment_(segment),
        bells_(bells),
        card_(communicator.members().control.device_card(communicator.rank())) {}
  void run();
  void look();
  void look_at_peers();
  std::string why(const cuda::FailureRecord& record) const;

  Communicator& comm_;
  const DeviceSegment& segment_;
  const DeviceBells* const bells_;
  DeviceCard& card_;
  std::vector<std::optional<Clock::time_point>> behind_since_;  ///< by rank; by the thread
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm
