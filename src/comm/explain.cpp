// Explains a call: what the planner had to choose from, what it chose, and the program as text.

#include "comm/call.h"
#include "comm/chosen.h"
#include "comm/device_rank.h"
#include "comm/device_teams.h"
#include "comm/group_jobs.h"
#include "comm/staged_rounds.h"
#include "comm/team_plan.h"
#include "planner/tuning.h"
#include "schedule/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace tutti::comm {
namespace {

/// Those of calls that go through host memory are the library's, and all ranks can map them.
protocol::BufferReferences buffers_of(Communicator& communicator, const CallArgs& args, const CallShape& shape) {
  const Reach& reach = communicator.members().reach;
  if (communicator.device()) return reach.describe(nullptr, 0, nullptr, 0);
  return reach.describe(args.send, shape.input_bytes, args.receive, shape.output_bytes);
}

/// As if every rank's buffers were like this one's.
planner::Question question_for(Communicator& communicator, const CallArgs& args) {
  const CallShape shape = shape_of(args, communicator.ranks(), communicator.rank());
  Membership& members = communicator.members();
  planner::Question q;
  q.request = shape.request;
  q.count = shape.count;
  q.element_bytes = static_cast<std::uint32_t>(size_of(args.type));
  q.wide_wire = planner::uses_wide_wire(members.plans.rules(), args.collective, args.type, args.op);
  q.in_place = args.send != nullptr && is_in_place(args, communicator.rank());  // no buffers were named: out of place
  q.set = members.plans.schedule_for(q.request) != nullptr;
  const auto buffers = buffers_of(communicator, args, shape);
  if (communicator.ranks() > 1) {
    q.access = members.access((buffers.flags & protocol::kMappable) != 0, members.reach.one_process());
  }
  return q;
}

/// As if every rank's buffers were like this one's.
Carriage carriage_here(Communicator& communicator, const CallArgs& args) {
  const CallShape shape = shape_of(args, communicator.ranks(), communicator.rank());
  Membership& members = communicator.members();
  if (members.plans.schedule_for(shape.request) != nullptr) return Carriage::kNone;
  const Carriage carriage = carriage_of(members, args);
  if (carriage != Carriage::kBesideLines || is_rooted(args.collective)) return carriage;
  const auto buffers = buffers_of(communicator, args, shape);
  return goes_beside_line(members, carriage, shape.input_bytes, buffers) ? carriage : Carriage::kNone;
}

/// The candidates at this size, cheapest first, and which of them runs: calls remember one choice per size class.
struct Choice {
  std::vector<planner::Candidate> candidates;
  planner::Candidate chosen;
};
Result<Choice> choose(const planner::Question& question, const planner::PlanCache& plans) {
  TUTTI_TRY_ASSIGN(const auto remembered, plans.candidates_for(planner::PlanCache::size_class(question)));
  TUTTI_TRY_ASSIGN(auto found, plans.candidates_for(question));
  const auto is_remembered = [&](const planner::Candidate& c) {
    return c.algorithm == remembered.front().algorithm && c.direct == remembered.front().direct;
  };
  const planner::Candidate chosen = *std::ranges::find_if(found, is_remembered);
  return Choice{std::move(found), chosen};
}

std::string_view meaning_of(planner::Access access) {
  switch (access) {
    case planner::Access::kSlots: return "nothing reaches the others' buffers: data goes through slots";
    case planner::Access::kSingleCopy:
      return "buffers are private: through slots, or by single copies (process_vm_readv)";
    case planner::Access::kMapped: return "every rank can load from and store to every other's buffers";
  }
  return "";
}

/// A line's way from core to core, not measured: what the cost model takes per message.
constexpr double kAnnounceUs = 0.15;

bool goes_by_shares(const Membership& members, Carriage carriage) {
  return carriage == Carriage::kByRails && members.rails->plan().shares;
}

/// Of a call that its lines finish, or rails, or MPI's messages.
double announced_us(Communicator& communicator, const CallArgs& args, Carriage carriage) {
  if (!needs_no_references(carriage)) return kAnnounceUs * (communicator.ranks() - 1);
  const Membership& members = communicator.members();
  const planner::NetworkCosts& network = members.plans.rules().network;
  const bool by_shares = goes_by_shares(members, carriage);
  if (carriage == Carriage::kByMpi || by_shares) {
    const int others = communicator.ranks() - 1;
    const double sent = 2.0 * others / communicator.ranks() * static_cast<double>(args.count * size_of(args.type));
    return (by_shares ? 2 : 3) * network.message_us + 4 * others * network.work_us + sent / (network.gbps * 1e3);
  }
  const bool by_rails = carriage == Carriage::kByRails;
  // A host's ranks share its network, but for one that their threads are.
  const bool abreast = by_rails && members.plans.rules().one_system;
  const auto bytes = static_cast<double>(args.count * size_of(args.type)) / (abreast ? members.rails->parts() : 1);
  const LineRoutes& routes = by_rails ? members.rails->routes() : members.bridge->routes();
  return routes.ways() * network.message_us + routes.chain() * (2 * network.work_us + bytes / (network.gbps * 1e3));
}

/// How the inputs of such calls travel, with the lines, and who makes results of them.
std::string_view meaning_of(Carriage carriage) {
  if (carriage == Carriage::kInLines) return "in";
  return goes_from_buffers(carriage) ? "from its buffer with" : "beside";
}

/// What the ranks of a rail do with their hosts' sums.
std::string_view across_of(LineRoutes::Pattern pattern) {
  switch (pattern) {
    case LineRoutes::Pattern::kDirect: return "each sends its host's sum to each other one";
    case LineRoutes::Pattern::kDoubling: return "pairs of hosts add up what they have so far";
    case LineRoutes::Pattern::kStar: return "one of them adds up all and sends the sum to the others";
  }
  return "";
}

std::string_view results_of(const CallArgs& args, Carriage carriage) {
  if (carriage == Carriage::kAddedUp) return "pairs of hosts add\nup what they have so far";
  if (carriage == Carriage::kAtHub) return "one of them\nadds up all and sends the sum to the others, in rank order";
  if (is_rooted(args.collective))
    return "whoever has a result takes it\nfrom there, sums in rank order; nobody waits for other lines";
  return "each rank takes its\nresult from the lines of all, sums in rank order";
}

}  // namespace

