#include "topology/branchings.h"

#include "topology/max_flow.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace tutti::topology {

namespace {

/// A branching that does not span yet.
struct Growing {
  Branching tree;
  std::vector<char> reached;
  std::vector<int> depths;
  std::size_t count = 1;
};

/// Routes between the same two nodes, largest last.
struct Bundle {
  int from = 0;
  int to = 0;
  int arc = 0;
  Wide left = 0;
  std::vector<Route> routes;
};

/// The invariant: into every set X of compute nodes still lead arcs for all branchings, at their amounts, that have not
/// reached X. How much of an arc (a, b) a branching may take is then a minimum cut over the X that hold b but not a: what
/// leads in, less the amounts of the other branchings that still need to come in.
class Grower {
 public:
  Grower(int nodes, std::vector<Route> routes, const Demand& demand, Wide amount_max);
  std::optional<std::vector<Branching>> grow_all();

 private:
  bool grow_one(Growing growing, std::vector<Branching>& done);
  std::vector<int> candidates(const Growing& growing) const;
  Wide allowed(const Bundle& bundle, Wide most);
  std::optional<Growing> next();
  void rebuild();

  int nodes_;
  Wide amount_max_;
  std::vector<int> compute_;
  std::vector<Bundle> bundles_;
  std::vector<std::pair<int, Wide>> bare_;  ///< roots whose branchings have no edge yet
  std::vector<Growing> waiting_;            ///< with edges; each has reached all that the one before it has
  Wide waiting_amount_ = 0;                 ///< of both
  FlowGraph graph_{0};
  std::vector<int> source_arcs_;  ///< by node
  FlowGraph::Residual capacities_, scratch_;
};

Grower::Grower(int nodes, std::vector<Route> routes, const Demand& demand, Wide amount_max)
    : nodes_(nodes), amount_max_(amount_max), compute_(demand.compute), source_arcs_(nodes, 0) {
  std::map<std::pair<int, int>, std::size_t> places;
  for (Route& route : routes) {
    const auto [place, is_new] = places.try_emplace({route.from(), route.to()}, bundles_.size());
    if (is_new) bundles_.push_back({route.from(), route.to()});
    Bundle& bundle = bundles_[place->second];
    bundle.left += route.amount;
    bundle.routes.push_back(std::move(route));
  }
  for (Bundle& bundle : bundles_) std::ranges::sort(bundle.routes, {}, &Route::amount);
  for (const int node : compute_) {
    waiting_amount_ += demand.weights[node];
    if (demand.weights[node] > 0) bare_.emplace_back(node, demand.weights[node]);
  }
}

/// Writes what is left of the routes and which branchings wait into the graph. A waiting branching is a node that takes its
/// amount from the source and passes it to all it has reached: to what it has reached last, and to the one before it.
void Grower::rebuild() {
  graph_ = FlowGraph(nodes_ + 1);
  capacities_.clear();
  const auto add = [&](int from, int to, Wide capacity) {
    const int arc = graph_.add_arc(from, to);
    capacities_.insert(capacities_.end(), {capacity, 0});
    return arc;
  };
  for (Bundle& bundle : bundles_) {
    if (bundle.left > 0) bundle.arc = add(bundle.from, bundle.to, bundle.left);
  }
  for (const int node : compute_) source_arcs_[node] = add(nodes_, node, 0);
  for (const auto& [root, amount] : bare_) capacities_[source_arcs_[root]] = amount;
  int before = kNone;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const int waiting = graph_.add_node();
    add(nodes_, waiting, waiting_[i].tree.amount);
    if (before != kNone) add(waiting, before, kUnlimited);
    for (const int node : compute_) {
      if (waiting_[i].reached[node] != 0 && (i == 0 || waiting_[i - 1].reached[node] == 0))
        add(waiting, node, kUnlimited);
    }
    before = waiting;
  }
}

std::optional<Growing> Grower::next() {
  Growing growing;
  if (!waiting_.empty()) {
    growing = std::move(waiting_.back());
    waiting_.pop_back();
  } else if (!bare_.empty()) {
    const int root = bare_.back().first;
    const Wide amount = std::min(bare_.back().second, amount_max_);
    bare_.back().second -= amount;
    if (bare_.back().second == 0) bare_.pop_back();
    growing.tree = {amount, root, {}};
    growing.reached.assign(nodes_, 0);
    growing.depths.assign(nodes_, 0);
    growing.reached[root] = 1;
  } else {
    return std::nullopt;
  }
  waiting_amount_ -= growing.tree.amount;
  rebuild();
  return growing;
}

