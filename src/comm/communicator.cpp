#include "comm/communicator.h"

#include "base/config.h"
#include "base/elapsed.h"
#include "base/float_mode.h"
#include "base/log.h"
#include "base/mapping.h"
#include "comm/batch.h"
#include "comm/call.h"
#include "comm/certificate.h"
#include "comm/device_rank.h"
#include "comm/own_seat.h"
#include "comm/report.h"
#include "comm/tuning_file.h"
#include "executor/backoff.h"
#include "planner/planned_schedules.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

int usable_cores() { return std::max(1, static_cast<int>(usable_processors().size())); }

/// A call that waits for so long is reported, and again each time it has waited twice as long.
constexpr double kFirstWarningS = 10;

/// Who was ready, and then failed, has said before that it is: by carriers that may come later than the failure.
constexpr double kLastWordS = 0.5;

}  // namespace

Membership::Membership(std::vector<Peer> all, Control c, int rank, planner::Rules rules)
    : peers(std::move(all)),
      control(std::move(c)),
      reach(rank, peers, control),
      plans(std::move(rules)),
      sent_calls(peers.size()),
      received_calls(peers.size()),
      shrinks_seen(peers.size()),
      announcer(control.board(), static_cast<std::uint32_t>(rank)),
      places(peers.size(), -1) {}

void Membership::connect(std::uint32_t lanes) {
  const int rank = reach.rank();
  for (auto lane = static_cast<std::uint32_t>(channels.size()); lane < lanes; ++lane) {
    std::vector<protocol::Channel>& made = channels.emplace_back(control.ranks());
    for (int peer = 0; peer < control.ranks(); ++peer) {
      if (peer == rank) continue;
      made[peer] = places[peer] < 0 ? control.channel(rank, peer, lane)
                                    : host_segment->channel(places[rank], places[peer], lane);
    }
    if (bridge) bridge->attach(lane, made);
  }
}

planner::Access Membership::access(bool mappable, bool same_process) const {
  if (bridge) return planner::Access::kSlots;
  const Settings& settings = control.settings();
  if (settings.p2p_disable != 0) return planner::Access::kSlots;
  if (mappable && (same_process || reach.maps())) return planner::Access::kMapped;
  return single_copy ? planner::Access::kSingleCopy : planner::Access::kSlots;
}

Communicator::Communicator(Options options) : options_(std::move(options)) {}

Communicator::~Communicator() {
  cancelled_ = true;
  await_initialisation();
  await_beside();
}

Status Communicator::initialise(std::vector<UniqueId> ids, const Communicator* parent) {
  const FloatMode standard;  // of what is worked out for the plans, all ranks must find the same
  Status status = connect(std::move(ids), parent);
  if (status.ok() && cancelled_) status = why_stopped();
  if (!status.ok()) {
    status = explained(status.error(), parent);
    give_up_initialisation(status.error());
    return status;
  }
  if (!device_ && !spans_hosts()) lone_abort_word_.store(members_->control.abort_word(), std::memory_order_release);
  init_state_.store(InitState::kReady, std::memory_order_release);
  return {};
}

void Communicator::skip_initialisation() { init_state_.store(InitState::kSkipped, std::memory_order_release); }

void Communicator::run_here(const std::function<void()>& work) {
  const std::lock_guard lock(init_mutex_);
  initialiser_ = thread_mark();
  carry_out(work);  // which throws nothing
  initialiser_ = nullptr;
}

void Communicator::start_background(std::function<void()> work) {
  const std::lock_guard lock(init_mutex_);
  init_thread_ = std::thread([this, work = std::move(work)] { carry_out(work); });
}

void Communicator::start_beside(std::function<void()> work) {
  const std::lock_guard lock(init_mutex_);
  std::erase_if(beside_, [](Beside& one) {
    if (*one.over) one.thread.join();
    return !one.thread.joinable();
  });
  beside_.reserve(beside_.size() + 1);  // a thread that has no place would end the program
  const auto over = std::make_shared<std::atomic<bool>>(false);
  beside_.push_back({std::thread([over, work = std::move(work)]() mutable {
                       work();
                       work = nullptr;
                       *over = true;
                     }),
                     over});
}

void Communicator::await_beside() {
  std::vector<Beside> all;
  {
    const std::lock_guard lock(init_mutex_);
    all.swap(beside_);
  }
  for (Beside& one : all) one.thread.join();
}

