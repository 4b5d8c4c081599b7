// What each call asks of its rank's side of a communicator on device memory: which ways there are, and which one is the call's.
#include "comm/call.h"
#include "comm/device_rank.h"

#include <mutex>

namespace tutti::comm {

std::shared_ptr<DeviceLanes> DeviceRank::lanes() const {
  const std::lock_guard lock(mutex_);
  return lanes_;
}

std::shared_ptr<DeviceMeeting> DeviceRank::meeting() const {
  const std::lock_guard lock(mutex_);
  return meeting_;
}

std::shared_ptr<DeviceIpc> DeviceRank::ipc() const {
  const std::lock_guard lock(mutex_);
  return ipc_;
}

DeviceRank::KernelWays DeviceRank::kernel_ways() const {
  const std::lock_guard lock(mutex_);
  return {meeting_, ipc_};
}

std::shared_ptr<StagedRank> DeviceRank::staged() const {
  const std::lock_guard lock(mutex_);
  return staged_;
}

std::shared_ptr<DeviceLines> DeviceRank::lines() const {
  const std::lock_guard lock(mutex_);
  return lines_;
}

DeviceChoice path_for(Communicator& communicator, const CallArgs& args, LaneUse use) {
  if (is_point_to_point(args) || communicator.ranks() == 1) return {};
  planner::Question question;
  question.request = shape_of(args, communicator.ranks(), communicator.rank()).request;
  question.count = args.count;
  question.element_bytes = static_cast<std::uint32_t>(size_of(args.type));
  // Kernels reach all memory that they need; whether the others are in place a rank does not know.
  question.access = planner::Access::kMapped;
  const DeviceRank& device = *communicator.device();
  const auto lanes = device.lanes();
  const LaneOffer offer = lanes ? lanes->offer(args, use) : LaneOffer::kNone;
  return choose_path(question, device.ways(), communicator.members().plans.rules(), offer);
}

Result<bool> DeviceRank::takes(Communicator& communicator, const CallArgs& args, LaneUse use) const {
  if (!has_staged()) return true;
  if (is_point_to_point(args)) return false;
  if (ways_.pairs != DevicePairs::kSomeBlind) {
    const auto ipc = this->ipc();
    return ipc ? ipc->takes(communicator, args) : Result<bool>(false);
  }
  if (path_for(communicator, args, use).path != DevicePath::kLanes) return false;
  if (ipc()) return true;
  // As in the launcher: in one process what is captured keeps nothing between calls.
  std::shared_ptr<cuda::Device> device;
  {
    const std::lock_guard lock(mutex_);
    device = device_;
  }
  if (!device) return false;
  const Result<cuda::Capture> capture = cuda::capture_of(*device, args.stream);
  // The program's mistake, which the way through host memory finds before it does anything, and fails nobody for.
  if (!capture.ok() && capture.error().code == Code::kInvalidUsage) return false;
  if (!capture.ok()) return capture.error();
  return capture.value().id == 0;
}

/// Sends and receives go one way on all ranks. Calls by kernels in several processes note themselves.
Status DeviceRank::note(const CallArgs& args, DeviceWatch::Way way) const {
  if (!ways_.are_mixed() || is_point_to_point(args)) return {};
  if (const auto ipc = this->ipc()) return ipc->watch().note(signature_of(args), way, true);
  if (const auto lines = this->lines()) return lines->note(signature_of(args), way);
  return {};
}

void DeviceRank::note_capture() const {
  if (const auto ipc = this->ipc()) ipc->watch().note_capture();
}

}  // namespace tutti::comm
