#include "comm/device_lanes.h"

#include "comm/call.h"
#include "comm/device_launch.h"
#include "comm/ring_order.h"
#include "planner/plan_cache.h"
#include "planner/planned_schedules.h"

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

/// What a further block is worth: bytes of a program lane.
constexpr std::uint64_t kBlockBytes = 32 << 10;

std::size_t index(Collective collective) { return static_cast<std::size_t>(collective); }

bool keeps_to(const schedule::Schedule& schedule, const DeviceLinks& links) {
  for (int rank = 0; rank < links.ranks(); ++rank) {
    for (const schedule::LaneProgram& lane : schedule.ranks[static_cast<std::size_t>(rank)].lanes) {
      for (const schedule::Endpoint& end : lane.endpoints) {
        if (end.place == schedule::Place::kPeer && !links.joins(rank, static_cast<int>(end.peer))) return false;
      }
    }
  }
  return true;
}

bool is_ring(const algorithm::Algorithm& row) { return row.name == "ring"; }

schedule::Schedule make_schedule(const algorithm::Algorithm& row, const schedule::Request& request,
                                 std::span<const int> ring) {
  if (!is_ring(row)) return algorithm::make_schedule(row, request);
  return in_order(algorithm::make_schedule(row, in_places(request, ring)), ring);
}

/// For any root.
bool is_possible(std::string_view name, Collective collective, const planner::Rules& rules, const DeviceLinks& links,
                 std::span<const int> ring) {
  for (int root = 0; root < (is_rooted(collective) ? links.ranks() : 1); ++root) {
    const schedule::Request request = planner::in_groups({collective, links.ranks(), root, 0}, rules);
    const algorithm::Algorithm* const row = algorithm::find(name, request);
    if (row == nullptr || row->shape(request).scratch_blocks != 0) return false;
    if (row->planned && !rules.planned->prove(collective, name).ok()) return false;
    if (is_ring(*row) && ring.empty()) return false;
    if (!keeps_to(make_schedule(*row, request, ring), links)) return false;
  }
  return true;
}

}  // namespace

LaneRules lane_rules(const planner::Rules& from, const DeviceLinks& links, std::span<const int> ring) {
  LaneRules made;
  made.ring = ring_order(links, ring);
  planner::Rules& rules = made.rules;
  rules.wide_wire = from.wide_wire;
  rules.planned = from.planned;
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                      Collective::kBroadcast, Collective::kReduce}) {
    if (from.reproducible && reduces(collective)) continue;
    const planner::AlgorithmFilter& special = from.special[index(collective)];
    const planner::AlgorithmFilter& asked = special.present ? special : from.everywhere;
    planner::AlgorithmFilter left{true, false, {}};
    std::vector<std::string> all;
    for (const char* const name : {"packed_trees", "packed_pairs", "ring", "tree"}) {
      if (!is_possible(name, collective, rules, links, made.ring)) continue;
      all.emplace_back(name);
      if (asked.admits(name)) left.names.emplace_back(name);
    }
    const bool leaves_lanes = !left.names.empty();
    const bool leaves_others =
        asked.admits("oneshot") || (collective == Collective::kAllReduce && asked.admits("twoshot"));
    if (left.names.empty()) left.names = std::move(all);
    const bool named = leaves_lanes && !leaves_others;
    // What was made for the links comes before what only keeps to them.
    const auto is_other = [](const std::string& name) { return !name.starts_with("packed"); };
    if (!named && !std::ranges::all_of(left.names, is_other)) std::erase_if(left.names, is_other);
    const bool follows_links = !std::ranges::all_of(left.names, is_other);
    const bool allowed = leaves_lanes || !leaves_others;
    made.offers[index(collective)] = left.names.empty()         ? LaneOffer::kNone
                                     : named                    ? LaneOffer::kNamed
                                     : allowed && follows_links ? LaneOffer::kThere
                                                                : LaneOffer::kOnlyWay;
    rules.special[index(collective)] = std::move(left);
  }
  return made;
}

DeviceLanes::DeviceLanes(LaneRules rules, const DeviceLinks& links, int rank, std::uint32_t blocks_max)
    : rules_(std::move(rules)), links_(links), rank_(rank), fifos_(links, blocks_max) {}

/// nullopt: lanes do no such call.
std::optional<planner::Question> DeviceLanes::question_of(const CallArgs& args) const {
  if (is_point_to_point(args) || rules_.offers[index(args.collective)] == LaneOffer::kNone) return std::nullopt;
  planner::Question question;
  question.request = {args.collective, links_.ranks(), is_rooted(args.collective) ? args.root : 0, 0};
  const DataType type = kernel_of(args);
  question.element_bytes = static_cast<std::uint32_t>(size_of(type));
  question.count = std::max<std::uint64_t>(1, args.count * size_of(args.type) / size_of(type));
  question.wide_wire = planner::uses_wide_wire(rules_.rules, args.collective, args.type, args.op);
  return question;
}