void Communicator::await_initialisation() {
  const std::lock_guard lock(init_mutex_);
  if (init_thread_.joinable()) init_thread_.join();
}

void Communicator::stop_initialising() {
  cancelled_ = cancelled_ || !is_initialised();
  // The initialising thread itself may come here, by exit() in a signal's handler.
  if (initialiser_ != thread_mark()) await_initialisation();
}

void Communicator::make_collective_call() { collective_call_ = std::make_unique<CollectiveCall>(*this); }

void Communicator::make_point_to_point_call(const CallArgs& args, std::size_t index) {
  if (point_to_point_calls_.empty()) point_to_point_calls_.resize(2 * static_cast<std::size_t>(ranks_));
  const Direction direction = args.collective == Collective::kSend ? Direction::kSend : Direction::kReceive;
  point_to_point_calls_[index] = std::make_unique<PointToPointCall>(*this, args.root, direction);
}

Batch& Communicator::batch() {
  if (!batch_) batch_ = std::make_unique<Batch>(*this, Batch::Turn::kStays);
  return *batch_;
}

Status Communicator::wait_initialised() {
  await_initialisation();
  const InitState state = init_state_.load(std::memory_order_acquire);
  if (state == InitState::kReady || state == InitState::kSkipped) return {};
  const std::lock_guard lock(state_mutex_);
  return async_failure_ ? *async_failure_ : error(Code::kInternal, "the communicator was never initialised");
}

