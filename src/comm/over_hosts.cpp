// What a communicator does for its ranks on other hosts, beside its calls.

#include "base/config.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "comm/carriers.h"
#include "comm/communicator.h"
#include "comm/device_rank.h"
#include "comm/device_teams.h"
#include "comm/network_costs.h"
#include "comm/own_port.h"
#include "comm/shrink_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <string_view>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// A process that ends closes all its connections; the one on which ranks watch each other has the reason.
constexpr auto kReasonTime = std::chrono::seconds(2);
/// For what this rank has sent last to arrive, when it leaves.
constexpr auto kLeaveTime = std::chrono::seconds(5);
/// Longer than a rank that cannot be reached any more may take to leave, and say so.
constexpr double kGoneS = 10;
/// For the others to take this rank's reason for failure.
constexpr double kTellS = 1;

/// For ranks that have met to reach each other.
std::chrono::duration<double> time_to_reach() {
  return Meetings::reach_time(config().heartbeat_timeout_s, config().timeout_s);
}

/// "process 12 on host box-7"
std::string describe_place(const Peer& peer) {
  return fmt::format("process {} on host {}", peer.pid, peer.host.substr(0, peer.host.find(' ')));
}

}  // namespace

Result<Port> Communicator::meet_members(const BootstrapArgs& args, const Control::Memory& memory) {
  // Others may be past the bootstrap, and wait for this rank: they look at what is mapped.
  const auto give_up = [&](Code code, std::string_view why) {
    FailureText room;
    if (memory && !members_) record_failure(Control::failure_in(memory), code, rank_, could_not_initialise(why, room));
  };
  const auto meet = [&]() -> Result<Port> {
    const bool alone = args.ids.empty() && ranks_ == 1;
    if (alone) TUTTI_TRY(args.take_control(-1, 0));
    TUTTI_TRY_ASSIGN(BootstrapResult found, alone ? Result<BootstrapResult>(bootstrap_alone()) : bootstrap(args));
    Descriptor(found.control.fd).reset();  // it is mapped
    Port port = port_to_others(found, rank_);
    if (!found.sockets.empty()) {
      TUTTI_TRY(join_over_hosts(std::move(found), memory));
      return port;
    }
    Control control = Control::open(memory, found.control.bytes, ranks_, rank_ == 0, Control::slots_on_host(ranks_));
    members_ = std::make_unique<Membership>(std::move(found.peers), std::move(control), rank_, planner::Rules{});
    return port;
  };
  try {
    auto met = meet();
    if (!met.ok()) give_up(met.error().code, met.error().message);
    return met;
  } catch (const std::exception&) {
    give_up(Code::kSystem, "out of memory");
    throw;
  }
}

Status Communicator::join_over_hosts(BootstrapResult found, Control::Memory memory) {
  const auto is_here = [&](const Peer& peer) { return peer.host == found.peers[rank_].host; };
  const auto here = static_cast<int>(std::ranges::count_if(found.peers, is_here));
  const int leader = std::ranges::find_if(found.peers, is_here)->rank;
  const protocol::SlotShape slots = Control::slots_over_hosts(ranks_);
  std::unique_ptr<Control> shared;
  if (const std::size_t bytes = found.control.bytes; bytes != 0)
    shared = std::make_unique<Control>(Control::open(memory, bytes, here, leader == rank_, slots));
  std::vector<std::optional<Control>> copies(static_cast<std::size_t>(ranks_));
  for (int rank = 0, place = 0; shared && rank < ranks_; ++rank) {
    if (is_here(found.peers[rank])) copies[rank] = shared->copy(ranks_, place++, rank == 0 && rank_ == 0);
  }
  if (!copies[rank_]) copies[rank_] = Control::open(memory, 0, ranks_, rank_ == 0, slots);
  members_ = std::make_unique<Membership>(std::move(found.peers), *copies[rank_], rank_, planner::Rules{});
  members_->host_segment = std::move(shared);
  const bool over_mpi = !found.mpi.world_ranks.empty();
  members_->cuda_mpi = found.mpi.cuda;
  if (found.late) await_late_ties(std::move(*found.late), found.sockets, over_mpi);
  TUTTI_TRY(watch_hosts(found.sockets, over_mpi));
  if (over_mpi) TUTTI_TRY(open_streams(found.sockets, found.mpi));
  members_->bridge = std::make_unique<Bridge>(members_->control, rank_, found.sockets, copies, hosts_of_ranks(),
                                              members_->late_ties.get());
  return {};
}

