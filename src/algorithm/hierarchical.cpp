// With H hosts of n ranks and M bytes per rank, an all-reduce with a ring across moves 2 (H-1)/H M bytes out of each host
// and as many in, the least that is possible, M (n-1)/n bytes into each rank inside and as many out, and as many again for
// the results. Each rank's link to the others carries the n-th part of what leaves its host.
//
// From: K. Kandalla et al., "Designing multi-leader-based allgather algorithms for multi-core clusters", IPDPS 2009, for
// the split by ranks of equal places ("rails"); the patterns across are the table's.
//
// A rail has one rank of each host, its owner there, and its part of the data. On a rail the owners run a row of the table
// as if each were a rank that has what its host has:
//
//   where the row reads its input    the host's other ranks send theirs, the owner adds them all in the same step
//   where the row has a result       the owner sends it to the host's other ranks in the same step
//
// so that nothing is stored on the way, and what moves inside a host moves while the network is busy with another piece.
// Rows of one rank (one host) leave the two-shot exchange inside.
//
// Uneven hosts: the number of rails is a common multiple, each rank owns as many in a row as its host allows; adjacent
// rails of the same owners are one. Two rails with an owner in common take turns (passes).
//
// Order: each step of the row has a level (levels.h). A rank's steps of all rails are sorted by pass and level; at each level
// first it sends inputs to owners, then runs its own rail, then takes in results. So every message is sent before it is
// received in one order that all ranks share, and a channel never holds more than two.
#include "algorithm/hierarchical.h"

#include "algorithm/host_rails.h"
#include "algorithm/levels.h"
#include "algorithm/pattern.h"
#include "base/assert.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace tutti::algorithm {

namespace {

using schedule::Direct;
using schedule::Place;
using schedule::Shape;
using schedule::Step;

constexpr std::array<std::string_view, 4> kAcrossAllReduce = {"ring", "tree", "halving_doubling", "twoshot"};
constexpr std::array<std::string_view, 3> kAcrossBlocks = {"ring", "oneshot", "halving_doubling"};
constexpr std::array<std::string_view, 4> kAcrossRooted = {"ring", "tree", "binomial", "oneshot"};
constexpr std::array<std::string_view, 1> kAcrossExchange = {"pairwise"};
constexpr std::array<std::string_view, 1> kAcrossCollect = {"oneshot"};

/// What a step of the row comes to on a rail, in the order in which the ranks of a host run it.
enum class Turn { kGive, kOwn, kTake };

/// Steps with the time at which they are due, put in order at the end.
class Timetable {
 public:
  schedule::StepBuilder step_at(int time, Turn turn, int rail) {
    due_.emplace_back(time, turn, rail);
    return step(lane_);
  }

  LaneProgram in_order() const {
    std::vector<std::size_t> order(due_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return due_[i]; });
    LaneProgram sorted;
    for (const std::size_t i : order) {
      const Step& from = lane_.steps[i];
      auto to = step(sorted);
      for (const Endpoint& source : lane_.sources(from)) to.from(source);
      for (const Endpoint& sink : lane_.sinks(from)) to.to(sink);
      to.finish(from.finish);
    }
    return sorted;
  }

 private:
  LaneProgram lane_;
  std::vector<std::tuple<int, Turn, int>> due_;
};

/// The row that goes across, as all ranks run it.
struct Across {
  const Algorithm* row;
  Request request;  ///< hosts as ranks
  Shape shape;

  Across(const Request& whole, const Hierarchy& hierarchy, const HostRails& rails)
      : row(nullptr), request{whole.collective, rails.hosts(), rails.host_of(whole.root), 0} {
    row = find(hierarchy.across, request);
    TUTTI_ASSERT(row != nullptr && std::ranges::count(across_patterns(whole.collective), hierarchy.across) == 1);
    shape = row->shape(request);
  }