Status Communicator::connect(std::vector<UniqueId> ids, const Communicator* parent) {
  prepare_process_barrier();
  BootstrapArgs args;
  args.ids = std::move(ids);
  args.ranks = ranks_;
  args.rank = rank_;
  args.control_bytes = [this](int local_ranks) { return Control::bytes_on_host(ranks_, local_ranks); };
  args.cancelled = &cancelled_;
  args.timeout_s = config().timeout_s;
  args.heartbeat_s = config().heartbeat_timeout_s;
  if (parent) args.hopeless = [parent] { return parent->failed(); };
  if (outlook_) args.hopeless = [this] { return outlook_().has_value(); };
  args.why_cancelled = [this, parent] { return explained(why_stopped(), parent); };
  Control::Memory memory;
  args.take_control = [&](int fd, std::size_t bytes) -> Status {
    TUTTI_TRY_ASSIGN(memory, Control::map(fd, bytes, ranks_));
    return {};
  };
  TUTTI_TRY_ASSIGN(const Port port, meet_members(args, memory));
  const bool spans_hosts = this->spans_hosts();
  settle_crowding(ranks_on_this_host() > usable_cores());
  TUTTI_TRY(watch_peers());
  *members_->control.copies(rank_) = config().single_copy && !spans_hosts && members_->reach.probe_single_copy();
  const Descriptor mapping_probe = offer_mapping_probe();
  *members_->control.reproducible(rank_) = options_.reproducible;
  *members_->control.wide_wire(rank_) = options_.wide_wire;
  if (rank_ == 0) members_->control.settings().crowding = static_cast<double>(ranks_on_this_host()) / usable_cores();
  if (rank_ == 0) members_->control.settings().costs = remembered_costs();
  std::shared_ptr<const planner::Tuning> tuning;
  if (rank_ == 0) {
    TUTTI_TRY_ASSIGN(tuning, publish_tuning(members_->control));
  }
  take_seat(port);
  TUTTI_TRY_ASSIGN(device_, DeviceRank::open(*this));
  TUTTI_TRY(meet(RankPhase::kMapped, parent));
  if (spans_hosts) TUTTI_TRY(check_slots());
  TUTTI_TRY(DeviceRank::connect(*this, [&](RankPhase phase) { return meet(phase, parent); }));
  if (members_->host_segment) find_places_on_host();
  if (spans_hosts) members_->bridge->open(*members_);
  members_->connect(kFirstCollectiveLane + planner::kTableLanes);
  const Settings& settings = members_->control.settings();
  members_->single_copy = settings.single_copy != 0;
  bool reproducible = false;
  bool wide_wire = false;
  for (int r = 0; r < ranks_; ++r) {
    members_->single_copy &= *members_->control.copies(r) != 0;
    reproducible |= *members_->control.reproducible(r) != 0;
    wide_wire |= *members_->control.wide_wire(r) != 0;
  }
  TUTTI_TRY_ASSIGN(planner::Rules rules, planner::make_rules(settings.algorithm, reproducible));
  rules.wide_wire = wide_wire;
  rules.slots = members_->control.slot_shape();
  rules.single_copy_min_bytes = settings.single_copy_min_bytes;
  rules.line_bytes =
      settings.protocols == Protocols::kLines && !spans_hosts ? members_->control.line_shape().payload_bytes() : 0;
  rules.crowding = settings.crowding;
  if (rank_ != 0) {
    TUTTI_TRY_ASSIGN(tuning, published_tuning(members_->control));
  }
  rules.tuning = std::move(tuning);
  measure_costs();  // first: nobody waits long for the other's part
  if (spans_hosts) {
    settle_pacing();
    measure_network_costs();
    // What follows keeps cores busy, which may be those that others still measure on.
    if (hosts_share_systems()) TUTTI_TRY(meet(RankPhase::kMeasured, parent));
  }
  TUTTI_TRY(look_at_machine());
  probe_mapping();
  TUTTI_TRY(meet(RankPhase::kReady, parent));
  bool maps = settings.shm_disable == 0;
  for (int r = 0; r < ranks_; ++r) maps &= members_->control.mapping(r).works != 0;
  members_->reach.set_maps(maps);
  rules.measured = settings.costs;
  rules.slot_stores = settings.slot_stores;
  rules.last_cache_bytes = settings.last_cache_bytes;
  members_->carried_stores = {planner::streams_slots(rules), planner::near_store_gbps(rules)};
  rules.groups = machine_->groups().of_rank;
  if (const double crowding = machine_->crowding(); crowding > 0) rules.crowding = crowding;
  if (const double crowding = machine_->own_crowding(); crowding > 0) settle_crowding(crowding > 1);
  members_->cache_room = machine_->own_cache_room();
  rules.between_groups_gbps = settings.between_groups_gbps;
  if (spans_hosts) {
    rules.groups = hosts_of_ranks();
    rules.network = network_costs();
    rules.network_measured = planner::over_hosts(rules);
    if (!rules.network_measured) rules.network = planner::kUsualNetwork;
    rules.one_system = members_->bridge->is_all_on_one_system();
    plan_lines(rules);
  }
  const std::string trees = machine_->trees();
  if (!trees.empty() && !device_) {
    TUTTI_TRY_ASSIGN(rules.planned,
                     planner::PlannedSchedules::read(trees, ranks_, static_cast<int>(collective_lanes(ranks_)),
                                                     planner::slots_to_count_on(rules)));
  }
  members_->plans.set_rules(rules);
  TUTTI_TRY(DeviceRank::plan(*this, trees));
  TUTTI_TRY(DeviceRank::make_teams(*this, parent));
  log_info("communicator {} rank {} of {} ready: {}{}", options_.name.empty() ? "(unnamed)" : options_.name, rank_,
           ranks_,
           !device_                        ? ""
           : device_->teams()              ? "GPU memory by kernels within hosts and staged between them, "
           : device_->stages_collectives() ? "GPU memory staged through the host, "
                                           : "GPU memory, ",
           members_->mpi                   ? "processes on several hosts, over MPI"
           : spans_hosts                   ? "processes on several hosts"
           : members_->reach.one_process() ? "threads of one process"
           : members_->single_copy         ? "processes, slots and single copies"
                                           : "processes, slots");
  machine_->report();
  if (rank_ == 0) report_plans(*this);
  return {};
}

Descriptor Communicator::offer_mapping_probe() {
  if (spans_hosts() || members_->reach.one_process()) return {};
  MappingProbe& own = members_->control.mapping(rank_);
  auto file = create_memory_file("tutti-probe", 1, Backing::kOnTouch);
  struct stat facts = {};
  if (!file.ok() || fstat(file.value().get(), &facts) != 0) return {};
  own.fd = file.value().get();
  own.file = transport::file_identity(facts);
  return std::move(file).value();
}

void Communicator::probe_mapping() {
  MappingProbe& own = members_->control.mapping(rank_);
  own.works = 1;
  if (spans_hosts() || members_->reach.one_process()) return;
  std::vector<transport::SharedReference> probes(ranks_);
  for (int r = 0; r < ranks_; ++r) {
    const MappingProbe& probe = members_->control.mapping(r);
    probes[r].fd = probe.fd;
    probes[r].file = probe.file;
  }
  const Status status = members_->reach.probe_mapping(probes, *members_->control.copies(rank_) != 0);
  if (status.ok()) return;
  own.works = 0;
  log_info("rank {} cannot map the others' memory, which counts as private: {}", rank_, status.error().message);
}

