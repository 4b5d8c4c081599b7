#include "topology/bounds.h"

#include "topology/cuts.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

namespace tutti::topology {

namespace {

std::vector<int> marked(const std::vector<char>& marks) {
  std::vector<int> nodes;
  for (std::size_t node = 0; node < marks.size(); ++node) {
    if (marks[node] != 0) nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

Wide leaving(const Network& network, const std::vector<char>& inside) {
  Wide sum = 0;
  for (const Arc& arc : network.arcs) {
    if (inside[arc.from] != 0 && inside[arc.to] == 0) sum += arc.capacity;
  }
  return sum;
}

Wide count_compute(const Network& network, const std::vector<char>& inside) {
  return std::ranges::count_if(network.compute, [&](int node) { return inside[node] != 0; });
}

/// A set without `left_out` whose B+(S) / |S n C| is below `ratio`, or nothing.
std::optional<std::vector<char>> narrower(const Network& network, int left_out, const Rational& ratio) {
  Cuts cuts(network, ratio.denominator());
  for (const int node : network.compute) cuts.price_outside(node, ratio.numerator());
  cuts.price_inside(left_out, kUnlimited);
  const Wide all_outside = ratio.numerator() * static_cast<Wide>(network.compute.size());
  if (cuts.solve(all_outside) >= all_outside) return std::nullopt;
  return cuts.inside();
}

/// The partition that the greedy algorithm ends with, and what it shows about the rate.
struct Truncation {
  bool allowed = false;
  std::vector<std::vector<int>> blocks;
};

/// Minimises sum (w(Pi) - price) over all partitions, the one with a single block included, which gives -price as nothing
/// leaves it. The vector y stays below w - price on every set seen so far, and equal to it on the blocks: where they meet,
/// two such sets have an equal union (w is submodular), so the new one swallows the blocks it touches.
Truncation truncate(const Network& network, const Rational& price) {
  const std::vector<int>& compute = network.compute;
  Cuts cuts(network, price.denominator());
  std::vector<Wide> y(compute.size(), 0);
  std::vector<std::vector<int>> blocks;
  Wide total = 0;
  for (std::size_t i = 0; i < compute.size(); ++i) {
    cuts.clear();
    Wide rewards = 0;
    for (std::size_t j = 0; j < compute.size(); ++j) {
      if (j > i) {
        cuts.price_inside(compute[j], kUnlimited);
      } else if (j == i) {
        cuts.price_outside(compute[j], kUnlimited);
      } else if (y[j] > 0) {
        cuts.price_outside(compute[j], y[j]);
        rewards += y[j];
      } else {
        cuts.price_inside(compute[j], -y[j]);
      }
    }
    y[i] = cuts.solve() - rewards - price.numerator();
    total += y[i];
    const std::vector<char> inside = cuts.inside();
    std::vector<int> merged{compute[i]};
    std::erase_if(blocks, [&](const std::vector<int>& block) {
      if (std::ranges::none_of(block, [&](int node) { return inside[node] != 0; })) return false;
      merged.insert(merged.end(), block.begin(), block.end());
      return true;
    });
    blocks.push_back(std::move(merged));
  }
  return {total >= -price.numerator(), std::move(blocks)};
}

Rational blocks_rate(const Network& network, const std::vector<std::vector<int>>& blocks) {
  Wide sum = 0;
  for (const auto& block : blocks) sum += block_cut(network, block).capacity;
  return {sum, 2 * (static_cast<Wide>(blocks.size()) - 1)};
}

std::vector<std::vector<int>> single_blocks(const Network& network) {
  std::vector<std::vector<int>> blocks;
  for (const int node : network.compute) blocks.push_back({node});
  return blocks;
}

/// Each step either proves the rate of the blocks least, or ends with blocks of a lower one.
PartitionBound least_partition(const Network& network, PartitionBound::Form form) {
  PartitionBound bound;
  bound.form = form;
  bound.blocks = single_blocks(network);
  bound.rate = blocks_rate(network, bound.blocks);
  while (true) {
    Truncation found = truncate(network, bound.rate * Rational(2));
    if (found.allowed) break;
    bound.blocks = std::move(found.blocks);
    bound.rate = blocks_rate(network, bound.blocks);
  }
  for (auto& block : bound.blocks) std::ranges::sort(block);
  std::ranges::sort(bound.blocks);
  for (const auto& block : bound.blocks) bound.sets.push_back(block_cut(network, block).nodes);
  return bound;
}

/// The least B+(S) of all S that part the compute nodes: some root is in it or is not.
PartitionBound least_cut(const Network& network) {
  const Network back = reversed(network);
  PartitionBound bound;
  bound.form = PartitionBound::Form::kCut;
  std::vector<char> best;
  for (std::size_t i = 1; i < network.compute.size(); ++i) {
    for (const bool forward : {true, false}) {
      Cuts cuts(forward ? network : back);
      cuts.price_outside(network.compute.front(), kUnlimited);
      cuts.price_inside(network.compute[i], kUnlimited);
      const Rational rate(cuts.solve(), 1);
      if (!best.empty() && rate >= bound.rate) continue;
      bound.rate = rate;
      best = cuts.inside();
      if (forward) continue;
      for (char& mark : best) mark = mark == 0 ? 1 : 0;  // what enters the others leaves this side
    }
  }
  std::vector<char> rest = best;
  for (char& mark : rest) mark = mark == 0 ? 1 : 0;
  for (const auto& side : {best, rest}) {
    bound.sets.push_back(marked(side));
    bound.blocks.emplace_back();
    for (const int node : network.compute) {
      if (side[node] != 0) bound.blocks.back().push_back(node);
    }
  }
  return bound;
}

}  // namespace

Network reversed(const Network& network) {
  Network back = network;
  for (Arc& arc : back.arcs) std::swap(arc.from, arc.to);
  return back;
}

std::vector<double> usable_capacities(const Network& network, double rate) {
  const double most = 2 * rate * static_cast<double>(network.compute.size());
  std::vector<double> capacities;
  for (const Arc& arc : network.arcs) capacities.push_back(std::min(static_cast<double>(arc.capacity), most));
  return capacities;
}

CutBound all_gather_bound(const Network& network) {
  CutBound bound;
  const Wide count = static_cast<Wide>(network.compute.size());
  if (count < 2) {
    bound.unlimited = true;
    return bound;
  }
  std::vector<char> best(network.nodes, 1);  // everything but one compute node is a first guess
  best[network.compute.front()] = 0;
  Rational ratio(leaving(network, best), count - 1);
  for (const int left_out : network.compute) {
    while (auto found = narrower(network, left_out, ratio)) {
      best = std::move(*found);
      ratio = Rational(leaving(network, best), count_compute(network, best));
    }
  }
  bound.rate = ratio * Rational(count, 1);
  bound.nodes = marked(best);
  return bound;
}

bool all_gather_allows(const Network& network, const Rational& each) {
  return std::ranges::none_of(network.compute,
                              [&](int left_out) { return narrower(network, left_out, each).has_value(); });
}

CutBound reduce_scatter_bound(const Network& network) { return all_gather_bound(reversed(network)); }

PartitionBound all_reduce_bound(const Network& network) {
  PartitionBound bound;
  if (network.compute.size() < 2) {
    bound.unlimited = true;
    bound.blocks = bound.sets = single_blocks(network);
    return bound;
  }
  bound = least_partition(network, PartitionBound::Form::kOut);
  if (network.full_duplex()) return bound;
  for (PartitionBound other : {least_partition(reversed(network), PartitionBound::Form::kIn), least_cut(network)}) {
    if (other.rate < bound.rate) bound = std::move(other);
  }
  return bound;
}

bool all_reduce_allows(const Network& network, const Rational& rate) {
  return network.compute.size() < 2 || truncate(network, rate * Rational(2)).allowed;
}

BlockCut block_cut(const Network& network, const std::vector<int>& block) {
  Cuts cuts(network);
  for (const int node : network.compute) cuts.price_inside(node, kUnlimited);
  for (const int node : block) {
    cuts.price_inside(node, 0);
    cuts.price_outside(node, kUnlimited);
  }
  const Wide capacity = cuts.solve();
  return {capacity, marked(cuts.inside())};
}

Rational nccl_nvls_rate(Bandwidth per_gpu, int gpus) {
  return {static_cast<Wide>(per_gpu) * gpus, static_cast<Wide>(gpus) + 1};
}

Rational host_memory_bound(Bandwidth memory, int ranks) { return {memory, static_cast<Wide>(2) * ranks}; }

Rational block_memory_bound(Bandwidth memory, int ranks) {
  return {static_cast<Wide>(memory) * ranks, static_cast<Wide>(ranks) + 1};
}

int hops_bound(int ranks, bool all_at_once) {
  if (ranks < 2) return 0;
  return all_at_once ? 1 : static_cast<int>(std::bit_width(static_cast<unsigned>(ranks) - 1));
}

std::int64_t latency_bound_ns(int ranks, bool all_at_once, std::int64_t hop_ns) {
  return hops_bound(ranks, all_at_once) * hop_ns;
}

}  // namespace tutti::topology