  /// Every rank runs its steps in turn with all the others, so that the number of a step is its level.
  bool in_lockstep() const {
    return !is_rooted(request.collective) && (row->name == "ring" || row->name == "oneshot" || row->name == "twoshot");
  }
  /// A message leads up or down each edge of a tree but once, so that parts can follow each other at each level.
  bool is_tree() const { return row->name == "tree" || (row->name != "oneshot" && is_rooted(request.collective)); }
};

/// One host's part of the row: its steps and their levels, by lane.
struct HostProgram {
  RankProgram program;
  std::vector<std::vector<int>> levels;
  std::vector<int> level_counts;  ///< of all hosts
};

std::vector<HostProgram> host_programs(const Across& across) {
  std::vector<HostProgram> hosts(static_cast<std::size_t>(across.request.ranks));
  for (int host = 0; host < across.request.ranks; ++host)
    hosts[index(host)].program = across.row->build(across.request, host);
  for (std::size_t lane = 0; lane < across.shape.lanes; ++lane) {
    std::vector<const LaneProgram*> lanes;
    for (const HostProgram& host : hosts) lanes.push_back(&host.program.lanes[lane]);
    std::vector<std::vector<int>> levels = levels_of(lanes);
    int count = 1;
    for (const auto& of_host : levels) count = std::max(count, of_host.empty() ? 0 : of_host.back() + 1);
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      hosts[host].levels.push_back(std::move(levels[host]));
      hosts[host].level_counts.push_back(count);
    }
  }
  return hosts;
}

HostProgram host_program(const Across& across, int host) {
  if (!across.in_lockstep()) return std::move(host_programs(across)[index(host)]);
  HostProgram one{across.row->build(across.request, host), {}, {}};
  for (const LaneProgram& lane : one.program.lanes) {
    one.levels.emplace_back();
    for (std::size_t i = 0; i < lane.steps.size(); ++i) one.levels.back().push_back(static_cast<int>(i));
    one.level_counts.push_back(static_cast<int>(lane.steps.size()));
  }
  return one;
}

/// Writes the steps of one rank on one rail.
class RailWriter {
 public:
  RailWriter(const Request& request, const Across& across, const HostRails& rails, const Rail& rail, int rank)
      : collective_(request.collective),
        root_(request.root),
        across_(across),
        rails_(rails),
        rail_(rail),
        rank_(rank),
        host_(rails.host_of(rank)) {}

  void write(const LaneProgram& lane, const Step& step, int chunk, int time, Timetable& table);

 private:
  bool sums() const { return reduces(collective_); }
  bool ends_at_one() const { return collective_ == Collective::kReduce || collective_ == Collective::kReduceScatter; }
  int owner(int host) const { return rail_.owners[index(host)]; }
  /// The one rank of a host that has the input, or wants the result, where not all have or want it.
  int home(int host) const { return is_rooted(collective_) ? root_ : rails_.home(rail_, host); }
  bool is_alone(int host) const { return rails_.group(host).size() == 1; }

  const Endpoint* result_of(const LaneProgram& lane, const Step& step) const;
  int part_host(const LaneProgram& lane, const Step& step) const;
  schedule::Span span(Place place, const Endpoint& e) const;
  Endpoint local(Place place, const Endpoint& e) const;
  Endpoint across_message(const Endpoint& e, int receiver, bool unfinished) const;
  void own(const LaneProgram& lane, const Step& step, int time, Timetable& table) const;
  void give(const Endpoint& in, const Endpoint* out, int time, Timetable& table) const;
  void take(const Endpoint& out, int time, Timetable& table) const;
  void results(schedule::StepBuilder& made, const Endpoint& out) const;

  Collective collective_;
  int root_;
  const Across& across_;
  const HostRails& rails_;
  const Rail& rail_;
  int rank_;
  int host_;
  int chunk_ = 0;
  int part_ = 0;  ///< the host whose part of the rail the step moves, where blocks belong to ranks
};

const Endpoint* find_place(std::span<const Endpoint> ends, Place place) {
  const auto found = std::ranges::find(ends, place, &Endpoint::place);
  return found == ends.end() ? nullptr : &*found;
}