Status Communicator::check_slots() const {
  const protocol::SlotShape theirs = members_->control.slot_shape();
  const protocol::SlotShape own = Control::slots_over_hosts(ranks_);
  if (theirs.slots == own.slots && theirs.slot_bytes == own.slot_bytes) return {};
  return error(
      Code::kInvalidUsage,
      fmt::format("rank 0 has {} slots of {} bytes for each rank, and rank {} has {} of {}: TUTTI_SLOT_BYTES must "
                  "be the same on every rank",
                  theirs.slots, theirs.slot_bytes, rank_, own.slots, own.slot_bytes));
}

void Communicator::await_late_ties(LateMeeting meeting, const std::vector<PeerSockets>& sockets, bool over_mpi) {
  LateTies::Args args;
  args.rank = rank_;
  args.meeting = std::move(meeting);
  for (int peer = 0; peer < ranks_; ++peer)
    args.missing.push_back(!over_mpi && !is_on_this_host(peer) && sockets[peer].data.empty());
  args.reach_time = time_to_reach();
  args.on_failure = [this](int peer, const Error& why) { fail(why.code, peer, why.message); };
  args.given_up = [this] { return failed(); };
  members_->late_ties = std::make_unique<LateTies>(std::move(args));
}

Status Communicator::watch_hosts(std::vector<PeerSockets>& sockets, bool over_mpi) {
  std::vector<PrivateDescriptor> watched;
  for (PeerSockets& with : sockets) watched.push_back(std::move(with.watch));
  const double timeout_s = config().heartbeat_timeout_s;
  lives_ = std::make_unique<std::atomic<PeerLife>[]>(static_cast<std::size_t>(ranks_));
  PeerWatch::Callbacks callbacks;
  callbacks.on_words = [this](const Bytes& words) { return store_shrink_words(members_->control, rank_, words); };
  callbacks.words_known = [this] { return known_shrink_words(members_->control, rank_); };
  const auto why_no_mpi = [](int rank, PeerLife life) {
    return fmt::format("rank {} of a communicator {}", rank, life == PeerLife::kEnded ? "has died" : "does not answer");
  };
  callbacks.on_gone = [this, timeout_s, over_mpi, why_no_mpi](int peer, PeerLife life, std::uint32_t last_call) {
    // First: who finds that a call has failed may leave at once, and must not say so by MPI.
    if (over_mpi && is_death(life)) forbid_mpi(why_no_mpi(peer, life));
    note_life(peer, life, last_call);
    const std::string who = fmt::format("rank {} ({})", peer, describe_place(members_->peers[peer]));
    if (life == PeerLife::kEnded)
      fail(Code::kRemote, peer, who + " ended without leaving the communicator: it was killed or has exited");
    // Of a network that is down one way only, either may be the one to mend: both are named.
    if (life == PeerLife::kSilent)
      fail(Code::kRemote, peer,
           fmt::format(
               "rank {0} has heard nothing of {2} for {3} s (TUTTI_HEARTBEAT_TIMEOUT_S): rank {1} is stopped, or "
               "its host or the network from it to rank {0} is down",
               rank_, peer, who, timeout_s));
  };
  callbacks.on_death = [over_mpi, why_no_mpi](int rank, PeerLife life) {
    if (over_mpi) stop_mpi(why_no_mpi(rank, life));
  };
  LateTies* const late = members_->late_ties.get();
  TUTTI_TRY_ASSIGN(members_->peer_watch, PeerWatch::start({.rank = rank_,
                                                           .sockets = std::move(watched),
                                                           .failure = &members_->control.failure(),
                                                           .timeout_s = timeout_s,
                                                           .reach_time = Meetings::reach_time(timeout_s, 0),
                                                           .callbacks = std::move(callbacks),
                                                           .beside = late}));
  if (late != nullptr) late->set_wake([watch = members_->peer_watch.get()] { watch->wake(); });
  return {};
}