void Communicator::take_seat(const Port& port) {
  MachineView::Args args{.board = members_->control.machine(),
                         .rank = rank_,
                         .hosts = {},
                         .one_host = !spans_hosts(),
                         .port = port,
                         .given_up = [this] { return cancelled_ || failed(); },
                         .gpu =
                             [this](int rank) {
                               const DeviceCard& card = members_->control.device_card(rank);
                               return card.device < 0
                                          ? std::string()
                                          : std::string(card.bus_id, strnlen(card.bus_id, sizeof(card.bus_id)));
                             }};
  for (const Peer& peer : members_->peers) args.hosts.push_back(peer.host);
  machine_ = std::make_unique<MachineView>(std::move(args));
  machine_->sit();
}

Status Communicator::look_at_machine() {
  TUTTI_TRY(machine_->look());
  if (rank_ != 0) return {};
  // Over hosts nobody copies singly, and the others have the settings already.
  if (const std::vector<int>& processors = machine_->seats().front().processors; !processors.empty() && !spans_hosts())
    members_->control.settings().last_cache_bytes = last_caches_bytes(config().hwloc_root, {processors.front()});
  members_->control.settings().between_groups_gbps = machine_->between_groups_gbps();
  const std::uint32_t lanes = device_ ? device_->lanes_most(*members_) : collective_lanes(ranks_);
  if (lanes == 0) return {};
  members_->control.settings().gpus_apart = device_ && machine_->gpus_apart() ? 1 : 0;
  machine_->plan_trees(static_cast<int>(lanes));
  if (device_) std::ranges::copy(machine_->gpu_ring(), members_->control.settings().gpu_ring);
  return {};
}

void Communicator::measure_costs() {
  Control& control = members_->control;
  Settings& settings = control.settings();
  const bool known = settings.costs.slot_gbps > 0 && (settings.costs.call_gbps > 0 || !members_->single_copy);
  if (settings.calibrate == 0 || known || spans_hosts()) return;
  const std::vector<Peer>& peers = members_->peers;
  const auto other =
      std::ranges::find_if(peers, [&](const Peer& peer) { return peer.process_token != peers.front().process_token; });
  if (other == peers.end() || (rank_ != 0 && rank_ != other->rank)) return;
  const CalibrationArgs args{.board = control.calibration(),
                             .slots = rank_ == 0 ? control.channel(0, other->rank, kFirstCollectiveLane).inbox
                                                 : control.channel(rank_, 0, kFirstCollectiveLane).outbox,
                             .bytes = std::min<std::size_t>(kCalibrationBytes, control.slot_shape().slot_bytes),
                             .partner = members_->single_copy ? other->pid : 0,
                             .given_up = [this] { return cancelled_ || failed(); }};
  if (rank_ != 0) {
    help_calibrate(args);
    return;
  }
  settings.costs = calibrate(args);
  remember_costs(settings.costs);
  log_info("measured between ranks 0 and {}: {}", other->rank, planner::describe(settings.costs));
}

RankPhase Communicator::phase_of(int rank) const {
  return static_cast<RankPhase>(executor::load_acquire(members_->control.phase(rank)));
}

Status Communicator::meet(RankPhase phase, const Communicator* parent) {
  executor::store_release(members_->control.phase(rank_), static_cast<std::uint64_t>(phase));
  Bridge* const bridge = members_->bridge.get();
  if (bridge != nullptr) bridge->enter_phase(phase);
  const auto start = Clock::now();
  executor::Backoff backoff(true);
  std::optional<Clock::time_point> failed_at;
  for (int r = 0;;) {
    if (bridge != nullptr) bridge->progress();
    if (bridge != nullptr) check_streams();
    while (r < ranks_ && phase_of(r) >= phase) ++r;
    // Afterwards: whatever is there by now is passed on, too.
    const bool passed_on = bridge == nullptr || bridge->pass_phase(phase);
    if (r == ranks_ && passed_on) return {};
    if (failed() && !failed_at) failed_at = Clock::now();
    if (failed_at && !(phase == RankPhase::kReady && seconds_since(*failed_at) < kLastWordS)) return failure();
    if (parent && parent->failed()) return parent->failure();
    if (auto obstacle = outlook_ ? outlook_() : std::nullopt) return *obstacle;
    if (cancelled_) return why_stopped();
    if (config().timeout_s > 0 && seconds_since(start) > config().timeout_s) return did_not_finish(r, phase);
    // Over hosts others measure the network meanwhile, maybe on the same cores.
    bridge != nullptr ? bridge->rest() : backoff.wait();
  }
}