/// A result, not a sum under way that the row keeps in its output.
const Endpoint* RailWriter::result_of(const LaneProgram& lane, const Step& step) const {
  const bool passes_on = step.source_count == 1 && !(sums() && lane.sources(step)[0].place == Place::kInput);
  return step.finish || passes_on ? find_place(lane.sinks(step), Place::kOutput) : nullptr;
}

int RailWriter::part_host(const LaneProgram& lane, const Step& step) const {
  const bool gathers = collective_ == Collective::kAllGather;
  const auto names_part = [&](const Endpoint& e) {
    const Place place = e.place == Place::kPeer && e.direct != Direct::kNone ? e.remote : e.place;
    return place != Place::kPeer && (gathers ? place == Place::kOutput : place != Place::kOutput);
  };
  for (const auto ends : {lane.sources(step), lane.sinks(step)}) {
    const auto found = std::ranges::find_if(ends, names_part);
    if (found != ends.end()) return static_cast<int>(found->block);
  }
  return host_;
}

schedule::Span RailWriter::span(Place place, const Endpoint& e) const {
  if (!HostRails::by_block(collective_)) return rails_.units(rail_, chunk_, e.unit, e.width);
  const Place of_ranks = collective_ == Collective::kAllGather ? Place::kOutput : Place::kInput;
  schedule::Span at = rails_.part(rail_, part_);
  at.unit += index(chunk_) * index(rails_.units_in_all());
  if (place == of_ranks || place == Place::kScratch) at.block = index(rails_.home(rail_, part_));
  return at;
}

Endpoint RailWriter::local(Place place, const Endpoint& e) const {
  switch (place) {
    case Place::kInput: return input(span(place, e));
    case Place::kOutput: return output(span(place, e));
    default: return scratch(span(place, e));
  }
}

/// A message of the row between two owners. `receiver` is a host.
Endpoint RailWriter::across_message(const Endpoint& e, int receiver, bool unfinished) const {
  const int sender = receiver == host_ ? static_cast<int>(e.peer) : host_;
  const int peer = owner(static_cast<int>(e.peer));
  // What is pushed must be where the receiver keeps it; what is pulled, where the sender has it.
  if (e.direct == Direct::kPush && (!ends_at_one() || home(receiver) == owner(receiver)))
    return push(peer, local(e.remote, e));
  if (e.direct == Direct::kPull && (sums() ? is_alone(sender) : home(sender) == owner(sender)))
    return pull(peer, local(e.remote, e));
  const auto width = span(Place::kInput, e).width;
  const bool wide = unfinished && across_.row->wide_wire && (e.wide || !is_alone(sender));
  return wide ? partial(peer, width) : message(peer, width);
}

/// The result goes to all of the host who want it and have not made it.
void RailWriter::results(schedule::StepBuilder& made, const Endpoint& out) const {
  const Endpoint place = local(Place::kOutput, out);
  if (ends_at_one()) {
    made.to(home(host_) == rank_ ? place : push(home(host_), place));
    return;
  }
  made.to(place);
}

void RailWriter::own(const LaneProgram& lane, const Step& step, int time, Timetable& table) const {
  auto made = table.step_at(time, Turn::kOwn, rail_.first);
  const Endpoint* out = result_of(lane, step);
  const bool reads = find_place(lane.sources(step), Place::kInput) != nullptr;
  for (const Endpoint& source : lane.sources(step)) {
    if (source.place == Place::kPeer) {
      made.from(across_message(source, host_, sums() && step.source_count > 1));
    } else if (source.place != Place::kInput) {
      made.from(local(source.place, source));
    } else if (sums() || home(host_) == rank_) {
      made.from(local(Place::kInput, source));
    } else {
      made.from(push(home(host_), local(Place::kOutput, *out)));
    }
  }
  if (reads && sums()) {
    const Endpoint place = local(Place::kInput, *find_place(lane.sources(step), Place::kInput));
    for (const int peer : rails_.group(host_)) {
      if (peer != rank_) made.from(pull(peer, place));
    }
  }
  for (const Endpoint& sink : lane.sinks(step)) {
    if (sink.place == Place::kPeer) {
      made.to(across_message(sink, static_cast<int>(sink.peer), sums() && reads && !step.finish));
    } else if (&sink == out) {
      results(made, sink);
    } else {
      made.to(local(sink.place, sink));
    }
  }
  if (out != nullptr && !ends_at_one()) {
    const int has_it = !sums() && reads ? home(host_) : rank_;
    for (const int peer : rails_.group(host_)) {
      if (peer != rank_ && peer != has_it) made.to(push(peer, local(Place::kOutput, *out)));
    }
  }
  made.finish(step.finish);
}

