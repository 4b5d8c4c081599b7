// Complete calls, all ranks' parts, become fused launches of the fold kernels, ordered with the ranks' streams.
#pragma once

#include "comm/comm.h"
#include "comm/control.h"
#include "comm/device_path.h"
#include "comm/device_work.h"
#include "cuda/device.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tutti::comm {

/// What one rank gives in one go. Its thread waits until nothing is open.
struct DeviceSubmission {
  std::atomic<std::size_t> open{0};  ///< calls neither launched nor failed
  std::optional<Error> failure;      ///< the first; written before the call is counted off
  bool broken = false;               ///< the failure came after something was on the streams
};

struct PostedCall {
  CallArgs args;
  int rank = 0;
  DevicePath path = DevicePath::kDirect;  ///< rank 0's counts
  DeviceSubmission* submission = nullptr;
  bool is_open = true;  ///< not counted off: the submission is there
};

/// By rank; of a send and its receive: the sender, the receiver.
struct MatchedCall {
  std::vector<PostedCall> parts;
};

void count_off(PostedCall& call, const Error* failure, bool broken = false);

class DeviceLanes;
class DeviceLines;

/// A rank's device, an event there, its line memory and its lanes; nullptr: it has none.
struct LaunchPlace {
  std::shared_ptr<cuda::Device> device;
  cuda::Event event;
  std::shared_ptr<DeviceLines> lines;
  std::shared_ptr<DeviceLanes> lanes = nullptr;
};

/// The kernel's data type for such a call: data that is only moved goes by bytes.
DataType kernel_of(const CallArgs& args);
/// kInvalidUsage: the ranks' streams are not all captured into one graph, or all into none.
Error captures_differ();
/// What must be equal on all ranks.
Signature signature_of(const CallArgs& args);
/// What a call of so many ranks is to the kernel, but for its buffers.
void describe(cuda::FoldCall& to, const CallArgs& args, std::uint32_t ranks);
/// The whole call for one launch.
void fill(cuda::FoldCall& to, const MatchedCall& from);
/// The part of it that rank `e` of `fold.ranks` does where each rank's device launches for itself: the parts of all ranks together
/// are the call, write disjoint places, and none reads what another writes, but in place of all_to_all. `from`: what fill() has made.
cuda::FoldCall part_of(const cuda::FoldCall& from, std::uint32_t e, DataType type);

class DeviceLauncher {
 public:
  explicit DeviceLauncher(int ranks)
      : places_(static_cast<std::size_t>(ranks)), trail_(std::make_shared<DeviceTrail>()) {}
  /// What is on streams keeps the kernels. A rank's memory goes with a thread that may free on its device, which the last rank's may not.
  ~DeviceLauncher();
  DeviceLauncher(const DeviceLauncher&) = delete;
  DeviceLauncher& operator=(const DeviceLauncher&) = delete;
  void place(int rank, LaunchPlace where) { places_[static_cast<std::size_t>(rank)] = std::move(where); }
  /// The last one of all ranks' connects them.
  Status give_lanes(int rank, std::shared_ptr<DeviceLanes> lanes);

  /// Launches all calls and counts them off; in order where one uses memory that another writes.
  void launch(std::span<MatchedCall> calls);
  /// After launch() has run out of memory: of what is not counted off some may be on the streams. Forgets it.
  bool broke_off() { return std::exchange(has_begun_, false); }
  /// Whether what was launched of this rank's calls is done, but for those that go by crews: of these DeviceLines knows.
  bool is_through(int rank) const { return trail_->is_through(bit_of(rank)); }

 private:
  /// Whether one launch may do the call with the pending ones.
  bool takes(const MatchedCall& call) const;
  bool shares_streams(const MatchedCall& call) const;
  void count_off(MatchedCall& call, const Status& status) const;
  /// One more that is pending, if its streams are all captured into one graph, or none is.
  Status admit(MatchedCall& call);
  void forget_pending();
  /// Launches what is pending; nothing is afterwards.
  void finish();
  Result<cuda::Capture> capture_of(const MatchedCall& call) const;
  Status keep_for(const cuda::Capture& capture);
  static DeviceTrail::Ranks ranks_of(std::span<const MatchedCall* const> calls);
  static Status record_behind(const cuda::Event& event, cuda::StreamHandle stream);
  Status put();
  Status put_kernel(cuda::StreamHandle stream);

  /// Held while a call of several devices is put on their streams. All streams have any two of those in the same order then, whichever
  /// communicators' they are: on streams that had them in different orders, launches that wait for each other would wait for ever.
  static std::mutex& across_devices();
  /// One of several devices: a launch on each, which events order with all the ranks' streams.
  bool is_spread(const MatchedCall& call) const;
  void finish_spread(MatchedCall& call);
  /// Every device's kernels use every rank's memory.
  Status allow_access(const MatchedCall& call) const;
  Status put_spread(const MatchedCall& call);
  using Events = std::vector<const cuda::Event*>;  ///< of the call's ranks
  Status put_parts(const MatchedCall& call, const cuda::FoldCall& whole, const cuda::Capture& capture);
  Status join_streams(const MatchedCall& call, const Events& events);

  /// Calls that go as lines or lanes (device_crews.cpp): a launch on each device, which wait for each other.
  Result<bool> goes_by_crews(const MatchedCall& call) const;
  void finish_crews(MatchedCall& call);
  Status put_crews(const MatchedCall& call);
  Status put_crew(const MatchedCall& call, std::span<const PostedCall* const> crew);
  Status launch_crew(const MatchedCall& call, std::span<const PostedCall* const> crew, cuda::StreamHandle stream);
  const LaunchPlace& place_of(const PostedCall& part) const { return places_[static_cast<std::size_t>(part.rank)]; }
  static DeviceTrail::Ranks bit_of(int rank) { return DeviceTrail::Ranks{1} << rank; }
  bool shares_stream(const PostedCall& a, const PostedCall& b) const {
    return a.args.stream == b.args.stream && place_of(a).device == place_of(b).device;
  }

  std::vector<LaunchPlace> places_;  ///< by rank
  std::shared_ptr<DeviceTrail> trail_;
  bool has_begun_ = false;      ///< of a call that is not counted off something is on the streams
  std::uint64_t kept_for_ = 0;  ///< the capture that has the kernels already
  // launch()'s, here for their memory: the calls of the next launch, as far as it is known.
  std::vector<MatchedCall*> pending_;  ///< with something to do
  std::vector<MatchedCall*> all_pending_;
  std::vector<cuda::StreamHandle> streams_;  ///< of the pending: each once, in order of calls and ranks
  cuda::Capture capture_;                    ///< that these are in
};

}  // namespace tutti::comm