std::shared_ptr<const planner::Plan> DeviceLanes::find(const CallArgs& args, LaneUse use) {
  const std::lock_guard lock(mutex_);
  return find_plan(args, use);
}

std::shared_ptr<const planner::Plan> DeviceLanes::find_plan(const CallArgs& args, LaneUse use) {
  const auto question = question_of(args);
  if (!question) return nullptr;
  const CallKey key = key_of(*question);
  auto known = plans_.find(key);
  if (known == plans_.end()) {
    Result<planner::Plan> made = make_plan(*question);
    if (!made.ok() || made.value().tiling.lanes > fifos_.lanes()) return nullptr;
    if (plans_.size() >= kPlansMost) plans_.clear();
    known = plans_.emplace(key, std::make_shared<const planner::Plan>(std::move(made).value())).first;
  }
  const planner::Plan& plan = *known->second;
  const auto program = programs_.find(program_key(plan, *question));
  const bool fits = program != programs_.end() ? program->second.fits
                    : use == LaneUse::kCall    ? program_of(plan, *question).fits
                                               : bytes_for(plan, *question).has_value();
  return fits ? known->second : nullptr;
}

DeviceLanes::CallKey DeviceLanes::key_of(const planner::Question& q) {
  return {q.request.collective, q.request.root, q.count, q.element_bytes, q.wide_wire};
}

Result<planner::Plan> DeviceLanes::make_plan(const planner::Question& question) {
  planner::Rules rules = rules_.rules;
  rules.slots = fifos_.slots();
  rules.lanes_share_slots = false;
  const planner::Question asked = planner::PlanCache::size_class(question);
  auto choice = choices_.find(key_of(asked));
  if (choice == choices_.end()) {
    TUTTI_TRY_ASSIGN(const std::vector<planner::Candidate> found, planner::candidates(asked, rules));
    choice = choices_.emplace(key_of(asked), found.front()).first;
  }
  const planner::Candidate& chosen = choice->second;
  if (!is_ring(*chosen.algorithm)) return planner::make_plan(question, rules, chosen, rank_);
  planner::Question placed = question;
  placed.request = in_places(question.request, rules_.ring);
  const auto place = std::ranges::find(rules_.ring, rank_) - rules_.ring.begin();
  planner::Plan plan = planner::make_plan(placed, rules, chosen, static_cast<int>(place));
  plan.program =
      std::make_shared<const schedule::RankProgram>(in_order(*plan.program, question.request.collective, rules_.ring));
  return plan;
}

namespace {

std::size_t bytes_of(const schedule::RankProgram& program) {
  std::size_t bytes = program.lanes.size() * sizeof(cuda::LaneProgramReference);
  for (const schedule::LaneProgram& lane : program.lanes) {
    bytes += lane.steps.size() * sizeof(schedule::Step) + lane.endpoints.size() * sizeof(schedule::Endpoint);
  }
  return (bytes + 255) / 256 * 256;
}

bool has_room(const DeviceFifos& fifos, const schedule::LaneProgram& lane) {
  if (lane.steps.size() > fifos.steps_most() || lane.endpoints.size() > fifos.endpoints_most()) return false;
  return std::ranges::all_of(lane.steps, [](const schedule::Step& step) {
    return std::max(step.source_count, step.sink_count) <= DeviceFifos::kSidesMost;
  });
}

}  // namespace

/// All ranks' programs decide whether each of them has room, and how much of it is used. nullopt: not.
std::optional<std::size_t> DeviceLanes::bytes_for(const planner::Plan& plan, const planner::Question& question) const {
  const schedule::Schedule schedule =
      make_schedule(*plan.algorithm, planner::in_groups(question.request, rules_.rules), rules_.ring);
  std::size_t longest = 0;
  bool fits = true;
  for (const schedule::RankProgram& its : schedule.ranks) {
    longest = std::max(longest, bytes_of(its));
    for (const schedule::LaneProgram& lane : its.lanes) fits = fits && has_room(fifos_, lane);
  }
  return fits && longest <= fifos_.program_bytes() - used_ ? std::optional(longest) : std::nullopt;
}

DeviceLanes::Program& DeviceLanes::program_of(const planner::Plan& plan, const planner::Question& question) {
  const auto key = program_key(plan, question);
  if (const auto known = programs_.find(key); known != programs_.end()) return known->second;
  const std::optional<std::size_t> bytes = bytes_for(plan, question);  // may run out of memory: nothing is there then
  Program& program = programs_[key];
  program.fits = bytes.has_value();
  program.at = fifos_.programs() + used_;
  used_ += bytes.value_or(0);
  return program;
}

