// One rank's side of a communicator on device memory: its device, and the way to the other ranks.
#pragma once

#include "comm/communicator.h"
#include "comm/device_ipc.h"
#include "comm/device_lanes.h"
#include "comm/device_lines.h"
#include "comm/device_meeting.h"
#include "cuda/device.h"

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tutti::comm {

class DeviceTeams;
class StagedRank;

/// A stream that any thread may use in place of a thread's own default stream. One submission's at a time: on a stream that submissions
/// share, one that waits for others' calls would wait for what another thread's stream waits for.
struct Detour {
  cuda::OwnStream stream;
  cuda::Event event;
};

class DeviceRank {
 public:
  /// Before the ranks meet: opens the device that the options name and writes this rank's card. nullptr for host memory.
  static Result<std::unique_ptr<DeviceRank>> open(Communicator& communicator);
  /// When all cards are there. kInvalidUsage, on every rank: some ranks are on host memory and some are not, a device has several
  /// ranks and NCCL_MULTI_RANK_GPU_ENABLE is not 1. `meet`: waits until all ranks have come to the phase; called by all or by none.
  using Meet = std::function<Status(RankPhase)>;
  static Status connect(Communicator& communicator, const Meet& meet);

  /// When all ranks are ready: what its kernels do as lanes, by the communicator's rules. `trees`: of the machine
  /// (MachineView::trees), empty: none. Fails only with what lanes need.
  static Status plan(Communicator& communicator, const std::string& trees);

  ~DeviceRank();
  DeviceRank(const DeviceRank&) = delete;
  DeviceRank& operator=(const DeviceRank&) = delete;

  /// Waits for what this rank has on its streams, where others can end it only while this rank is in the communicator.
  void finish();
  /// Whether any of it is not done.
  bool has_work(const Communicator& communicator) const;
  /// Waits for all of it, soon if the communicator fails.
  void drain(const Communicator& communicator);
  /// Lets go of all that is the device's. The communicator has ended; a thread that has found it may still come.
  void close();
  /// Where the ranks meet if they share a process and reach each other's memory. nullptr: closed, or they do not.
  std::shared_ptr<DeviceMeeting> meeting() const;
  /// meeting() and ipc() at one time.
  struct KernelWays {
    std::shared_ptr<DeviceMeeting> meeting;
    std::shared_ptr<DeviceIpc> ipc;
  };
  KernelWays kernel_ways() const;
  /// Of ranks in several processes that map each other's memory: the way of their collectives. nullptr: closed, or they do not.
  std::shared_ptr<DeviceIpc> ipc() const;
  /// The way through host memory, for all other calls. nullptr: closed, or not of this communicator.
  std::shared_ptr<StagedRank> staged() const;
  /// Whether these are there: for what each call asks before it needs them.
  bool has_ipc() const { return has_ipc_.load(std::memory_order_relaxed); }
  bool has_staged() const { return has_staged_.load(std::memory_order_relaxed); }
  /// Over hosts, where sums go within hosts by kernels (device_teams.h); nullptr: they do not.
  DeviceTeams* teams() const { return teams_.get(); }
  /// When the communicator's calls work: makes them, where they are to be. By all ranks.
  static Status make_teams(Communicator& communicator, const Communicator* parent);
  /// Whether kernels do all collectives.
  bool reaches_all_by_kernels() const { return !stages_collectives() && ways_.pairs != DevicePairs::kSomeBlind; }
  /// What the choice among kernels depends on, where they do the collectives.
  const DeviceWays& ways() const { return ways_; }
  /// Lanes that trees are planned for; 0: none.
  std::uint32_t lanes_most(const Membership& members) const;
  /// Whether all collectives go through host memory.
  bool stages_collectives() const { return has_staged() && !has_ipc() && !meeting(); }
  /// Whether kernels do the call. False: it goes through host memory.
  Result<bool> takes(Communicator& communicator, const CallArgs& args, LaneUse use = LaneUse::kCall) const;
  /// Before an eager call that may go by kernels or through the host: DeviceWatch::note(), which compares the ranks' ways.
  Status note(const CallArgs& args, DeviceWatch::Way way) const;
  /// Where others count this rank's calls: it captures some that go through host memory.
  void note_capture() const;
  /// What it does as lanes; nullptr: nothing.
  std::shared_ptr<DeviceLanes> lanes() const;

  /// The caller's until it gives it back: what follows on it waits for what `stream`, this thread's own, was given.
  Result<std::unique_ptr<Detour>> enter_detour(cuda::StreamHandle stream);
  /// What follows on `stream` waits for what the detour was given.
  Status leave_detour(const Detour& detour, cuda::StreamHandle stream);
  /// When nobody launches on it any more.
  void give_back(std::unique_ptr<Detour> detour);

 private:
  explicit DeviceRank(std::shared_ptr<cuda::Device> device);

  std::shared_ptr<DeviceLines> lines() const;
  Status reach_others(Communicator& communicator, const Meet& meet);
  Status connect_here(Communicator& communicator, const Meet& meet);
  Status open_lines(Communicator& communicator, const Meet& meet);
  /// False: some rank cannot share its memory, or map another's.
  static Result<bool> connect_processes(Communicator& communicator, const Meet& meet);
  void drop_kernels();
  /// What close() drops, but for the teams. Once; afterwards nothing.
  void close_own();
  void set_ipc(std::shared_ptr<DeviceIpc> ipc);
  void set_staged(std::shared_ptr<StagedRank> staged);

  mutable std::mutex mutex_;  ///< of what close() drops
  std::atomic<bool> has_ipc_{false};
  std::atomic<bool> has_staged_{false};
  std::vector<std::unique_ptr<Detour>> idle_detours_;
  std::shared_ptr<cuda::Device> device_;
  std::unique_ptr<DeviceTenant> tenant_;  ///< until close()
  std::shared_ptr<DeviceMeeting> meeting_;
  std::shared_ptr<DeviceIpc> ipc_;
  std::shared_ptr<StagedRank> staged_;
  std::shared_ptr<DeviceLines> lines_;  ///< beside the meeting, where kernels may wait for each other
  std::shared_ptr<DeviceLanes> lanes_;
  DeviceWays ways_;
  DeviceLinks links_;
  std::unique_ptr<DeviceTeams> teams_;  ///< goes first
};

/// How kernels do the call; of a communicator on a device whose collectives do not go through host memory.
DeviceChoice path_for(Communicator& communicator, const CallArgs& args, LaneUse use = LaneUse::kCall);

/// The calls of one communicator in a group, or a lone one.
struct DeviceCalls {
  Communicator* communicator = nullptr;
  std::span<CallArgs> calls;  ///< whoever makes them may put them into another order, and name other streams
};
/// Puts them on their streams, when the ranks that they need have made them too. Some may be on their streams although an error comes
/// back: only those that failed are not.
Status enqueue_on_devices(std::span<const DeviceCalls> works);

}  // namespace tutti::comm
