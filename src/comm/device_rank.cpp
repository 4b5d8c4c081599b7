#include "comm/device_rank.h"

#include "base/config.h"
#include "base/log.h"
#include "comm/call.h"
#include "comm/device_staged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

bool same_device(const DeviceCard& a, const DeviceCard& b) { return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) == 0; }

/// How the ranks' data gets from one to another.
enum class Route : std::uint8_t {
  kMeeting,  ///< kernels load from and store to all ranks' memory; one process
  kIpc,      ///< the same in several processes, if they can map each other's
  kStaged,   ///< through host memory
};

/// From what all ranks know alike.
Result<Route> choose_route(const Membership& members) {
  const Control& control = members.control;
  if (members.bridge || control.ranks() > static_cast<int>(cuda::kRanksMax)) return Route::kStaged;
  if (!members.reach.one_process()) return control.settings().p2p_disable != 0 ? Route::kStaged : Route::kIpc;
  for (int r = 0; r < control.ranks(); ++r) {
    TUTTI_TRY_ASSIGN(const auto from, cuda::Device::open(control.device_card(r).device));
    for (int other = 0; other < control.ranks(); ++other) {
      if (same_device(control.device_card(r), control.device_card(other))) continue;
      if (control.settings().p2p_disable != 0) return Route::kStaged;
      TUTTI_TRY_ASSIGN(const auto to, cuda::Device::open(control.device_card(other).device));
      TUTTI_TRY_ASSIGN(const bool reached, from->can_reach(*to));
      if (!reached) return Route::kStaged;
    }
  }
  return Route::kMeeting;
}

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

DeviceRank::~DeviceRank() {
  if (lines_) lines_->close();
}

void DeviceRank::close() {
  std::shared_ptr<DeviceMeeting> meeting;
  std::shared_ptr<DeviceIpc> ipc;
  std::shared_ptr<cuda::Device> device;
  std::unique_ptr<Detour> detour;
  std::shared_ptr<StagedRank> staged;
  std::shared_ptr<DeviceLines> lines;
  {
    const std::lock_guard lock(mutex_);
    ipc.swap(ipc_);
    detour.swap(detour_);
    meeting.swap(meeting_);
    staged.swap(staged_);
    lines.swap(lines_);
    device.swap(device_);
  }
  if (lines) lines->close();
}

std::shared_ptr<DeviceMeeting> DeviceRank::meeting() const {
  const std::lock_guard lock(mutex_);
  return meeting_;
}

std::shared_ptr<DeviceIpc> DeviceRank::ipc() const {
  const std::lock_guard lock(mutex_);
  return ipc_;
}

std::shared_ptr<StagedRank> DeviceRank::staged() const {
  const std::lock_guard lock(mutex_);
  return staged_;
}

std::shared_ptr<DeviceLines> DeviceRank::lines() const {
  const std::lock_guard lock(mutex_);
  return lines_;
}

void DeviceRank::finish() {
  if (const auto ipc = this->ipc()) ipc->finish();
  if (const auto lines = this->lines()) lines->finish();
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
  TUTTI_TRY_ASSIGN(Route route, choose_route(members));
  if (route == Route::kIpc) {
    TUTTI_TRY_ASSIGN(const bool mapped, connect_processes(communicator, meet));
    if (!mapped) route = Route::kStaged;
  }
  DeviceRank* const self = communicator.device();
  if (route != Route::kIpc) self->drop_ipc();
  if (route == Route::kMeeting) return connect_here(communicator, meet);
  // Also where memory is mapped: sends and receives go that way.
  TUTTI_TRY_ASSIGN(self->staged_, StagedRank::create(communicator, self->device_));
  return {};
}

void DeviceRank::drop_ipc() {
  std::shared_ptr<DeviceIpc> ipc;
  const std::lock_guard lock(mutex_);
  ipc.swap(ipc_);
}

