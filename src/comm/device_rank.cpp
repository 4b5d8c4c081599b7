#include "comm/device_rank.h"

#include "base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

bool same_device(const DeviceCard& a, const DeviceCard& b) { return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) == 0; }

/// What every rank finds alike.
Status check_cards(const Control& control) {
  const DeviceCard& first = control.device_card(0);
  for (int r = 1; r < control.ranks(); ++r) {
    if ((control.device_card(r).device >= 0) == (first.device >= 0)) continue;
    const bool on_gpu = first.device >= 0;
    return error(Code::kInvalidUsage,
                 fmt::format("rank 0 works on {} memory and rank {} on {} memory; give all ranks the same "
                             "(TUTTI_DEVICE=host or cuda, or tuttiSetDevice)",
                             on_gpu ? "GPU" : "host", r, on_gpu ? "host" : "GPU"));
  }
  if (first.device < 0) return {};
  if (control.ranks() > static_cast<int>(cuda::kRanksMax)) {
    return error(Code::kInvalidUsage, fmt::format("{} ranks work on GPU memory; at most {} are supported today",
                                                  control.ranks(), cuda::kRanksMax));
  }
  return {};
}

/// Kept on the rank's card, for all.
void put_why(DeviceCard& card, const std::string& why) {
  const std::size_t length = std::min(why.size(), sizeof(card.why) - 1);
  std::memcpy(card.why, why.data(), length);
  card.why[length] = 0;
}