Result<double> predict_us(Communicator& communicator, const CallArgs& args) {
  if (args.count == 0) return 0.0;
  if (const Carriage carriage = carriage_here(communicator, args); carriage != Carriage::kNone)
    return announced_us(communicator, args, carriage);
  TUTTI_TRY_ASSIGN(const Choice choice, choose(question_for(communicator, args), communicator.members().plans));
  return choice.chosen.predicted_us;
}

Result<Chosen> chosen_for(Communicator& communicator, const CallArgs& args) {
  if (communicator.ranks() == 1) return Chosen{"a copy", "there are no other ranks", 0};
  if (const Carriage carriage = carriage_here(communicator, args); carriage != Carriage::kNone) {
    const double us = announced_us(communicator, args, carriage);
    switch (carriage) {
      case Carriage::kByRails:
        if (goes_by_shares(communicator.members(), carriage))
          return Chosen{"shares", "so many bytes: each host's shares of them come with its line", us};
        return Chosen{"rails", "so many bytes: a part for each rank of a host, before the other hosts' lines have come",
                      us};
      case Carriage::kByMpi: return Chosen{"MPI messages", "so many bytes: MPI sends them from the buffers", us};
      default: return Chosen{"announce lines", "so few bytes: they travel with the lines that open the call", us};
    }
  }
  const planner::Question q = question_for(communicator, args);
  const planner::PlanCache& plans = communicator.members().plans;
  TUTTI_TRY_ASSIGN(const Choice choice, choose(q, plans));
  const planner::Candidate& c = choice.chosen;
  return Chosen{fmt::format("{} {}", c.algorithm->name, c.direct ? "direct" : "slots"),
                planner::describe_reason(q, plans.rules(), c), c.predicted_us};
}