/// Every rank maps all that it needs, or says on its card why it cannot; all read all cards, and come to the same end.
Result<bool> DeviceRank::connect_processes(Communicator& communicator, const std::function<Status()>& meet) {
  Membership& members = communicator.members();
  const std::shared_ptr<DeviceIpc> ipc = communicator.device()->ipc();
  DeviceCard& card = members.control.device_card(communicator.rank());
  const Status linked = ipc ? ipc->link(members, communicator.rank()) : error(Code::kUnhandledCuda, card.why);
  card.link = linked.ok() ? DeviceLink::kMapped : DeviceLink::kFailed;
  if (!linked.ok()) put_why(card, linked.error().message);
  TUTTI_TRY(meet());
  for (int r = 0; r < communicator.ranks(); ++r) {
    const DeviceCard& other = members.control.device_card(r);
    if (other.link == DeviceLink::kMapped) continue;
    log_info("GPU data goes through host memory: rank {} on GPU {} cannot share memory with all others by CUDA IPC: {}",
             r, other.bus_id, other.why[0] != 0 ? other.why : "NCCL_P2P_DISABLE is set there");
    return false;
  }
  TUTTI_TRY(ipc->start(communicator));
  communicator.device()->ways_ = {ipc->crew(), members.control.settings().protocols, true};
  return true;
}

namespace {

/// Line memory is 1 MiB: only where kernels wait for each other anyhow, or somebody may want it. The same on all ranks.
bool wants_lines(const Control& control, DeviceCrew crew) {
  const Settings& settings = control.settings();
  if (control.ranks() == 1 || settings.protocols == Protocols::kNoLines) return false;
  return crew == DeviceCrew::kTogether || settings.protocols == Protocols::kLines || settings.algorithm[0] != 0 ||
         settings.tuning_bytes != 0;
}

DeviceCrew crew_here(const Control& control) {
  for (int r = 1; r < control.ranks(); ++r) {
    if (!same_device(control.device_card(0), control.device_card(r))) return DeviceCrew::kTogether;
  }
  return DeviceCrew::kOneLaunch;
}

}  // namespace

DeviceChoice path_for(Communicator& communicator, const CallArgs& args) {
  if (is_point_to_point(args) || communicator.ranks() == 1) return {};
  planner::Question question;
  question.request = shape_of(args, communicator.ranks(), communicator.rank()).request;
  question.count = args.count;
  question.element_bytes = static_cast<std::uint32_t>(size_of(args.type));
  // Kernels reach all memory that they need; whether the others are in place a rank does not know.
  question.access = planner::Access::kMapped;
  return choose_path(question, communicator.device()->ways(), communicator.members().plans.rules());
}

/// A failure is the communicator's.
Status DeviceRank::open_lines(Communicator& communicator, const std::function<Status()>& meet) {
  const Control& control = communicator.members().control;
  TUTTI_TRY_ASSIGN(lines_, DeviceLines::open(device_, control, communicator.rank()));
  TUTTI_TRY(meet());
  TUTTI_TRY(lines_->link(communicator.members()));
  return lines_->start(communicator);
}

Status DeviceRank::connect_here(Communicator& communicator, const std::function<Status()>& meet) {
  const Membership& members = communicator.members();
  DeviceRank* const self = communicator.device();
  for (int r = 0; r < communicator.ranks(); ++r) {
    TUTTI_TRY_ASSIGN(const auto other, cuda::Device::open(members.control.device_card(r).device));
    TUTTI_TRY(self->device_->reach(*other));
  }
  LaunchPlace where{self->device_, {}, {}};
  TUTTI_TRY_ASSIGN(where.event, cuda::Event::create(self->device_));
  self->ways_ = {crew_here(members.control), members.control.settings().protocols, false};
  if (wants_lines(members.control, self->ways_.crew)) {
    TUTTI_TRY(self->open_lines(communicator, meet));
    where.lines = self->lines_;
    self->ways_.has_lines = true;
  }
  self->meeting_ = DeviceMeeting::of(members.control);
  self->meeting_->join(communicator.rank(), std::move(where));
  return {};
}

}  // namespace tutti::comm