/// Another rank's input for the owner.
void RailWriter::give(const Endpoint& in, const Endpoint* out, int time, Timetable& table) const {
  const int to = owner(host_);
  const Endpoint place = local(Place::kInput, in);
  if (sums()) {
    table.step_at(time, Turn::kGive, rail_.first).from(place).to(pull(to, place));
    return;
  }
  if (home(host_) != rank_) return;
  const Endpoint kept = local(Place::kOutput, *out);
  table.step_at(time, Turn::kGive, rail_.first).from(place).to(kept).to(push(to, kept));
}

void RailWriter::take(const Endpoint& out, int time, Timetable& table) const {
  if (ends_at_one() && home(host_) != rank_) return;
  const Endpoint place = local(Place::kOutput, out);
  table.step_at(time, Turn::kTake, rail_.first).from(push(owner(host_), place)).to(place);
}

void RailWriter::write(const LaneProgram& lane, const Step& step, int chunk, int time, Timetable& table) {
  chunk_ = chunk;
  part_ = HostRails::by_block(collective_) ? part_host(lane, step) : 0;
  if (HostRails::by_block(collective_) && rails_.part(rail_, part_).width == 0) return;
  if (owner(host_) == rank_) {
    own(lane, step, time, table);
    return;
  }
  const Endpoint* in = find_place(lane.sources(step), Place::kInput);
  const Endpoint* out = result_of(lane, step);
  if (in != nullptr) give(*in, out, time, table);
  const bool made_here = in != nullptr && !sums() && home(host_) == rank_;  // give() has kept it
  if (out != nullptr && !made_here) take(*out, time, table);
}

Shape shape_of(const Request& request, const Across& across, const HostRails& rails, int chunks) {
  Shape shape;
  shape.input_blocks = std::max(input_blocks(request, request.root), input_blocks(request, request.rank));
  shape.output_blocks = std::max(output_blocks(request, request.root), output_blocks(request, request.rank));
  shape.scratch_blocks = across.shape.scratch_blocks == 0 ? 0 : index(request.ranks);
  shape.units = index(rails.units_in_all()) * index(chunks);
  shape.lanes = across.shape.lanes;
  return shape;
}

RankProgram program_of(const Request& request, const Hierarchy& hierarchy, const Across& across, const HostRails& rails,
                       const HostProgram& host, int rank) {
  RankProgram program;
  for (std::size_t lane = 0; lane < across.shape.lanes; ++lane) {
    const LaneProgram& steps = host.program.lanes[lane];
    const int stride = across.is_tree() ? 1 : host.level_counts[lane];
    Timetable table;
    for (const Rail& rail : rails.rails()) {
      RailWriter writer(request, across, rails, rail, rank);
      for (int chunk = 0; chunk < hierarchy.chunks; ++chunk) {
        for (std::size_t i = 0; i < steps.steps.size(); ++i) {
          const int level = host.levels[lane][i];
          const int time = hierarchy.abreast ? (rail.pass * stride + level) * hierarchy.chunks + chunk
                                             : (chunk * rails.passes() + rail.pass) * stride + level;
          writer.write(steps, steps.steps[i], chunk, time, table);
        }
      }
    }
    program.lanes.push_back(table.in_order());
  }
  return program;
}