/// Those that can take the most first, so that branchings are not parted needlessly; then the flattest.
std::vector<int> Grower::candidates(const Growing& growing) const {
  std::vector<int> found;
  for (std::size_t i = 0; i < bundles_.size(); ++i) {
    const Bundle& bundle = bundles_[i];
    if (bundle.left > 0 && growing.reached[bundle.from] != 0 && growing.reached[bundle.to] == 0)
      found.push_back(static_cast<int>(i));
  }
  const auto most_of = [&](const Bundle& bundle) { return std::min(growing.tree.amount, bundle.routes.back().amount); };
  std::ranges::sort(found, [&](int a, int b) {
    const Bundle& left = bundles_[a];
    const Bundle& right = bundles_[b];
    const Wide left_most = most_of(left);
    const Wide right_most = most_of(right);
    if (left_most != right_most) return left_most > right_most;
    if (growing.depths[left.from] != growing.depths[right.from])
      return growing.depths[left.from] < growing.depths[right.from];
    if (left.left != right.left) return left.left > right.left;
    return a < b;
  });
  return found;
}

Wide Grower::allowed(const Bundle& bundle, Wide most) {
  scratch_ = capacities_;
  scratch_[source_arcs_[bundle.from]] = kUnlimited;
  return graph_.augment(scratch_, nodes_, bundle.to, waiting_amount_ + most) - waiting_amount_;
}

bool Grower::grow_one(Growing growing, std::vector<Branching>& done) {
  std::vector<char> blocked(bundles_.size(), 0);  // a set that forbids an arc forbids it until the branching is done
  while (growing.count < compute_.size()) {
    constexpr int kPartialMax = 4;
    int best = -1;
    int partial = 0;
    Wide best_amount = 0;
    for (const int candidate : candidates(growing)) {
      if (blocked[candidate] != 0) continue;
      const Bundle& bundle = bundles_[candidate];
      const Wide most = std::min(growing.tree.amount, bundle.routes.back().amount);
      const Wide amount = most <= best_amount ? 0 : allowed(bundle, most);
      if (most > best_amount && amount == 0) blocked[candidate] = 1;
      if (amount <= best_amount) continue;
      best = candidate;
      best_amount = amount;
      if (amount == growing.tree.amount || ++partial == kPartialMax) break;
    }
    if (best < 0) return false;
    Bundle& bundle = bundles_[best];
    if (best_amount < growing.tree.amount) {
      Growing rest = growing;
      rest.tree.amount -= best_amount;
      growing.tree.amount = best_amount;
      for (Route& edge : growing.tree.edges) edge.amount = best_amount;
      for (Route& edge : rest.tree.edges) edge.amount = rest.tree.amount;
      waiting_amount_ += rest.tree.amount;
      waiting_.push_back(std::move(rest));
      rebuild();
    }
    growing.tree.edges.push_back({best_amount, bundle.routes.back().path});
    growing.reached[bundle.to] = 1;
    growing.depths[bundle.to] = growing.depths[bundle.from] + 1;
    ++growing.count;
    bundle.left -= best_amount;
    capacities_[bundle.arc] = bundle.left;
    bundle.routes.back().amount -= best_amount;
    if (bundle.routes.back().amount == 0) bundle.routes.pop_back();
    std::ranges::sort(bundle.routes, {}, &Route::amount);
  }
  done.push_back(std::move(growing.tree));
  return true;
}

std::optional<std::vector<Branching>> Grower::grow_all() {
  std::vector<Branching> done;
  while (std::optional<Growing> growing = next()) {
    if (!grow_one(std::move(*growing), done)) return std::nullopt;
  }
  return done;
}

}  // namespace

std::optional<std::vector<Branching>> pack_branchings(int nodes, std::vector<Route> routes, const Demand& demand,
                                                      Wide amount_max) {
  return Grower(nodes, std::move(routes), demand, amount_max).grow_all();
}

}  // namespace tutti::topology