/// `rank`: the first that is not there; none: what this rank has to say is still under way.
Error Communicator::did_not_finish(int rank, RankPhase phase) const {
  const Bridge* const bridge = members_->bridge.get();
  if (rank == ranks_) rank = rank_;
  if (bridge != nullptr && rank != rank_) rank = bridge->whom_it_waits_for(rank, phase);
  return error(Code::kRemote, fmt::format("rank {} did not finish initialisation within {} s (TUTTI_TIMEOUT_S)", rank,
                                          config().timeout_s));
}

Status Communicator::watch_peers() {
  ended_ = std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(ranks_));
  std::set<std::int32_t> seen;
  for (int r = 0; r < ranks_; ++r) {
    if (members_->reach.same_process(r) || !is_on_this_host(r)) continue;
    const std::int32_t pid = members_->reach.pid(r);
    if (!seen.insert(pid).second) continue;
    TUTTI_TRY_ASSIGN(auto watch, watch_process(pid, [this, pid] { on_exit(pid); }));
    members_->watches.push_back(std::move(watch));
  }
  return {};
}

void Communicator::on_exit(std::int32_t pid) {
  for (int r = 0, place = -1; r < ranks_; ++r) {
    if (!is_on_this_host(r)) continue;
    ++place;
    if (members_->reach.same_process(r) || members_->reach.pid(r) != pid) continue;
    ended_[r].store(true, std::memory_order_release);
    if (phase_of(r) == RankPhase::kLeft) continue;
    // It may have ended over a failure that this rank has not heard of yet, as one that was stopped itself: that is the reason.
    if (const Control* const segment = members_->host_segment.get()) {
      const FailureRecord& theirs = segment->copy(ranks_, place, false).failure();
      if (executor::load_acquire(&theirs.word) == 2) fail(static_cast<Code>(theirs.code), theirs.rank, theirs.text);
    }
    fail(Code::kRemote, r,
         fmt::format("rank {} (process {}) ended without leaving the communicator: it was killed or has "
                     "exited",
                     r, pid));
  }
}

void Communicator::check_patience(int peer, bool left, const std::string& what, Clock::time_point since,
                                  Lateness& lateness) {
  if (failed()) return;
  if (left) {
    fail(Code::kRemote, peer,
         fmt::format("{}: rank {} has left the communicator (ncclCommDestroy, ncclCommAbort, or its program has ended) "
                     "without making this call",
                     what, peer));
    return;
  }
  const double limit = members_->control.settings().timeout_s;
  if (limit > 0 && seconds_since(since) > limit) {
    const int first = behind(members_->control, peer);
    const std::string farther =
        first < 0 || first == rank_
            ? std::string()
            : fmt::format("; rank {} is farther behind: {}", first, last_call(members_->control, first).describe());
    fail(Code::kRemote, first < 0 || first == rank_ ? peer : first,
         fmt::format("{}: rank {} waited {} s for rank {} (TUTTI_TIMEOUT_S); it has not made the "
                     "call, or is stuck in it; its last collective: {}{}{}",
                     what, rank_, limit, peer, last_call(members_->control, peer).describe(), farther,
                     open_send(members_->control, peer, rank_)));
    return;
  }
  warn_late(peer, what, since, lateness);
  if (members_->bridge) check_unreached(peer, what, since, lateness);
}

void Communicator::check_sending(const std::string& what, Sending& sending) {
  const int awaited = members_->bridge ? members_->bridge->unsent_peer() : -1;
  if (awaited < 0) {
    sending = {};
    return;
  }
  if (sending.since == Clock::time_point{}) sending.since = Clock::now();
  check_patience(awaited, false, what, sending.since, sending.lateness);
}

void Communicator::warn_late(int peer, const std::string& what, Clock::time_point since, Lateness& lateness) {
  if (since != lateness.since) lateness = {since, kFirstWarningS, {}};
  const double waited = seconds_since(since);
  if (waited < lateness.next_warning_s) return;
  while (lateness.next_warning_s <= waited) lateness.next_warning_s *= 2;
  log_warn("{}{}: rank {} has waited {:.0f} s for rank {}; where the ranks are:\n{}",
           options_.is_team ? "(" + options_.name + ") " : "", what, rank_, waited, peer, report(*this));
}

}  // namespace tutti::comm