Status Communicator::open_streams(std::vector<PeerSockets>& sockets, const MpiGroup& mpi) {
  const auto given_up = [this]() -> Status {
    if (failed()) return failure();
    if (cancelled_) return why_stopped();
    return {};
  };
  TUTTI_TRY_ASSIGN(members_->mpi, open_mpi(mpi, time_to_reach(), given_up));
  for (int peer = 0; peer < ranks_; ++peer) {
    const bool has_copy = members_->host_segment && is_on_this_host(peer);
    if (peer != rank_ && !has_copy) sockets[peer].stream = members_->mpi->stream(peer, members_->control.abort_word());
  }
  return {};
}

/// Channels with this host's other ranks lie there, as long as its slots hold what all ranks' slots do: both ends find the same.
void Communicator::find_places_on_host() {
  const protocol::SlotShape here = members_->host_segment->slot_shape();
  const protocol::SlotShape wanted = members_->control.slot_shape();
  if (here.bytes() < wanted.bytes()) return;
  int count = 0;
  for (int r = 0; r < ranks_; ++r) {
    if (!is_on_this_host(r)) continue;
    members_->places[r] = count++;
    if (r != rank_) members_->bridge->leave_channels_alone(r);
  }
}

namespace {

/// The first rank of each host. Mesh's ties_of() connects neighbours of these.
std::vector<int> first_ranks(const schedule::Groups& hosts) {
  std::vector<int> first;
  for (const std::vector<int>& ranks : ranks_of_hosts(hosts)) first.push_back(ranks.front());
  return first;
}

}  // namespace

void Communicator::settle_pacing() {
  const auto system_of = [&](int rank) { return members_->control.machine().manners(rank).kernel; };
  const std::uint64_t own = system_of(rank_);
  std::vector<bool> on_this_system;
  for (int rank = 0; rank < ranks_; ++rank) on_this_system.push_back(own != 0 && system_of(rank) == own);
  members_->bridge->settle_pacing(std::move(on_this_system));
}

/// Some hosts are containers of one system, and may have the same cores: all ranks find the same.
bool Communicator::hosts_share_systems() const {
  std::vector<std::string> hosts;
  std::vector<std::uint64_t> systems;
  for (int rank = 0; rank < ranks_; ++rank) {
    hosts.push_back(members_->peers[rank].host);
    systems.push_back(members_->control.machine().manners(rank).kernel);
  }
  return ranks_by_kernel(hosts, systems).size() < first_ranks(hosts_of_ranks()).size();
}

void Communicator::measure_network_costs() {
  const std::vector<int> first = first_ranks(hosts_of_ranks());
  const auto mine = std::ranges::find(first, rank_);
  if (members_->control.settings().calibrate == 0 || mine == first.end()) return;
  const auto place = static_cast<std::size_t>(mine - first.begin());
  planner::NetworkCosts& found = members_->control.network_costs(rank_);
  // Teams of the same hosts would measure all at once.
  if (known_network_) return void(found = *known_network_);
  found = measure_network({.bridge = *members_->bridge,
                           .control = members_->control,
                           .rank = rank_,
                           .next = first[(place + 1) % first.size()],
                           .previous = first[(place + first.size() - 1) % first.size()],
                           .place = static_cast<int>(place),
                           .crowded = yields().is_certain(),
                           .given_up = [this] { return cancelled_ || failed(); }});
  if (found.gbps == 0) {
    log_info("the network was not measured: rank {} or {} did not answer in time", first[(place + 1) % first.size()],
             first[(place + first.size() - 1) % first.size()]);
    return;
  }
  log_info(
      "measured from rank {} to rank {}: a message takes {:.1f} us and {:.1f} us of work at each end, bytes {:.2f} "
      "GB/s",
      rank_, first[(place + 1) % first.size()], found.message_us, found.work_us, found.gbps);
}

/// When all are ready: the same on every rank.
planner::NetworkCosts Communicator::network_costs() const {
  std::vector<planner::NetworkCosts> measured;
  for (const int rank : first_ranks(hosts_of_ranks())) measured.push_back(members_->control.network_costs(rank));
  return worst_of(measured);
}

