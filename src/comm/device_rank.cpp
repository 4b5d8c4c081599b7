#include "comm/device_rank.h"

#include "base/config.h"
#include "base/log.h"
#include "comm/device_messages.h"
#include "comm/device_staged.h"
#include "comm/device_teams.h"
#include "planner/planned_schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>

namespace tutti::comm {
namespace {

/// How the ranks' data gets from one to another.
enum class Route : std::uint8_t {
  kMeeting,  ///< kernels load from and store to others' memory; one process
  kIpc,      ///< the same in several processes, if they can map each other's
  kStaged,   ///< through host memory
};

/// When all have tried.
DeviceLinks links_of(const Control& control) {
  DeviceLinks links(control.ranks());
  const auto maps = [&](int a, int b) { return (control.device_card(a).mapped >> b & 1) != 0; };
  for (int r = 0; r < control.ranks(); ++r) {
    for (int other = 0; other < r; ++other) {
      if (maps(r, other) && maps(other, r)) links.join(r, other);
    }
  }
  return links;
}

/// Whether NCCL_P2P_LEVEL may keep some GPUs apart: that of rank 0.
bool limits_distance(const Membership& members) {
  const GpuDistance level = members.control.settings().p2p_level;
  return level != GpuDistance::kSystem && members.control.settings().p2p_disable == 0 && !members.bridge &&
         members.control.ranks() > 1 && members.control.ranks() <= static_cast<int>(cuda::kRanksMax);
}

/// Rank 0, for all. GPUs of which it is not known how far they are from each other are kept apart, as whoever sets the variable may
/// have a reason that no error tells of.
Status keep_apart(Communicator& communicator) {
  const Control& control = communicator.members().control;
  const GpuDistance level = control.settings().p2p_level;
  TUTTI_TRY(communicator.machine().look());
  const auto distances = communicator.machine().gpu_distances();
  int far = 0;
  const int ranks = control.ranks();
  for (int a = 0; a < ranks; ++a) {
    DeviceCard& card = control.device_card(a);
    for (int b = 0; b < ranks; ++b) {
      const bool near = distances.ok() ? distances.value()[static_cast<std::size_t>(a) * ranks + b] <= level
                                       : same_gpu(control, a, b);
      card.far |= (near ? 0u : 1u) << b;
      far += !near && b < a;
    }
  }
  if (!distances.ok() && far > 0) {
    log_warn("NCCL_P2P_LEVEL={}: no GPU reaches another one's memory, as it is not known how far they are apart: {}",
             name_of(level), distances.error().message);
  }
  log_info(
      "NCCL_P2P_LEVEL={}: {} of {} pairs of ranks are on GPUs that are farther apart, and do not reach each other's "
      "memory",
      name_of(level), far, ranks * (ranks - 1) / 2);
  return {};
}

/// From what all ranks know alike.
Route choose_route(const Membership& members) {
  const Control& control = members.control;
  if (members.bridge || control.ranks() > static_cast<int>(cuda::kRanksMax)) return Route::kStaged;
  if (members.reach.one_process()) return Route::kMeeting;
  return control.settings().p2p_disable != 0 ? Route::kStaged : Route::kIpc;
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
      if (!same_gpu(control, r, other)) continue;
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
  release_graph_memory(card.device);
  DeviceWork::sweep(card.device);
  DeviceSegment::sweep(card.device);
  TUTTI_TRY_ASSIGN(auto device, cuda::Device::open(card.device));
  const cuda::DeviceFacts& facts = device->facts();
  card.multiprocessors = facts.multiprocessors;
  std::ranges::copy(facts.uuid, card.uuid);
  std::ranges::copy(facts.bus_id, card.bus_id);
  std::unique_ptr<DeviceRank> made(new DeviceRank(device));
  const Membership& members = communicator.members();
  const bool apart = !members.bridge && !members.reach.one_process();
  if (!apart || config().p2p_disable || members.control.ranks() > static_cast<int>(cuda::kRanksMax)) return made;
  Result<std::shared_ptr<DeviceIpc>> shared = DeviceIpc::open(std::move(device), members.control, communicator.rank());
  if (shared.ok()) {
    made->set_ipc(std::move(shared).value());
  } else {
    put_why(card, shared.error().message);
  }
  return made;
}

namespace {

void end(const cuda::Device& device, std::shared_ptr<DeviceIpc> ipc, std::shared_ptr<DeviceLines> lines,
         std::shared_ptr<DeviceMeeting> meeting) {
  const int ordinal = device.facts().ordinal;
  release_graph_memory(ordinal);
  if (ipc) {
    ipc->close();
    DeviceWork::keep({ipc, &ipc->order()}, ordinal);
  }
  if (lines) {
    lines->close();
    const DeviceOrder* const order = &lines->order();
    // What is on streams keeps its memory: that of other ranks too, which the meeting has beside this one's.
    const std::shared_ptr<void> all = meeting ? std::shared_ptr<void>(meeting) : lines;
    DeviceWork::keep({all, order}, ordinal);
  }
}

/// By the thread that has ended this rank and its tenant: whoever leaves something there later sees that no rank is, and frees it.
void sweep(int device) {
  DeviceWork::sweep(device);
  DeviceSegment::sweep(device);
  let_go_of_remains(device);
  release_graph_memory(device);
}

}  // namespace

DeviceRank::DeviceRank(std::shared_ptr<cuda::Device> device)
    : device_(std::move(device)), tenant_(std::make_unique<DeviceTenant>(device_->facts().ordinal)) {}

void DeviceRank::set_ipc(std::shared_ptr<DeviceIpc> ipc) {
  ipc_ = std::move(ipc);
  has_ipc_ = true;
}

void DeviceRank::set_staged(std::shared_ptr<StagedRank> staged) {
  staged_ = std::move(staged);
  has_staged_ = true;
}

DeviceRank::~DeviceRank() { close_own(); }

Status DeviceRank::make_teams(Communicator& communicator, const Communicator* parent) {
  if (!communicator.device()) return {};
  TUTTI_TRY_ASSIGN(communicator.device()->teams_, DeviceTeams::make(communicator, parent));
  return {};
}

void DeviceRank::close() {
  if (teams_) teams_->close();
  close_own();
}

void DeviceRank::close_own() {
  std::unique_ptr<DeviceTenant> tenant;
  std::shared_ptr<DeviceMeeting> meeting;
  std::shared_ptr<DeviceIpc> ipc;
  std::shared_ptr<cuda::Device> device;
  std::vector<std::unique_ptr<Detour>> detours;
  std::shared_ptr<StagedRank> staged;
  std::shared_ptr<DeviceLines> lines;
  std::shared_ptr<DeviceLanes> lanes;
  {
    const std::lock_guard lock(mutex_);
    has_ipc_ = has_staged_ = false;
    lanes.swap(lanes_);
    ipc.swap(ipc_);
    detours.swap(idle_detours_);
    meeting.swap(meeting_);
    staged.swap(staged_);
    lines.swap(lines_);
    device.swap(device_);
    tenant.swap(tenant_);
  }
  if (!device) return;  // closed before
  end(*device, std::move(ipc), std::move(lines), std::move(meeting));
  staged.reset();
  lanes.reset();
  detours.clear();
  tenant.reset();
  sweep(device->facts().ordinal);
}

void DeviceRank::finish() {
  if (const auto ipc = this->ipc()) ipc->finish();
  if (const auto lines = this->lines()) lines->finish();
}

bool DeviceRank::has_work(const Communicator& communicator) const {
  if (const auto ipc = this->ipc(); ipc && !ipc->order().is_through()) return true;
  if (const auto lines = this->lines(); lines && !lines->order().is_through()) return true;
  const auto meeting = this->meeting();
  return meeting && !meeting->is_through(communicator);
}

void DeviceRank::drain(const Communicator& communicator) {
  finish();
  if (const auto meeting = this->meeting()) meeting->finish(communicator);
  if (teams_) teams_->inside().device()->drain(teams_->inside());
}

Result<std::unique_ptr<Detour>> DeviceRank::enter_detour(cuda::StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (!device_) return error(Code::kInvalidArgument, "the communicator was aborted");
  std::unique_ptr<Detour> detour;
  // One that took part in a capture does so until that ends.
  TUTTI_TRY_ASSIGN(const cuda::Capture capture, cuda::capture_of(*device_, stream));
  for (auto idle = idle_detours_.begin(); idle != idle_detours_.end() && !detour; ++idle) {
    const auto part_of = cuda::capture_of(*device_, (*idle)->stream.handle());
    if (!part_of.ok() || (part_of.value().id != 0 && part_of.value().id != capture.id)) continue;
    detour = std::move(*idle);
    idle_detours_.erase(idle);
    break;
  }
  if (!detour) {
    detour = std::make_unique<Detour>();
    TUTTI_TRY_ASSIGN(detour->stream, cuda::OwnStream::create(device_));
    TUTTI_TRY_ASSIGN(detour->event, cuda::Event::create(device_));
  }
  TUTTI_TRY(detour->event.record(stream));
  TUTTI_TRY(detour->event.hold(*device_, detour->stream.handle()));
  return detour;
}

Status DeviceRank::leave_detour(const Detour& detour, cuda::StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (!device_) return {};
  TUTTI_TRY(detour.event.record(detour.stream.handle()));
  return detour.event.hold(*device_, stream);
}

void DeviceRank::give_back(std::unique_ptr<Detour> detour) try {
  const std::lock_guard lock(mutex_);
  if (device_) idle_detours_.push_back(std::move(detour));
} catch (const std::bad_alloc&) {
  // Another one is made.
}

Status DeviceRank::connect(Communicator& communicator, const Meet& meet) {
  const Membership& members = communicator.members();
  TUTTI_TRY(check_cards(members.control));
  if (!communicator.device()) return {};
  TUTTI_TRY(check_sharing(members.control));
  DeviceRank* const self = communicator.device();
  if (limits_distance(members)) {
    if (communicator.rank() == 0) TUTTI_TRY(keep_apart(communicator));
    TUTTI_TRY(meet(RankPhase::kPlaced));
  }
  Route route = choose_route(members);
  if (route == Route::kMeeting) {
    TUTTI_TRY(self->reach_others(communicator, meet));
    if (!self->links_.connects_all()) route = Route::kStaged;
  }
  if (route == Route::kIpc) {
    TUTTI_TRY_ASSIGN(const bool mapped, connect_processes(communicator, meet));
    if (!mapped) route = Route::kStaged;
  }
  if (route == Route::kMeeting) TUTTI_TRY(self->connect_here(communicator, meet));
  if (route == Route::kStaged) self->drop_kernels();
  if (route == Route::kMeeting && self->links_.joins_all()) return {};
  // Also where memory is mapped: sends and receives go that way.
  TUTTI_TRY_ASSIGN(auto staged, StagedRank::create(communicator, self->device_));
  self->set_staged(std::move(staged));
  return choose_messages(communicator.members(), self->device_);
}

/// What is left goes through host memory.
void DeviceRank::drop_kernels() {
  std::shared_ptr<DeviceMeeting> meeting;
  std::shared_ptr<DeviceIpc> ipc;
  std::shared_ptr<DeviceLines> lines;
  {
    const std::lock_guard lock(mutex_);
    has_ipc_ = false;
    meeting.swap(meeting_);
    ipc.swap(ipc_);
    lines.swap(lines_);
  }
  end(*device_, std::move(ipc), std::move(lines), std::move(meeting));
}

/// Every rank maps all that it needs, or says on its card why it cannot; all read all cards, and come to the same end.
Result<bool> DeviceRank::connect_processes(Communicator& communicator, const Meet& meet) {
  Membership& members = communicator.members();
  const std::shared_ptr<DeviceIpc> ipc = communicator.device()->ipc();
  DeviceCard& card = members.control.device_card(communicator.rank());
  const Status linked = ipc ? ipc->link(members, communicator.rank()) : error(Code::kUnhandledCuda, card.why);
  card.link = linked.ok() ? DeviceLink::kMapped : DeviceLink::kFailed;
  if (!linked.ok()) put_why(card, linked.error().message);
  if (linked.ok()) card.mapped = ipc->mapped();
  if (linked.ok() && !ipc->why_not().empty()) put_why(card, ipc->why_not());
  TUTTI_TRY(meet(RankPhase::kLinked));
  DeviceRank& self = *communicator.device();
  self.links_ = links_of(members.control);
  const bool all = self.links_.joins_all();
  bool fails = !all && !self.links_.connects_all();
  for (int r = 0; r < communicator.ranks(); ++r) fails |= members.control.device_card(r).link != DeviceLink::kMapped;
  fails = fails || (!all && ipc->crew() == DeviceCrew::kByTurns);
  for (int r = 0; r < communicator.ranks(); ++r) {
    const DeviceCard& other = members.control.device_card(r);
    if (other.link == DeviceLink::kMapped && other.why[0] == 0) continue;
    log_info("{}rank {} on GPU {} cannot share memory with all others by CUDA IPC: {}",
             fails ? "GPU data goes through host memory: " : "", r, other.bus_id,
             other.why[0] != 0 ? other.why : "NCCL_P2P_DISABLE is set there");
    if (fails) return false;
  }
  if (fails) return false;
  TUTTI_TRY(ipc->start(communicator, self.links_));
  self.ways_ = {ipc->crew(), members.control.settings().protocols, all,
                all ? DevicePairs::kAllLinked : DevicePairs::kSomeBlind};
  return true;
}

namespace {

/// What kernels need that wait for each other, 1 MiB with line memory: only where there are several GPUs, or somebody may want it. The same
/// on all ranks.
bool wants_lines(const Control& control, DeviceCrew crew) {
  const Settings& settings = control.settings();
  if (control.ranks() == 1) return false;
  return crew == DeviceCrew::kTogether || settings.protocols == Protocols::kLines || settings.algorithm[0] != 0 ||
         settings.tuning_bytes != 0;
}

DeviceCrew crew_here(const Control& control) {
  for (int r = 1; r < control.ranks(); ++r) {
    if (!same_gpu(control, 0, r)) return DeviceCrew::kTogether;
  }
  return DeviceCrew::kOneLaunch;
}

}  // namespace

std::uint32_t DeviceRank::lanes_most(const Membership& members) const {
  if (stages_collectives() || ways_.crew != DeviceCrew::kTogether) return 0;
  return DeviceFifos(links_, resident_share(members.control)).lanes();
}

/// A failure is the communicator's.
Status DeviceRank::open_lines(Communicator& communicator, const Meet& meet) {
  const Control& control = communicator.members().control;
  TUTTI_TRY_ASSIGN(lines_, DeviceLines::open(device_, control, communicator.rank()));
  TUTTI_TRY(meet(RankPhase::kLinked));
  TUTTI_TRY(lines_->link(communicator.members(), links_));
  return lines_->start(communicator);
}

/// Of ranks that share a process. Without NVSwitch a GPU may reach eight others only: neighbours first, so that what is left is a ring.
Status DeviceRank::reach_others(Communicator& communicator, const Meet& meet) {
  const Control& control = communicator.members().control;
  const int rank = communicator.rank(), ranks = communicator.ranks();
  DeviceCard& card = control.device_card(rank);
  const auto reaches = [&](int other) -> Result<bool> {
    if (same_gpu(control, rank, other)) return true;
    if ((card.far >> other & 1) != 0 || control.settings().p2p_disable != 0) return false;
    TUTTI_TRY_ASSIGN(const auto to, cuda::Device::open(control.device_card(other).device));
    TUTTI_TRY_ASSIGN(const bool can, device_->can_reach(*to));
    if (!can) return false;
    TUTTI_TRY_ASSIGN(const bool reached, device_->reach(*to));
    if (!reached)
      log_info("rank {}: GPU {} reaches as many others' memory as CUDA lets it, and does without that of GPU {}", rank,
               card.bus_id, control.device_card(other).bus_id);
    return reached;
  };
  for (int distance = 1; distance < ranks; ++distance) {
    const int step = (distance + 1) / 2;
    const int other = (rank + (distance % 2 != 0 ? step : ranks - step)) % ranks;
    TUTTI_TRY_ASSIGN(const bool reached, reaches(other));
    if (reached) card.mapped |= 1u << other;
  }
  TUTTI_TRY(meet(RankPhase::kReached));
  links_ = links_of(control);
  return {};
}

Status DeviceRank::connect_here(Communicator& communicator, const Meet& meet) {
  const Membership& members = communicator.members();
  LaunchPlace where{device_, {}, {}};
  TUTTI_TRY_ASSIGN(where.event, cuda::Event::create(device_));
  ways_ = {crew_here(members.control), members.control.settings().protocols, false};
  if (!links_.joins_all()) ways_.pairs = DevicePairs::kSomeBlind;
  if (wants_lines(members.control, ways_.crew)) {
    TUTTI_TRY(open_lines(communicator, meet));
    where.lines = lines_;
    ways_.has_lines = links_.joins_all();
  }
  meeting_ = DeviceMeeting::of(members.control);
  meeting_->join(communicator.rank(), std::move(where));
  return {};
}

namespace {

/// Of rank 0's machine; all zeros, which no ring is, if it has none to suggest.
std::vector<int> suggested_ring(const Control& control) {
  static_assert(kGpusInRing == cuda::kRanksMax);
  const auto& ring = control.settings().gpu_ring;
  return {ring, ring + control.ranks()};
}

}  // namespace

Status DeviceRank::plan(Communicator& communicator, const std::string& trees) {
  DeviceRank* const self = communicator.device();
  if (!self || self->stages_collectives() || communicator.ranks() == 1) return {};
  const Membership& members = communicator.members();
  DeviceWays& ways = self->ways_;
  if (ways.crew == DeviceCrew::kByTurns || !(self->lines_ || self->ipc_)) return {};
  const bool blind = ways.pairs == DevicePairs::kSomeBlind;
  const bool apart = members.control.settings().gpus_apart != 0;
  planner::Rules rules = members.plans.rules();
  if (!blind && !apart && rules.text.empty()) return {};
  const std::uint32_t blocks = resident_share(members.control);
  if (!trees.empty()) {
    TUTTI_TRY_ASSIGN(rules.planned, planner::PlannedSchedules::read(
                                        trees, communicator.ranks(), DeviceFifos::kLanesMost,
                                        static_cast<int>(DeviceFifos(self->links_, blocks).slots().slots)));
  }
  LaneRules lanes = lane_rules(rules, self->links_, suggested_ring(members.control));
  // Trees alone gain something by following links where all GPUs reach each other.
  if (!blind && apart && rules.planned) ways.pairs = DevicePairs::kSomeApart;
  if (blind && lanes.serves_nothing()) {
    log_info("GPU data goes through host memory: no schedule keeps to the GPUs that reach each other's memory");
    self->drop_kernels();
    return {};
  }
  const bool used =
      lanes.has(LaneOffer::kNamed) || (ways.pairs == DevicePairs::kSomeApart && lanes.has(LaneOffer::kThere));
  if (!blind && !used) return {};
  auto made = std::make_shared<DeviceLanes>(std::move(lanes), self->links_, communicator.rank(), blocks);
  if (self->ipc_) TUTTI_TRY(self->ipc_->give_lanes(made));
  if (self->meeting_) {
    TUTTI_TRY(made->allocate(self->device_));
    TUTTI_TRY(self->meeting_->give_lanes(communicator.rank(), made));
  }
  const std::lock_guard lock(self->mutex_);
  self->lanes_ = std::move(made);
  return {};
}

}  // namespace tutti::comm