Status DeviceLanes::connect(std::vector<std::byte*> memory, DeviceFifos::Write write) {
  const std::lock_guard lock(mutex_);
  TUTTI_TRY(fifos_.fill(links_, rank_, memory, write));
  memory_ = std::move(memory);
  write_ = std::move(write);
  return {};
}

Status DeviceLanes::allocate(std::shared_ptr<cuda::Device> device) {
  TUTTI_TRY_ASSIGN(own_, cuda::DeviceMemory::allocate(std::move(device), DeviceFifos::kBytes));
  return {};
}

Status DeviceLanes::connect_here(const std::vector<std::shared_ptr<DeviceLanes>>& ranks) {
  std::vector<std::byte*> memory;
  for (const auto& rank : ranks) memory.push_back(rank->own_.data());
  for (const auto& rank : ranks) {
    const cuda::DeviceMemory& own = rank->own_;
    TUTTI_TRY(rank->connect(memory, [&own](std::size_t offset, const void* from, std::size_t bytes) {
      return own.write(offset, from, bytes);
    }));
  }
  return {};
}

Status DeviceLanes::put(Program& program, const schedule::RankProgram& lanes) const {
  std::vector<std::byte> image(bytes_of(lanes));
  const std::byte* const device = memory_[static_cast<std::size_t>(rank_)] + program.at;
  std::size_t at = lanes.lanes.size() * sizeof(cuda::LaneProgramReference);
  const auto append = [&](const auto& array) {
    using Element = typename std::remove_cvref_t<decltype(array)>::value_type;
    if (!array.empty()) std::memcpy(image.data() + at, array.data(), array.size() * sizeof(Element));
    const auto* const there = reinterpret_cast<const Element*>(device + at);
    at += array.size() * sizeof(Element);
    return there;
  };
  for (std::size_t l = 0; l < lanes.lanes.size(); ++l) {
    const schedule::LaneProgram& lane = lanes.lanes[l];
    cuda::LaneProgramReference reference;
    reference.step_count = static_cast<std::uint32_t>(lane.steps.size());
    reference.steps = append(lane.steps);
    reference.endpoints = append(lane.endpoints);
    std::memcpy(image.data() + l * sizeof reference, &reference, sizeof reference);
  }
  TUTTI_TRY(write_(program.at, image.data(), image.size()));
  program.is_there = true;
  return {};
}

Result<DeviceLanes::Part> DeviceLanes::prepare(const CallArgs& args) {
  const std::lock_guard lock(mutex_);
  Part part;
  part.plan = find_plan(args, LaneUse::kCall);
  if (!part.plan || memory_.empty()) return error(Code::kInternal, "a call that lanes do not do, or not yet");
  Program& program = program_of(*part.plan, *question_of(args));
  if (!program.is_there) TUTTI_TRY(put(program, *part.plan->program));
  const std::byte* const own = memory_[static_cast<std::size_t>(rank_)];
  part.homes = fifos_.homes(own);
  part.programs = reinterpret_cast<const cuda::LaneProgramReference*>(own + program.at);
  return part;
}

LanesCall::LanesCall(const CallArgs& args, int ranks, const DeviceLanes& lanes, const planner::Plan& plan,
                     std::optional<std::uint32_t> fingerprint)
    : type_(kernel_of(args)) {
  cuda::FoldCall call;
  describe(call, args, static_cast<std::uint32_t>(ranks));
  const std::uint32_t program_lanes = plan.tiling.lanes;
  const std::uint64_t worth = call.count * size_of(type_) / program_lanes / kBlockBytes;
  launch_.rows = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(worth, 1, lanes.fifos().lanes() / program_lanes));
  launch_.blocks_per_rank = program_lanes * launch_.rows;
  launch_.launch_ranks = 0;
  launch_.wide_wire = plan.wide_wire;
  launch_.announces = fingerprint.has_value();
  launch_.announced.fingerprint = fingerprint.value_or(0);
  launch_.scaled = call.scaled;
  launch_.op = call.op;
  launch_.divisor = call.divisor;
  launch_.tiling = plan.tiling;
  launch_.tiling.lanes = launch_.blocks_per_rank;
  launch_.tiling.count = call.count;
  launch_.slot_shape = lanes.fifos().slots();
}

void LanesCall::add(int rank, const cuda::RankHome* home, const DeviceLanes::Part& part, const CallArgs& args) {
  const std::uint32_t k = launch_.launch_ranks++;
  launch_.homes[k] = home;
  launch_.lanes[k] = part.homes;
  launch_.programs[k] = part.programs;
  launch_.inputs[rank] = args.send;
  launch_.outputs[rank] = args.receive;
  launch_.factors[rank] = {args.scale, args.scale_is_address};
}

Status LanesCall::launch(const cuda::Device& device, cuda::StreamHandle stream) {
  return device.launch(cuda::KernelKind::kLanes, type_, launch_.launch_ranks * launch_.blocks_per_rank, &launch_,
                       stream);
}

}  // namespace tutti::comm