Status check_sharing(const Control& control) {
  if (config().multi_rank_gpu) return {};
  for (int r = 0; r < control.ranks(); ++r) {
    for (int other = r + 1; other < control.ranks(); ++other) {
      if (!same_device(control.device_card(r), control.device_card(other))) continue;
      return error(Code::kInvalidUsage,
                   fmt::format("ranks {} and {} are both on the GPU {}. Give each rank a GPU of its own "
                               "(cudaSetDevice), or set NCCL_MULTI_RANK_GPU_ENABLE=1 to let ranks share one",
                               r, other, control.device_card(r).bus_id));
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceRank>> DeviceRank::open(Communicator& communicator) {
  DeviceCard& card = communicator.members().control.device_card(communicator.rank());
  card.device = communicator.options().device;
  if (card.device == kHostMemory) return std::unique_ptr<DeviceRank>();
  DeviceSegment::sweep();
  TUTTI_TRY_ASSIGN(auto device, cuda::Device::open(card.device));
  const cuda::DeviceFacts& facts = device->facts();
  card.multiprocessors = facts.multiprocessors;
  std::ranges::copy(facts.uuid, card.uuid);
  std::ranges::copy(facts.bus_id, card.bus_id);
  std::unique_ptr<DeviceRank> made(new DeviceRank(device));
  const Membership& members = communicator.members();
  const bool apart = !members.bridge && !members.reach.one_process();
  if (!apart || config().p2p_disable || members.control.ranks() > static_cast<int>(cuda::kRanksMax)) return made;
  Result<std::unique_ptr<DeviceIpc>> shared = DeviceIpc::open(std::move(device), members.control, communicator.rank());
  if (shared.ok()) {
    made->ipc_ = std::move(shared).value();
  } else {
    put_why(card, shared.error().message);
  }
  return made;
}

void DeviceRank::close() {
  std::shared_ptr<DeviceMeeting> meeting;
  std::shared_ptr<DeviceIpc> ipc;
  std::shared_ptr<cuda::Device> device;
  std::unique_ptr<Detour> detour;
  const std::lock_guard lock(mutex_);
  ipc.swap(ipc_);
  detour.swap(detour_);
  meeting.swap(meeting_);
  device.swap(device_);
}

std::shared_ptr<DeviceMeeting> DeviceRank::meeting() const {
  const std::lock_guard lock(mutex_);
  return meeting_;
}

std::shared_ptr<DeviceIpc> DeviceRank::ipc() const {
  const std::lock_guard lock(mutex_);
  return ipc_;
}

void DeviceRank::finish() {
  if (const auto ipc = this->ipc()) ipc->finish();
}

Result<cuda::StreamHandle> DeviceRank::enter_detour(cuda::StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (!device_) return error(Code::kInvalidArgument, "the communicator was aborted");
  if (!detour_) {
    auto made = std::make_unique<Detour>();
    TUTTI_TRY_ASSIGN(made->stream, cuda::OwnStream::create(device_));
    TUTTI_TRY_ASSIGN(made->event, cuda::Event::create(device_));
    detour_ = std::move(made);
  }
  TUTTI_TRY(detour_->event.record(stream));
  TUTTI_TRY(detour_->event.hold(*device_, detour_->stream.handle()));
  return detour_->stream.handle();
}

Status DeviceRank::leave_detour(cuda::StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (!detour_) return {};
  TUTTI_TRY(detour_->event.record(detour_->stream.handle()));
  return detour_->event.hold(*device_, stream);
}

Status DeviceRank::connect(Communicator& communicator, const std::function<Status()>& meet) {
  const Membership& members = communicator.members();
  TUTTI_TRY(check_cards(members.control));
  if (!communicator.device()) return {};
  TUTTI_TRY(check_sharing(members.control));
  return members.reach.one_process() ? connect_here(communicator) : connect_processes(communicator, meet);
}

/// Every rank maps all that it needs, or says on its card why it cannot; all read all cards, and come to the same end.
Status DeviceRank::connect_processes(Communicator& communicator, const std::function<Status()>& meet) {
  Membership& members = communicator.members();
  const std::shared_ptr<DeviceIpc> ipc = communicator.device()->ipc();
  if (members.control.settings().p2p_disable != 0) {
    return error(Code::kInvalidUsage,
                 "NCCL_P2P_DISABLE=1, and the ranks are in several processes: on GPU memory they work through each "
                 "other's memory only; unset it, or give all ranks one process");
  }
  DeviceCard& card = members.control.device_card(communicator.rank());
  const Status linked = ipc ? ipc->link(members, communicator.rank()) : error(Code::kUnhandledCuda, card.why);
  card.link = linked.ok() ? DeviceLink::kMapped : DeviceLink::kFailed;
  if (!linked.ok()) put_why(card, linked.error().message);
  TUTTI_TRY(meet());
  for (int r = 0; r < communicator.ranks(); ++r) {
    const DeviceCard& other = members.control.device_card(r);
    if (other.link == DeviceLink::kMapped) continue;
    return error(Code::kUnhandledCuda,
                 fmt::format("the ranks are in several processes, and rank {} on GPU {} cannot share memory with all "
                             "others by CUDA IPC: {}",
                             r, other.bus_id, other.why[0] != 0 ? other.why : "NCCL_P2P_DISABLE is set there only"));
  }
  return ipc->start(communicator);
}

Status DeviceRank::connect_here(Communicator& communicator) {
  const Membership& members = communicator.members();
  DeviceRank* const self = communicator.device();
  for (int r = 0; r < communicator.ranks(); ++r) {
    TUTTI_TRY_ASSIGN(const auto other, cuda::Device::open(members.control.device_card(r).device));
    TUTTI_TRY_ASSIGN(const bool reached, self->device_->reach(*other));
    if (reached) continue;
    return error(
        Code::kInvalidUsage,
        fmt::format("GPU {} (rank {}) cannot reach the memory of GPU {} (rank {}), and data is not staged through "
                    "the host yet",
                    self->device_->facts().bus_id.data(), communicator.rank(), other->facts().bus_id.data(), r));
  }
  LaunchPlace where{self->device_, {}};
  TUTTI_TRY_ASSIGN(where.event, cuda::Event::create(self->device_));
  self->meeting_ = DeviceMeeting::of(members.control);
  self->meeting_->join(communicator.rank(), std::move(where));
  return {};
}

}  // namespace tutti::comm