Result<std::string> candidate_rules(Communicator& communicator, const CallArgs& args) {
  if (!communicator.is_initialised()) return error(Code::kInvalidUsage, "the communicator is not initialised");
  std::string text;
  if (communicator.device() || args.count == 0 || communicator.ranks() == 1 ||
      carriage_here(communicator, args) != Carriage::kNone)
    return text;
  const planner::Question q = planner::PlanCache::size_class(question_for(communicator, args));
  if (q.set)
    return error(Code::kInvalidUsage, "a schedule is set for such calls; take it back by tuttiCommSetSchedule");
  TUTTI_TRY_ASSIGN(const auto candidates, communicator.members().plans.candidates_for(q));
  for (const planner::Candidate& c : candidates) {
    planner::TuningRule rule;
    rule.key = planner::TuningKey(q);
    rule.choices.push_back({q.count * q.element_bytes, std::string(c.algorithm->name), c.direct});
    text += planner::to_text(rule) + "\n";
  }
  return text;
}

namespace {

/// A line on the same call over buffers that all ranks map, where it says more than what was asked.
Result<std::string> explain_mapped(Communicator& communicator, const CallArgs& args, Carriage carriage) {
  const Membership& members = communicator.members();
  planner::Question q = question_for(communicator, args);
  const bool as_asked = q.access == planner::Access::kMapped || q.set || communicator.ranks() == 1;
  if (as_asked || members.bridge || communicator.device()) return std::string();
  const std::size_t input_bytes = shape_of(args, communicator.ranks(), communicator.rank()).input_bytes;
  const bool beside = carriage == Carriage::kBesideLines && !is_rooted(args.collective);
  if (carriage != Carriage::kNone && !(beside && input_bytes > kCarriedAnywayBytes)) return std::string();
  q.access = members.access(true, false);
  if (q.access != planner::Access::kMapped) return std::string();
  TUTTI_TRY_ASSIGN(const Choice choice, choose(q, members.plans));
  return fmt::format("shared buffers (ncclMemAlloc, on every rank) would go by: {} {}, expected us {:.1f}\n",
                     choice.chosen.algorithm->name, choice.chosen.direct ? "direct" : "slots",
                     choice.chosen.predicted_us);
}

/// What the ranks' threads do.
Result<std::string> explain_on_host(Communicator& communicator, const CallArgs& args) {
  const Carriage carriage = carriage_here(communicator, args);
  TUTTI_TRY_ASSIGN(const std::string mapped, explain_mapped(communicator, args, carriage));
  if (goes_by_shares(communicator.members(), carriage)) {
    return fmt::format(
        "access: shares: each rank's line brings the others their shares of its buffer; a rank adds its share up, in "
        "rank\norder, and sends the others its sum\n{}",
        mapped);
  }
  if (carriage == Carriage::kByRails) {
    const Rails& rails = *communicator.members().rails;
    return fmt::format(
        "access: rails: the ranks at one place of all hosts add up one of {} parts: each what its host's ranks have "
        "given\n"
        "it, then {}; data goes before the other hosts' lines have come\n{}",
        rails.parts(), across_of(rails.routes().pattern()), mapped);
  }
  if (carriage == Carriage::kByMpi) {
    return fmt::format(
        "access: MPI messages: MPI sends each rank one share of the others' buffers, straight from there; the rank "
        "adds it\nup, in rank order, and MPI sends its sum to the others\n{}",
        mapped);
  }
  if (carriage != Carriage::kNone) {
    return fmt::format("access: announce line: every rank's input travels {} the line that opens its call, and {}\n{}",
                       meaning_of(carriage), results_of(args, carriage), mapped);
  }
  std::string text;
  planner::Question q = question_for(communicator, args);
  const planner::PlanCache& plans = communicator.members().plans;
  const planner::Rules& rules = plans.rules();
  TUTTI_TRY_ASSIGN(const Choice choice, choose(q, plans));
  TUTTI_TRY_ASSIGN(const planner::Plan plan, plans.make(q, choice.chosen, communicator.rank()));
  auto out = std::back_inserter(text);
  fmt::format_to(out, "access: {}: {}\n", planner::name_of(q.access), meaning_of(q.access));
  if (rules.reproducible) fmt::format_to(out, "reproducible: sums in rank order only\n");
  if (q.wide_wire) {
    fmt::format_to(out, "wire: partial sums of {} travel as float32 and are rounded once\n", name_of(args.type));
  }
  if (planner::over_hosts(rules)) {
    const planner::NetworkCosts& network = rules.network;
    fmt::format_to(out, "hosts: ranks are on {}; between them data goes by {}\n",
                   *std::ranges::max_element(rules.groups) + 1, communicator.members().mpi ? "MPI" : "TCP");
    fmt::format_to(out,
                   "network: a message takes {:.1f} us and {:.1f} us of work at each end, bytes {:.2f} GB/s ({})\n",
                   network.message_us, network.work_us, network.gbps,
                   rules.network_measured ? "measured" : "not measured: round figures");
  } else if (!rules.groups.empty()) {
    fmt::format_to(out, "groups: ranks are in {}, by {}\n", communicator.machine().groups().count,
                   planner::name_of(communicator.machine().groups().level));
  }
  if (!rules.text.empty()) fmt::format_to(out, "NCCL_ALGO={}\n", rules.text);
  fmt::format_to(out, "\n  {:<18} {:<8} {:>12}\n", "algorithm", "data", "expected us");
  for (const planner::Candidate& c : choice.candidates) {
    const bool chosen = c.algorithm == plan.algorithm && c.direct == plan.direct;
    fmt::format_to(out, "{} {:<18} {:<8} {:>12.1f}\n", chosen ? "*" : " ", c.algorithm->name,
                   c.direct ? "direct" : "slots", c.predicted_us);
  }
  fmt::format_to(out, "\nchosen for {}\n{}", planner::describe_reason(q, rules, choice.chosen), mapped);
  fmt::format_to(out, "{}: {}\n", plan.algorithm->name, plan.algorithm->summary);
  const bool streams = plan.streams_slots && plan.tiling.slab * plan.tiling.element_bytes >= protocol::kStreamedBytes;
  fmt::format_to(out, "lanes {}, units per round {}, {} elements per round, {} rounds{}\n\n", plan.shape.lanes,
                 plan.shape.units, plan.tiling.slab, plan.tiling.rounds(0),
                 plan.lines ? "; messages go as flag-in-word lines"
                 : streams  ? "; slots are written past the caches, but for messages below 2 KiB"
                            : "");
  const std::string past = describe_streams(args, communicator.ranks(), q.in_place, communicator.members().cache_room);
  if (!past.empty()) text.insert(text.size() - 1, past + "\n");
  if (const planner::SetSchedule* set = plans.schedule_for(q.request)) return text + schedule::to_text(set->schedule);
  return text + schedule::to_text(algorithm::make_schedule(*plan.algorithm, planner::in_groups(q.request, rules)));
}

/// What kernels do, and how the ranks' threads carry a share across.
Result<std::string> explain_by_teams(Communicator& communicator, const CallArgs& args) {
  const DeviceTeams& teams = *communicator.teams();
  const TeamPlan plan(args, teams.layout(), communicator.members().control.settings().staging_bytes);
  const CallArgs share = plan.across(0);
  const TeamLayout& layout = teams.layout();
  const std::string ranks = layout.is_even() ? fmt::format("{} ranks each", layout.shares)
                                             : fmt::format("{} to {} ranks each, {} of which have a share",
                                                           layout.shares, layout.longest, layout.shares);
  const std::string text = fmt::format(
      "teams: GPU memory of {} hosts with {}, in parts of up to {} elements: the ranks of a host share a part out\n"
      "by kernels, a share goes through host memory to the ranks at its place on other hosts and back, and kernels "
      "bring\nthe shares together; {} of {} between hosts",
      layout.hosts.size(), ranks, plan.part_count(), name_of(share.collective), share.count);
  if (!teams.across()) return text + ", in which this rank has no part\n";
  TUTTI_TRY_ASSIGN(const std::string across, explain_on_host(*teams.across(), share));
  return text + ":\n" + across;
}

}  // namespace

