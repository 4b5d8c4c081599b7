#include "comm/call.h"

#include "base/assert.h"
#include "comm/device_messages.h"

#include <fmt/format.h>

namespace tutti::comm {

bool is_in_place(const CallArgs& a, int rank) {
  const auto* send = static_cast<const std::byte*>(a.send);
  const auto* receive = static_cast<const std::byte*>(a.receive);
  const std::size_t bytes = a.count * size_of(a.type);
  switch (a.collective) {
    case Collective::kAllReduce:
    case Collective::kAllToAll: return send == receive;
    case Collective::kReduce:
    case Collective::kBroadcast: return rank == a.root && send == receive;
    case Collective::kAllGather: return send == receive + bytes * rank;
    case Collective::kReduceScatter: return receive == send + bytes * rank;
    case Collective::kGather: return rank == a.root && send == receive + bytes * rank;
    case Collective::kScatter: return rank == a.root && receive == send + bytes * rank;
    default: return false;
  }
}

CallShape shape_of(const CallArgs& args, int ranks, int rank) {
  CallShape shape;
  shape.request = {args.collective, ranks, args.root, 0};
  if (is_point_to_point(args)) shape.request.rank = rank;
  shape.count = args.count;
  const std::size_t block = args.count * size_of(args.type);
  shape.input_bytes = schedule::input_blocks(shape.request, rank) * block;
  shape.output_bytes = schedule::output_blocks(shape.request, rank) * block;
  return shape;
}

namespace {

/// Bytes that a rank puts into its announce line if the call goes that way: the same on every rank.
std::size_t announced_bytes(const CallArgs& args, int ranks) {
  const bool block_per_rank = args.collective == Collective::kReduceScatter ||
                              args.collective == Collective::kAllToAll || args.collective == Collective::kScatter;
  return args.count * size_of(args.type) * (block_per_rank ? ranks : 1);
}

/// The longest input that goes in the lines whatever the buffers are. Of two ranks of a host, which read each other's lines in such a call,
/// longer ones go faster from buffers that both map, and as fast beside the lines.
std::size_t in_lines_max(const Membership& members, Collective collective) {
  constexpr std::size_t kOfTwo = 320;
  const int ranks = members.control.ranks();
  const bool of_two = ranks == 2 && !members.bridge && !is_rooted(collective);
  return of_two ? kOfTwo : protocol::announce_payload_bytes(ranks);
}

/// The longest input beside the lines, in calls that all wait for. Two ranks of a host write only what the other one reads, which lines that
/// are open take from one to the other sooner than slots do: a rank waits once.
std::size_t beside_lines_max(const Membership& members, Collective collective) {
  constexpr std::size_t kOfTwo = 16 << 10;
  const Settings& settings = members.control.settings();
  if (members.control.ranks() != 2 || members.bridge) return settings.carry_bytes;
  return std::min<std::size_t>(settings.one_way_carry_bytes, reads_one_block(collective) ? 2 * kOfTwo : kOfTwo);
}

/// Over hosts of one rank each: kNone: not from buffers.
Carriage far_carriage(const Membership& members, const CallArgs& args, std::size_t bytes) {
  const bool sums = args.collective == Collective::kAllReduce;
  const bool gathers = args.collective == Collective::kAllGather;
  const std::size_t limit = sums ? members.far_limits.sums : gathers ? members.far_limits.gathers : 0;
  if (args.scaled || bytes > std::min<std::size_t>(limit, members.control.settings().far_carry_bytes))
    return Carriage::kNone;
  const LineRoutes::Pattern pattern = members.bridge->routes().pattern();
  if (sums && pattern == LineRoutes::Pattern::kStar && bytes > members.far_limits.passed_on) return Carriage::kAtHub;
  if (pattern != LineRoutes::Pattern::kDoubling) return Carriage::kFromBuffers;
  return members.plans.may_announce(args.collective, "halving_doubling") ? Carriage::kAddedUp : Carriage::kNone;
}

/// Over hosts of several ranks each, and over MPI of one.
bool goes_by_rails(const Membership& members, const CallArgs& args, std::size_t bytes) {
  if (!members.rails || args.collective != Collective::kAllReduce || args.scaled) return false;
  const RailPlan& plan = members.rails->plan();
  return bytes >= plan.shortest &&
         bytes <= std::min<std::size_t>(plan.longest, members.control.settings().rail_bytes) &&
         members.plans.may_announce(args.collective, plan.shares ? "twoshot" : "hosts_doubling") &&
         !planner::uses_wide_wire(members.plans.rules(), args.collective, args.type, args.op);
}

/// Over MPI, among hosts of one rank each.
bool goes_by_mpi(const Membership& members, const CallArgs& args, std::size_t bytes) {
  const std::size_t from = members.control.settings().mpi_direct_bytes;
  if (!members.mpi_all_reduce || args.collective != Collective::kAllReduce || args.scaled) return false;
  return from != 0 && bytes >= from && members.plans.may_announce(args.collective, "twoshot") &&
         !planner::uses_wide_wire(members.plans.rules(), args.collective, args.type, args.op);
}

}  // namespace

Carriage carriage_of(const Membership& members, const CallArgs& args) {
  const int ranks = members.control.ranks();
  if (ranks == 1 || !members.plans.may_announce(args.collective)) return Carriage::kNone;
  if (args.shot != Shot::kNone || (members.mpi_sends.copy_too && goes_by_messages(args.collective)))
    return Carriage::kNone;
  const std::size_t bytes = announced_bytes(args, ranks);
  if (bytes <= in_lines_max(members, args.collective)) return Carriage::kInLines;
  if (goes_by_mpi(members, args, bytes)) return Carriage::kByMpi;
  const Settings& settings = members.control.settings();
  // Two ranks have nobody to pass lines on to.
  if (ranks == 2 && members.bridge) {
    if (const Carriage far = far_carriage(members, args, bytes); far != Carriage::kNone) return far;
  }
  const bool one_way = is_rooted(args.collective) && !members.bridge;
  const std::size_t beside_max = one_way ? settings.one_way_carry_bytes : beside_lines_max(members, args.collective);
  if (bytes <= beside_max) return Carriage::kBesideLines;
  if (goes_by_rails(members, args, bytes)) return Carriage::kByRails;
  return members.bridge ? far_carriage(members, args, bytes) : Carriage::kNone;
}

LaneRun::LaneRun(Communicator& communicator)
    : comm_(communicator), machine_(communicator.members().control.abort_word(), &communicator.members().reach) {
  machine_.set_stores(communicator.members().carried_stores);
}

/// Shorter messages keep to a part of each slot that stays in the innermost caches, from where it is asked for early.
constexpr std::size_t kTurnsFromBytes = protocol::Lane<executor::HostMachine>::kPreparedBytes;

void LaneRun::start(const CallArgs& args, std::shared_ptr<const planner::Plan> plan, const protocol::PeerBuffers* peers,
                    Options options) {
  plan_ = std::move(plan);
  machine_.set_reduce(plan_->wide_wire ? reduce_mixed_function(args.type, args.op)
                                       : reduce_function(args.type, args.op));
  const std::size_t lane_count = plan_->program->lanes.size();
  const auto lanes_end = options.first_lane + static_cast<std::uint32_t>(lane_count);
  TUTTI_ASSERT(lanes_end <= kFirstCollectiveLane + collective_lanes(comm_.ranks()));
  Membership& members = comm_.members();
  if (lanes_end > members.channels.size()) members.connect(lanes_end);
  lanes_.resize(lane_count);
  scratch_.resize(plan_->scratch_bytes * lane_count);
  for (std::size_t l = 0; l < lane_count; ++l) {
    const schedule::LaneProgram& program = plan_->program->lanes[l];
    protocol::LaneCall call;
    call.steps = program.steps.data();
    call.step_count = static_cast<std::uint32_t>(program.steps.size());
    call.endpoints = program.endpoints.data();
    call.tiling = plan_->tiling;
    call.lane = static_cast<std::uint32_t>(l);
    call.input = static_cast<std::byte*>(const_cast<void*>(args.send));
    call.output = static_cast<std::byte*>(args.receive);
    call.scratch = scratch_.data() + plan_->scratch_bytes * l;
    const std::uint32_t lane = options.first_lane + static_cast<std::uint32_t>(l);
    call.channels = members.channels[lane].data();
    call.slot_shape = members.control.slot_shape();
    call.turns_from_bytes = kTurnsFromBytes;
    call.slot_room = planner::slots_of_plan(call.slot_shape, plan_->shape.lanes).slot_bytes;
    call.line_shape = members.control.line_shape();
    call.peers = peers;
    call.direct = plan_->direct;
    call.lines = plan_->lines;
    call.wide_wire = plan_->wide_wire;
    call.streamed_parts = options.streamed_parts;
    call.streams_slots = plan_->streams_slots;
    call.workspace = lanes_[l].storage.workspace(program.steps, comm_.ranks(), call.line_shape);
    call.scale = args.scaled ? &args.scale : nullptr;
    call.divisor = divisor_of(args, comm_.ranks());
    lanes_[l].done = false;
    lanes_[l].reads = plan_->direct;
    lanes_[l].lane.start(call);
  }
}

void LaneRun::start_again(const CallArgs& args) {
  for (Running& r : lanes_) {
    r.done = false;
    r.reads = plan_->direct;
    r.lane.start_again(static_cast<std::byte*>(const_cast<void*>(args.send)), static_cast<std::byte*>(args.receive));
  }
}

/// A rank whose own call has failed may have taken memory back before this one read it. Who leaves after the call is over has been waited for.
bool LaneRun::may_have_read_anything(Running& r) {
  if (!r.reads) return false;
  if (machine_.aborted()) return true;
  r.reads = r.lane.step() != 0 || r.lane.round() != 0;  // else an exchange, which reads before all else
  return false;
}

executor::Progress LaneRun::advance() {
  using executor::Progress;
  bool moved = false;
  bool all = true;
  for (Running& r : lanes_) {
    if (r.done) continue;
    Progress progress = r.lane.advance(machine_);
    for (int look = 1; progress == Progress::kBlocked && look < kLooks; ++look) progress = r.lane.advance(machine_);
    if (progress == Progress::kFailed) return progress;
    if (progress != Progress::kBlocked && may_have_read_anything(r)) return Progress::kFailed;
    r.done = progress == Progress::kDone;
    moved |= progress != Progress::kBlocked;
    all &= r.done;
  }
  if (all) return Progress::kDone;
  return moved ? Progress::kAdvanced : Progress::kBlocked;
}

int LaneRun::waiting_for() {
  for (Running& r : lanes_) {
    if (!r.done) return r.lane.waiting_for(machine_);
  }
  return -1;
}

int LaneRun::waiting_for_one() {
  int one = -1;
  for (Running& r : lanes_) {
    if (r.done) continue;
    const int peer = r.lane.waiting_for(machine_);
    if (peer < 0 || (one >= 0 && peer != one)) return -1;
    one = peer;
  }
  return one;
}

namespace {

/// Calls visit(endpoint) for every message that this rank moves itself: pulls at their source, pushes at their sink.
template <class Visit>
Status for_each_reach(const schedule::RankProgram& program, Visit&& visit) {
  for (const schedule::LaneProgram& lane : program.lanes) {
    for (const schedule::Step& step : lane.steps) {
      for (std::uint32_t i = 0; i < step.source_count + step.sink_count; ++i) {
        const bool source = i < step.source_count;
        const std::uint32_t at = source ? step.first_source + i : step.first_sink + (i - step.source_count);
        const schedule::Endpoint& e = lane.endpoints[at];
        if (e.place != schedule::Place::kPeer || e.width == 0) continue;
        if (e.direct == (source ? schedule::Direct::kPull : schedule::Direct::kPush)) TUTTI_TRY(visit(e));
      }
    }
  }
  return {};
}

}  // namespace

Status Call::reach_buffers(const planner::Plan& plan) {
  if (!plan.direct) return {};
  Reach& reach = comm_.members().reach;
  return for_each_reach(*plan.program, [&](const schedule::Endpoint& e) -> Status {
    const int peer = static_cast<int>(e.peer);
    const bool input = e.remote == schedule::Place::kInput;
    if ((input ? peers_[peer].input : peers_[peer].output) != 0) return {};
    const std::uint32_t blocks =
        input ? schedule::input_blocks(shape_.request, peer) : schedule::output_blocks(shape_.request, peer);
    const std::uint64_t bytes = blocks * shape_.count * size_of(args_.type);
    const Status found = reach.resolve(peer, line_of(peer).buffers, input, bytes, peers_[peer]);
    if (found.ok()) return {};
    comm_.fail(
        found.error().code, peer,
        fmt::format("rank {} cannot reach the buffers of rank {}: {}", comm_.rank(), peer, found.error().message));
    return comm_.failure();
  });
}

[[gnu::hot]] executor::Progress Call::blocked() {
  if (!lanes_.machine().aborted()) return Progress::kBlocked;
  // News of a failure may have overtaken what was sent before it. A call that has all that it needs succeeds, as on one host.
  Bridge* const bridge = comm_.members().bridge.get();
  if (bridge != nullptr && bridge->receive_last()) return Progress::kAdvanced;
  return fail(comm_.failure());
}

executor::Progress Call::moved(Progress progress) {
  waiting_since_ = {};
  return progress;
}

namespace {

/// Who has failed the communicator may have said in which call: "all_reduce #2: rank 1 waited ...".
bool names_call(const std::string& reason) {
  const std::size_t end = reason.find(": ");
  if (end == std::string::npos) return false;
  const std::size_t number = reason.rfind(" #", end);
  return number != std::string::npos && number + 2 < end && reason.find_first_not_of("0123456789", number + 2) == end;
}

}  // namespace

executor::Progress Call::fail(Error failure) {
  if (!names_call(failure.message)) failure.message = name() + ": " + failure.message;
  status_ = std::move(failure);
  return Progress::kFailed;
}

void Call::check_patience() {
  if (waiting_since_ == std::chrono::steady_clock::time_point{}) waiting_since_ = std::chrono::steady_clock::now();
  const int peer = waiting_for();
  if (peer < 0) return;
  // A rank leaves after its part is done: only if it is still missing once that was seen, it was never there. Whether it has
  // left is read once: between two reads it could make this very call and leave.
  const bool left = comm_.has_left(peer) && !is_coming(peer);
  if (left && waiting_for() != peer) return;
  comm_.check_patience(peer, left, name_for_all(), waiting_since_, lateness_);
}

}  // namespace tutti::comm