/// Units that the row needs of a rail's part.
int units_of_row(const Request& request, const Hierarchy& hierarchy) {
  const Request hosts{request.collective, static_cast<int>(hierarchy.groups.size()), 0, 0};
  return HostRails::by_block(request.collective) ? 1
                                                 : static_cast<int>(find(hierarchy.across, hosts)->shape(hosts).units);
}

HostRails rails_for(const Request& request, const Hierarchy& hierarchy) {
  return HostRails(request.collective, hierarchy.groups, hierarchy.carriers, units_of_row(request, hierarchy));
}

/// Each block goes from one rank to another: no row of the table runs across, whole blocks go by the rails as they are.
bool moves_blocks(Collective collective) {
  return collective == Collective::kAllToAll || collective == Collective::kGather || collective == Collective::kScatter;
}

RankProgram block_program(const Request& request, const HostRails& rails, int rank) {
  return one_lane(request.collective == Collective::kAllToAll
                      ? exchange_by_rails(rails, rank)
                      : collect_by_rails(rails, request.collective, request.root, rank));
}

}  // namespace

std::span<const std::string_view> across_patterns(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce: return kAcrossAllReduce;
    case Collective::kReduceScatter:
    case Collective::kAllGather: return kAcrossBlocks;
    case Collective::kBroadcast:
    case Collective::kReduce: return kAcrossRooted;
    case Collective::kAllToAll: return kAcrossExchange;
    case Collective::kGather:
    case Collective::kScatter: return kAcrossCollect;
    default: return {};
  }
}

Hierarchy hierarchy_of(const Request& request, std::string_view across) {
  Hierarchy hierarchy{.groups = {}, .carriers = {}, .across = across, .chunks = 1};
  for (int rank = 0; rank < request.ranks; ++rank) {
    const std::size_t host = index(group_of(request, rank));
    if (host >= hierarchy.groups.size()) hierarchy.groups.resize(host + 1);
    hierarchy.groups[host].push_back(rank);
  }
  return hierarchy;
}

schedule::Shape hierarchical_shape(const Request& request, const Hierarchy& hierarchy) {
  if (moves_blocks(request.collective)) return find(hierarchy.across, request)->shape(request);
  const HostRails rails = rails_for(request, hierarchy);
  return shape_of(request, Across(request, hierarchy, rails), rails, hierarchy.chunks);
}

RankProgram hierarchical(const Request& request, const Hierarchy& hierarchy, int rank) {
  const HostRails rails = rails_for(request, hierarchy);
  if (moves_blocks(request.collective)) return block_program(request, rails, rank);
  const Across across(request, hierarchy, rails);
  return program_of(request, hierarchy, across, rails, host_program(across, rails.host_of(rank)), rank);
}

void hierarchical_each(const Request& request, const Hierarchy& hierarchy,
                       const std::function<void(int rank, RankProgram program)>& visit) {
  const HostRails rails = rails_for(request, hierarchy);
  if (moves_blocks(request.collective)) {
    for (int rank = 0; rank < request.ranks; ++rank) visit(rank, block_program(request, rails, rank));
    return;
  }
  const Across across(request, hierarchy, rails);
  std::vector<HostProgram> all;
  if (!across.in_lockstep()) all = host_programs(across);
  for (int host = 0; host < rails.hosts(); ++host) {
    const HostProgram own = all.empty() ? host_program(across, host) : std::move(all[index(host)]);
    for (const int rank : rails.group(host)) visit(rank, program_of(request, hierarchy, across, rails, own, rank));
  }
}

schedule::Schedule hierarchical(const Request& request, const Hierarchy& hierarchy) {
  schedule::Schedule made{"hierarchical", request, hierarchical_shape(request, hierarchy), {}};
  made.ranks.resize(index(request.ranks));
  hierarchical_each(request, hierarchy,
                    [&](int rank, RankProgram program) { made.ranks[index(rank)] = std::move(program); });
  return made;
}

}  // namespace tutti::algorithm