Result<std::string> explain(Communicator& communicator, const CallArgs& args) {
  if (!communicator.is_initialised()) return error(Code::kInvalidUsage, "the communicator is not initialised");
  const std::uint64_t bytes = args.count * size_of(args.type);
  std::string text =
      fmt::format("{} of {} {} ({} bytes{}) on {} ranks\n", name_of(args.collective), args.count, name_of(args.type),
                  bytes, reduces(args.collective) ? fmt::format(", {}", name_of(args.op)) : "", communicator.ranks());
  const DeviceRank* const device = communicator.device();
  if (device && device->teams() && device->teams()->takes(args)) {
    TUTTI_TRY_ASSIGN(const std::string by_teams, explain_by_teams(communicator, args));
    return text + by_teams;
  }
  bool staged = false;
  if (device) {
    TUTTI_TRY_ASSIGN(const bool takes, device->takes(communicator, args, LaneUse::kExplanation));
    staged = !takes;
  }
  if (device && !staged) {
    const DeviceChoice choice = path_for(communicator, args, LaneUse::kExplanation);
    text += fmt::format("path: {}: {}\n", name_of(choice.path), describe(choice.reason));
    if (choice.path == DevicePath::kLanes) {
      const auto lanes = device->lanes();
      const auto plan = lanes ? lanes->find(args, LaneUse::kExplanation) : nullptr;
      if (!plan) return error(Code::kInvalidArgument, "the communicator was aborted");
      return text + fmt::format(
                        "access: GPU memory: kernels pass data on through FIFOs of the GPUs that they are linked to, "
                        "{} slots of "
                        "{} bytes each\n{}: {}\n",
                        lanes->fifos().slots().slots, lanes->fifos().slots().slot_bytes, plan->algorithm->name,
                        plan->algorithm->summary);
    }
    if (choice.path != DevicePath::kDirect) {
      return text +
             "access: GPU memory: each rank's kernel pushes into line memory of the others what they need, sums in "
             "rank order\n";
    }
    if (device->ways().crew == DeviceCrew::kByTurns) {
      return text +
             "access: GPU memory of several processes, mapped; one rank's kernel does the parts of all that share its "
             "GPU,\nfrom staging or windows, sums in rank order\n";
    }
    return text + (device->ipc() ? "access: GPU memory of several processes, mapped; each rank's kernel does its part, "
                                   "from staging or windows,\nsums in rank order\n"
                                 : "access: GPU memory: the ranks share a process; kernels do everybody's part, "
                                   "straight from buffer to buffer,\nsums in rank order\n");
  }
  if (args.count == 0) return text + "nothing to move: the ranks only check that all make the same call\n";
  CallArgs part = args;
  if (staged) {
    const std::size_t most =
        elements_per_part(args, communicator.ranks(), communicator.members().control.settings().staging_bytes);
    part.count = std::min(args.count, most);
    text += fmt::format(
        "staged: GPU memory, copied to host memory and back in parts of up to {} elements; a part of {} there:\n", most,
        part.count);
  }
  TUTTI_TRY_ASSIGN(const std::string on_host, explain_on_host(communicator, part));
  return text + on_host;
}

}  // namespace tutti::comm
