#include "topology/splitting.h"

#include "topology/max_flow.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace tutti::topology {

namespace {

/// The arcs of one split: from u to the switch, from there to t, and past it.
struct Corner {
  int in = 0;
  int out = 0;
  int past = -1;  ///< none if u is t: what turns around at a switch is dropped
};

/// Keeps one flow of the whole demand for each compute node over shared arcs. A split mostly leaves them intact, or moves
/// them from the corner to the new route; only where that fails a flow is sought anew.
class Splitter {
 public:
  Splitter(int nodes, const std::vector<Flow>& flows, const Demand& demand);

  bool demand_met() const { return met_; }
  bool remove(int node);
  std::vector<Route> routes() const;

 private:
  struct Sink {
    int node = 0;
    FlowGraph::Residual residual;
    Wide split = 0;  ///< of the split at hand
  };

  int arc_between(int from, int to);
  Corner corner(int from, int through, int to);
  void split(const Corner& corner, Wide most);
  Wide apply(Sink& sink, const Corner& corner, Wide amount);
  void take_back(FlowGraph::Residual& residual, const Corner& corner, Wide amount) const;
  void join(const Corner& corner, Wide amount);

  FlowGraph graph_;
  int source_;
  Wide rate_ = 0;
  bool met_ = true;
  FlowGraph::Residual capacities_;
  std::vector<std::vector<Route>> pieces_;  ///< by arc; their amounts add up to its capacity
  std::unordered_map<std::int64_t, int> arcs_;
  std::vector<Sink> sinks_;  ///< those that stopped a split lately come first
};

Splitter::Splitter(int nodes, const std::vector<Flow>& flows, const Demand& demand)
    : graph_(nodes + 1), source_(nodes) {
  for (const Flow& flow : flows) {
    const int arc = arc_between(flow.from, flow.to);
    capacities_[arc] += flow.amount;
    pieces_[arc].push_back({flow.amount, {flow.from, flow.to}});
  }
  for (const int node : demand.compute) {
    rate_ += demand.weights[node];
    if (demand.weights[node] > 0) capacities_[arc_between(source_, node)] += demand.weights[node];
  }
  for (const int node : demand.compute) {
    if (demand.weights[node] == rate_) continue;
    sinks_.push_back({node, capacities_});
    met_ = met_ && graph_.augment(sinks_.back().residual, source_, node, rate_) == rate_;
  }
}

int Splitter::arc_between(int from, int to) {
  const int low = std::min(from, to);
  const int high = std::max(from, to);
  const auto [found, is_new] = arcs_.try_emplace(static_cast<std::int64_t>(low) * graph_.nodes() + high, graph_.arcs());
  if (is_new) {
    graph_.add_arc(low, high);
    capacities_.resize(graph_.arcs(), 0);
    pieces_.resize(graph_.arcs());
    for (Sink& sink : sinks_) sink.residual.resize(graph_.arcs(), 0);
  }
  return found->second + (from == low ? 0 : 1);
}

Corner Splitter::corner(int from, int through, int to) {
  return {arc_between(from, through), arc_between(through, to), from == to ? -1 : arc_between(from, to)};
}

/// Undoes part of a split, which is always possible: what the flow sends past the switch fits through it again.
void Splitter::take_back(FlowGraph::Residual& residual, const Corner& corner, Wide amount) const {
  residual[corner.in] += amount;
  residual[corner.out] += amount;
  if (corner.past < 0) return;
  residual[corner.past] -= amount;
  const Wide over = -residual[corner.past];
  if (over <= 0) return;
  for (const int arc : {corner.past, corner.in ^ 1, corner.out ^ 1}) {
    residual[arc] += over;
    residual[arc ^ 1] -= over;
  }
}

/// Changes the sink's flow for a split of `amount` and returns how much too much that is.
Wide Splitter::apply(Sink& sink, const Corner& corner, Wide amount) {
  FlowGraph::Residual& residual = sink.residual;
  residual[corner.in] -= amount;
  residual[corner.out] -= amount;
  if (corner.past >= 0) residual[corner.past] += amount;
  const Wide over = std::max(-residual[corner.in], -residual[corner.out]);
  if (over <= 0) return 0;
  if (corner.past >= 0 && residual[corner.in ^ 1] >= over && residual[corner.out ^ 1] >= over) {
    for (const int arc : {corner.in, corner.out, corner.past ^ 1}) {
      residual[arc] += over;
      residual[arc ^ 1] -= over;
    }
    return 0;
  }
  residual = capacities_;
  residual[corner.in] -= amount;
  residual[corner.out] -= amount;
  if (corner.past >= 0) residual[corner.past] += amount;
  const Wide missing = rate_ - graph_.augment(residual, source_, sink.node, rate_);
  if (missing == 0) return 0;
  take_back(residual, corner, missing);
  graph_.augment(residual, source_, sink.node, missing);
  return missing;
}

/// As much as all sinks can bear. A sink that misses some says exactly how much too much it was: every cut that the split
/// narrows, it narrows by its amount.
void Splitter::split(const Corner& corner, Wide most) {
  Wide amount = std::min({most, capacities_[corner.in], capacities_[corner.out]});
  std::size_t done = 0;
  for (; done < sinks_.size() && amount > 0; ++done) {
    const Wide missing = apply(sinks_[done], corner, amount);
    amount -= missing;
    sinks_[done].split = amount;
    if (missing > 0) std::swap(sinks_[done], sinks_[done / 2]);
  }
  for (std::size_t i = 0; i < done; ++i) take_back(sinks_[i].residual, corner, sinks_[i].split - amount);
  if (amount > 0) join(corner, amount);
}

void Splitter::join(const Corner& corner, Wide amount) {
  capacities_[corner.in] -= amount;
  capacities_[corner.out] -= amount;
  if (corner.past >= 0) capacities_[corner.past] += amount;
  std::vector<Route>& in = pieces_[corner.in];
  std::vector<Route>& out = pieces_[corner.out];
  while (amount > 0) {
    const Wide piece = std::min({amount, in.back().amount, out.back().amount});
    if (corner.past >= 0) {
      Route route{piece, in.back().path};
      route.path.insert(route.path.end(), out.back().path.begin() + 1, out.back().path.end());
      pieces_[corner.past].push_back(std::move(route));
    }
    for (std::vector<Route>* pieces : {&in, &out}) {
      pieces->back().amount -= piece;
      if (pieces->back().amount == 0) pieces->pop_back();
    }
    amount -= piece;
  }
}

/// Spreads evenly first, so that few routes lead over other compute nodes and trees can be flat; then whatever is left. A
/// pair that a sink has stopped stays stopped, so each is tried once; the theorem says that nothing is left at the end.
bool Splitter::remove(int node) {
  std::vector<int> ins;
  std::vector<int> outs;
  Wide total = 0;
  for (int other = 0; other < graph_.nodes(); ++other) {
    const auto found =
        arcs_.find(static_cast<std::int64_t>(std::min(node, other)) * graph_.nodes() + std::max(node, other));
    if (found == arcs_.end()) continue;
    const int out = found->second + (node < other ? 0 : 1);
    if (capacities_[out ^ 1] > 0) ins.push_back(other);
    if (capacities_[out] > 0) outs.push_back(other);
    total += capacities_[out];
  }
  constexpr std::size_t kSpreadMax = 16;
  if (std::max(ins.size(), outs.size()) <= kSpreadMax) {
    std::vector<std::pair<Corner, Wide>> shares;
    for (const int from : ins) {
      for (const int to : outs) {
        if (from == to) continue;
        const Corner at = corner(from, node, to);
        const double part = static_cast<double>(capacities_[at.out]) / static_cast<double>(total);
        const double share = static_cast<double>(capacities_[at.in]) * part + 0.5;  // any share is right
        shares.emplace_back(at, std::max<Wide>(static_cast<Wide>(share), 1));
      }
    }
    for (const auto& [at, share] : shares) split(at, share);
  }
  for (const bool turning : {false, true}) {
    for (std::size_t i = 0; i < ins.size(); ++i) {
      for (std::size_t j = 0; j < outs.size(); ++j) {
        const int to = outs[(i + j + 1) % outs.size()];
        if ((ins[i] == to) == turning) split(corner(ins[i], node, to), kUnlimited);
      }
    }
  }
  return std::ranges::all_of(ins, [&](int other) { return capacities_[arc_between(other, node)] == 0; }) &&
         std::ranges::all_of(outs, [&](int other) { return capacities_[arc_between(node, other)] == 0; });
}

/// A path that meets a switch again skips what lies between.
std::vector<int> without_loops(const std::vector<int>& path) {
  std::vector<int> simple;
  for (const int node : path) {
    const auto before = std::ranges::find(simple, node);
    simple.erase(before, simple.end());
    simple.push_back(node);
  }
  return simple;
}

std::vector<Route> Splitter::routes() const {
  std::vector<Route> routes;
  for (const auto& pieces : pieces_) {
    std::vector<Route> merged;
    for (const Route& piece : pieces) {
      const std::vector<int> path = without_loops(piece.path);
      const auto same = std::ranges::find(merged, path, &Route::path);
      if (same == merged.end()) {
        merged.push_back({piece.amount, path});
      } else {
        same->amount += piece.amount;
      }
    }
    routes.insert(routes.end(), merged.begin(), merged.end());
  }
  return routes;
}

}  // namespace

std::optional<std::vector<Route>> split_switches(int nodes, const std::vector<Flow>& flows, const Demand& demand) {
  Splitter splitter(nodes, flows, demand);
  if (!splitter.demand_met()) return std::nullopt;
  std::vector<int> degrees(nodes, 0);
  for (const Flow& flow : flows) {
    ++degrees[flow.from];
    ++degrees[flow.to];
  }
  std::vector<int> switches;
  for (int node = 0; node < nodes; ++node) {
    if (degrees[node] > 0 && !std::ranges::binary_search(demand.compute, node)) switches.push_back(node);
  }
  std::ranges::stable_sort(switches, {}, [&](int node) { return degrees[node]; });
  for (const int node : switches) {
    if (!splitter.remove(node)) return std::nullopt;
  }
  return splitter.routes();
}

}  // namespace tutti::topology