/// By which ways lines go, and what goes with them: the same on every rank. Among many ranks they go as from the start, by the connections that
/// are there.
void Communicator::plan_lines(const planner::Rules& rules) {
  const int hosts = *std::ranges::max_element(rules.groups) + 1;
  Bridge& bridge = *members_->bridge;
  const bool each_one = hosts == ranks_;
  if (bridge.has_one_way_calls()) {
    // Hosts of one system have its cores together. Where they have several ranks each, of which others carry, lines by a hub wait for more of them.
    const int sharers = rules.one_system ? static_cast<int>(std::ceil(rules.crowding * hosts / ranks_)) : 1;
    const LineRoutes::Pattern pattern = choose_pattern(hosts, rules.network, sharers, each_one);
    const int hub = each_one ? bridge.host_of(planner::least_crowded(machine_->seats())) : 0;
    bridge.route_lines(LineRoutes(hosts, pattern, hub));
  }
  if (each_one)
    members_->far_limits = far_limits(hosts, bridge.routes().pattern(), rules.network,
                                      !rules.reproducible && !rules.wide_wire, rules.one_system);
  if (each_one && members_->mpi && ranks_ <= MpiAllReduce::kRanksMax && !rules.reproducible)
    members_->mpi_all_reduce = std::make_unique<MpiAllReduce>(members_->mpi, ranks_, rank_);
  plan_rails(rules);
}

/// Which calls go by rails, and how: the same on every rank. Sums are of hosts' sums, which are rounded.
void Communicator::plan_rails(const planner::Rules& rules) {
  const HostRanks hosts = ranks_of_hosts(rules.groups);
  const std::size_t per_host = hosts.front().size();
  const bool even = std::ranges::all_of(hosts, [&](const auto& ranks) { return ranks.size() == per_host; });
  if (!even || ranks_ > kAllWithAllMax || rules.reproducible) return;
  if (per_host == 1) {
    const bool by_mpi = members_->mpi != nullptr;
    if (ranks_ == 2 || !(by_mpi || rules.one_system)) return;
    const RailPlan plan = plan_shares(ranks_, by_mpi);
    if (members_->bridge->routes().pattern() != plan.pattern)
      members_->bridge->route_rail_lines(LineRoutes(ranks_, plan.pattern));
    members_->rails = std::make_unique<Rails>(*members_->bridge, RailRoom({}, 1), hosts, rank_, plan);
    return;
  }
  if (rules.wide_wire) return;
  const int sharers = rules.one_system ? static_cast<int>(std::ceil(rules.crowding)) : 1;
  RailPlan plan = comm::plan_rails(static_cast<int>(hosts.size()), static_cast<int>(per_host), rules.network, sharers,
                                   rules.one_system);
  // One that adds up for all needs their lines, which go there with the sums.
  if (plan.pattern == LineRoutes::Pattern::kStar) {
    plan.hub = members_->bridge->host_of(planner::least_crowded(machine_->seats()));
    members_->bridge->route_rail_lines(LineRoutes(static_cast<int>(hosts.size()), plan.pattern, plan.hub));
  }
  members_->rails =
      std::make_unique<Rails>(*members_->bridge, members_->host_segment->rail_room(ranks_), hosts, rank_, plan);
}

bool Communicator::is_on_this_host(int peer) const { return members_->peers[peer].host == members_->peers[rank_].host; }

schedule::Groups Communicator::hosts_of_ranks() const { return hosts_of(members_->peers); }

void Communicator::settle_crowding(bool crowded) {
  crowded_ = crowded;
  crowding_ = crowded || spans_hosts()
                  ? executor::Crowding(true)
                  : executor::Crowding(members_->control.processors(), static_cast<std::size_t>(rank_));
}

int Communicator::ranks_on_this_host() const {
  int count = 0;
  for (int r = 0; r < ranks_; ++r) count += is_on_this_host(r);
  return count;
}

void Communicator::note_life(int peer, PeerLife life, std::uint32_t last_call) {
  // By one thread. What is known of its end counts more than that it cannot be reached.
  const PeerLife before = lives_[peer].load(std::memory_order_relaxed);
  if (before != PeerLife::kThere && before != PeerLife::kUnreached) return;
  lives_[peer].store(life, std::memory_order_release);
  if (life == PeerLife::kLeft && members_->late_ties) members_->late_ties->note_left(peer, last_call);
}

PeerLife Communicator::life_of(int peer) const {
  if (lives_) return lives_[peer].load(std::memory_order_acquire);
  // In this order: what a rank did last it did before it ended.
  const bool ended = has_ended(peer);
  return has_left(peer) ? PeerLife::kLeft : ended ? PeerLife::kEnded : PeerLife::kThere;
}

/// A rank that was killed when all that watched it had left, or one whose last words should come by MPI, which it could not call any more.
void Communicator::check_unreached(int peer, const std::string& what, Clock::time_point since, Lateness& lateness) {
  const PeerLife life = life_of(peer);
  const bool is_cut_short = life == PeerLife::kLeft && members_->mpi;
  if ((life != PeerLife::kUnreached && !is_cut_short) || has_left(peer)) return;
  if (!lateness.unreached) lateness.unreached = Clock::now();
  const std::chrono::duration<double> waited = Clock::now() - std::max(since, *lateness.unreached);
  if (waited.count() < kGoneS) return;
  fail(Code::kRemote, peer,
       fmt::format("{}: rank {} ({}) has {}", what, peer, describe_place(members_->peers[peer]),
                   is_cut_short ? "left the communicator, and what it sent last does not come by MPI"
                                : "gone: nobody has heard it leave, and nobody listens where it did. It was killed or "
                                  "has exited"));
}

void Communicator::check_streams() {
  if (failed()) return;
  const int peer = members_->bridge->ended_peer();
  if (peer < 0) {
    stream_ended_.reset();
    return;
  }
  if (!stream_ended_) stream_ended_ = Clock::now();
  if (Clock::now() - *stream_ended_ < kReasonTime) return;
  fail(Code::kRemote, peer,
       fmt::format("rank {} lost rank {} ({}): {}", rank_, peer, describe_place(members_->peers[peer]),
                   members_->mpi && !members_->mpi->problem().empty() ? members_->mpi->problem()
                                                                      : members_->bridge->why_ended(peer)));
}

Result<const char*> transport_name(Communicator& communicator) {
  if (!communicator.is_initialised()) return error(Code::kInvalidUsage, "the communicator is not initialised");
  return !communicator.spans_hosts() ? "local" : communicator.members().mpi ? "mpi" : "tcp";
}

Result<std::uint64_t> wire_bytes(Communicator& communicator) {
  if (!communicator.is_initialised()) return error(Code::kInvalidUsage, "the communicator is not initialised");
  const auto sent = [](Communicator& one) {
    const Membership& members = one.members();
    return members.bridge->sent_bytes() + members.mpi_sends.bytes.load(std::memory_order_relaxed);
  };
  const DeviceTeams* const teams = communicator.teams();
  return (teams && teams->across() ? sent(*teams->across()) : 0) +
         (communicator.spans_hosts() ? sent(communicator) : 0);
}

void Communicator::leave_over_hosts() {
  Bridge& bridge = *members_->bridge;
  if (has_failure()) {
    // The others must not take it for a rank that left in peace.
    members_->peer_watch->finish_telling(kTellS);
    return bridge.close();
  }
  if (cancelled_ && members_->mpi) members_->mpi->expect_silence();
  const auto until = Clock::now() + kLeaveTime;
  const auto go_on_until = [&](const auto& is_done) {
    while (!has_failure() && Clock::now() < until && !is_done()) {
      bridge.wait(1);
      bridge.progress();
    }
  };
  *members_->control.farewell(rank_) = Control::kFarewell + bridge.announced();
  members_->peer_watch->begin_leaving(bridge.announced());
  bridge.share_leaving();
  bridge.progress();
  go_on_until([&] { return bridge.is_sent(); });
  bridge.finish();
  go_on_until([&] { return bridge.has_arrived(); });
  bridge.close();
}

}  // namespace tutti::comm
