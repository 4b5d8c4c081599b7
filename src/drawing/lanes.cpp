#include "drawing/lanes.h"

#include "drawing/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

namespace tutti::drawing {
namespace {

using planner::MachineCandidate;
using plot::Anchor;
using plot::Canvas;
using schedule::Endpoint;
using schedule::LaneProgram;
using schedule::Place;
using schedule::Step;

constexpr double kRadius = 9;
constexpr double kNumbersRadius = 7;  ///< smaller dots have no numbers
constexpr double kTop = 22;           ///< of the picture below the lane's name
constexpr double kNameText = 11;
constexpr int kChordsRanksMax = 16;

using Edges = std::set<std::pair<int, int>>;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// The block that a step of all-gather or reduce-scatter is about; -1 if its places do not say it.
int block_of(const schedule::Schedule& schedule, std::size_t rank, const LaneProgram& program, const Step& step) {
  // Blocks have their ranks' numbers in the larger buffer; in the smaller one there is the rank's own alone.
  const bool gathers = schedule.request.collective == Collective::kAllGather;
  const Place large = gathers ? Place::kOutput : Place::kInput;
  bool is_own = false;
  for (const auto list : {program.sources(step), program.sinks(step)}) {
    for (const Endpoint& end : list) {
      if (end.width == 0 || end.place == Place::kPeer || end.place == Place::kScratch) continue;
      if (end.place == large) return static_cast<int>(end.block);
      is_own = true;
    }
  }
  return is_own ? static_cast<int>(rank) : -1;
}

/// Who sends to whom; about one block, or all (-1).
Edges messages(const schedule::Schedule& schedule, std::size_t lane, int block) {
  Edges edges;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (lane >= schedule.ranks[rank].lanes.size()) continue;
    const LaneProgram& program = schedule.ranks[rank].lanes[lane];
    for (const Step& step : program.steps) {
      if (block >= 0 && block_of(schedule, rank, program, step) != block) continue;
      for (const Endpoint& end : program.sinks(step)) {
        if (end.place == Place::kPeer && end.width > 0)
          edges.insert({static_cast<int>(rank), static_cast<int>(end.peer)});
      }
    }
  }
  return edges;
}

/// The one rank where the lane's sums are finished.
std::optional<int> finisher(const schedule::Schedule& schedule, std::size_t lane) {
  std::optional<int> found;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (lane >= schedule.ranks[rank].lanes.size()) continue;
    const auto& steps = schedule.ranks[rank].lanes[lane].steps;
    if (!std::ranges::any_of(steps, &Step::finish)) continue;
    if (found) return std::nullopt;
    found = static_cast<int>(rank);
  }
  return found;
}

/// By rank, its parent, if the edges are a tree from this root.
std::optional<std::vector<int>> tree_of(const Edges& edges, int ranks, int root) {
  std::vector<std::set<int>> around(at(ranks));
  std::size_t pairs = 0;
  for (const auto& [from, to] : edges) {
    pairs += around[at(from)].insert(to).second ? 1 : 0;
    around[at(to)].insert(from);
  }
  pairs = 0;
  for (const auto& set : around) pairs += set.size();
  if (pairs != 2 * at(ranks - 1)) return std::nullopt;
  std::vector<int> parents(at(ranks), -2);
  std::vector<int> queue{root};
  parents[at(root)] = -1;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const int next : around[at(queue[i])]) {
      if (parents[at(next)] != -2) continue;
      parents[at(next)] = queue[i];
      queue.push_back(next);
    }
  }
  if (queue.size() != at(ranks)) return std::nullopt;
  return parents;
}

std::optional<std::vector<int>> ring_of(const Edges& edges, int ranks) {
  std::map<int, int> next(edges.begin(), edges.end());
  if (ranks < 3 || edges.size() != at(ranks) || next.size() != at(ranks)) return std::nullopt;
  std::vector<int> order{0};
  for (int rank = next[0]; rank != 0 && order.size() < at(ranks); rank = next[rank]) order.push_back(rank);
  if (order.size() != at(ranks) || next[order.back()] != 0) return std::nullopt;
  return order;
}

LaneShape shape_of(const MachineCandidate& plan, int lane, int ranks) {
  if (!plan.trees.empty()) return {LaneShape::Form::kTree, plan.trees[at(lane)], ""};
  if (!plan.pairs.empty()) {
    const algorithm::TreePair& pair = plan.pairs[at(lane)];
    if (pair.up == pair.down) return {LaneShape::Form::kTree, pair.up, ""};
    return {LaneShape::Form::kTreePair, pair.up, "", 0, {}, pair.down};
  }
  const Edges edges = messages(plan.schedule, at(lane), -1);
  if (auto ring = ring_of(edges, ranks)) return {LaneShape::Form::kRing, std::move(*ring), ""};
  if (const auto root = finisher(plan.schedule, at(lane))) {
    if (auto parents = tree_of(edges, ranks, *root)) return {LaneShape::Form::kTree, std::move(*parents), ""};
  }
  return {};
}

/// All-gather and reduce-scatter through trees have one for each rank's block.
std::vector<LaneShape> block_trees(const MachineCandidate& plan, int ranks) {
  std::vector<LaneShape> shapes;
  for (int block = 0; block < std::min(ranks, kLanesDrawn); ++block) {
    const Edges edges = messages(plan.schedule, 0, block);
    auto parents = tree_of(edges, ranks, block);
    if (!parents) return {};
    shapes.push_back({LaneShape::Form::kTree, std::move(*parents), fmt::format("lane 0, the block of rank {}", block)});
  }
  return shapes;
}

std::string lanes_text(const std::vector<int>& lanes) {
  constexpr std::size_t kShown = 4;
  std::string text = lanes.size() == 1 ? "lane" : "lanes";
  for (std::size_t i = 0; i < std::min(lanes.size(), kShown); ++i)
    text += fmt::format("{} {}", i == 0 ? "" : ",", lanes[i]);
  return lanes.size() > kShown ? text + " \xe2\x80\xa6" : text;
}

bool is_of_trees(const LaneShape& shape) {
  return shape.form == LaneShape::Form::kTree || shape.form == LaneShape::Form::kTreePair;
}

/// Lanes of one shape once; those with roots of their own first.
std::vector<LaneShape> distinct_shapes(const MachineCandidate& plan, int ranks) {
  std::vector<LaneShape> shapes;
  const auto key = [](const LaneShape& shape) { return std::tuple(shape.form, shape.ranks, shape.down); };
  std::map<std::tuple<LaneShape::Form, std::vector<int>, std::vector<int>>, std::vector<int>> lanes;
  for (int lane = 0; lane < plan.lanes; ++lane) {
    LaneShape shape = shape_of(plan, lane, ranks);
    auto& same = lanes[key(shape)];
    if (same.empty()) shapes.push_back(std::move(shape));
    same.push_back(lane);
  }
  for (LaneShape& shape : shapes) {
    const std::vector<int>& same = lanes[key(shape)];
    shape.name = lanes_text(same);
    shape.first = same.front();
  }
  std::set<std::ptrdiff_t> roots;
  std::stable_partition(shapes.begin(), shapes.end(), [&](const LaneShape& shape) {
    const auto root = std::ranges::find(shape.ranks, -1) - shape.ranks.begin();
    return !is_of_trees(shape) || roots.insert(root).second;
  });
  return shapes;
}

std::string caption_of(const planner::MachinePlan& plan, const LaneSample& sample, std::size_t shapes) {
  const MachineCandidate& chosen = plan.chosen();
  std::string text = chosen.lanes == 1
                         ? "1 lane carries all bytes"
                         : fmt::format("{} lanes, each with 1/{} of the bytes", chosen.lanes, chosen.lanes);
  if (shapes > sample.shapes.size()) text += fmt::format("; {} of {} shapes are shown", sample.shapes.size(), shapes);
  if (sample.shapes.empty()) return text + ".";
  const bool all_reduce = plan.question.collective == Collective::kAllReduce;
  constexpr auto kForm = &LaneShape::form;
  const bool some_pairs = std::ranges::count(sample.shapes, LaneShape::Form::kTreePair, kForm) > 0;
  switch (some_pairs ? LaneShape::Form::kTreePair : sample.shapes.front().form) {
    case LaneShape::Form::kTreePair:
      text += ". Sums go up the tree, of two the left one, and the result comes down the right one";
      break;
    case LaneShape::Form::kTree:
      text += all_reduce ? ". Sums go up the tree, the result comes down it"
              : plan.question.collective == Collective::kAllGather
                  ? ". A rank's block goes down its tree; each lane has a tree for every rank"
                  : ". What belongs to a rank is summed up its tree; each lane has a tree for every rank";
      break;
    case LaneShape::Form::kRing: text += ". Every rank sends to the next of the ring"; break;
    case LaneShape::Form::kAllPairs:
      text += chosen.hierarchy.groups.empty()
                  ? ". Every rank exchanges with every other"
                  : fmt::format(". Ranks of a host exchange with each other, and with their likes on other hosts ({})",
                                chosen.hierarchy.across);
      if (plan.ranks > kChordsRanksMax) text += "; the messages of rank 0 are shown";
  }
  return text + ".";
}

struct Spot {
  double x = 0;
  double y = 0;
};

/// Leaves side by side, parents above the middle of their children.
class TreeSpots {
 public:
  TreeSpots(const std::vector<int>& parents, double width, double height)
      : children_(parents.size()), spots_(parents.size()) {
    int root = 0;
    for (std::size_t rank = 0; rank < parents.size(); ++rank) {
      if (parents[rank] < 0) {
        root = static_cast<int>(rank);
      } else {
        children_[at(parents[rank])].push_back(static_cast<int>(rank));
      }
    }
    place(root, 0);
    const double slot = width / std::max(1, leaves_);
    const double level = height / (depth_ + 1);
    for (Spot& spot : spots_) spot = {(spot.x + 0.5) * slot, (spot.y + 0.5) * level};
    radius = std::min({kRadius, slot / 2 - 1.5, level / 2 - 1.5});
  }

  const std::vector<Spot>& spots() const { return spots_; }
  double radius = 1;

 private:
  void place(int rank, int depth) {
    depth_ = std::max(depth_, depth);
    for (const int child : children_[at(rank)]) place(child, depth + 1);
    Spot& spot = spots_[at(rank)];
    spot.y = depth;
    if (children_[at(rank)].empty()) {
      spot.x = leaves_++;
    } else {
      spot.x = (spots_[at(children_[at(rank)].front())].x + spots_[at(children_[at(rank)].back())].x) / 2;
    }
  }

  std::vector<std::vector<int>> children_;
  std::vector<Spot> spots_;
  int leaves_ = 0;
  int depth_ = 0;
};

std::vector<Spot> circle_spots(int count, double width, double height, double radius) {
  std::vector<Spot> spots;
  for (int i = 0; i < count; ++i) {
    const double angle = 2 * std::numbers::pi * i / count - std::numbers::pi / 2;
    const double reach = std::min(width, height) / 2 - radius - 4;
    spots.push_back({width / 2 + reach * std::cos(angle), height / 2 + reach * std::sin(angle)});
  }
  return spots;
}

void draw_spots(const std::vector<Spot>& spots, const std::vector<int>& ranks, double radius, const char* colour,
                int root, Canvas& canvas) {
  const double dot = radius >= kNumbersRadius ? radius : std::clamp(radius, 0.8, 3.0);
  for (std::size_t i = 0; i < spots.size(); ++i) {
    const bool is_root = ranks[i] == root;
    canvas.circle(spots[i].x, spots[i].y, dot, is_root || dot < kNumbersRadius ? colour : kWhite, {colour, 1.4});
    if (dot < kNumbersRadius) continue;
    canvas.text(spots[i].x, spots[i].y + 3.5, fmt::format("{}", ranks[i]),
                {ranks[i] > 99 ? 7.5 : 9.5, is_root ? kWhite : kInk, Anchor::kMiddle, false});
  }
}

std::vector<Spot> moved(std::vector<Spot> spots, const plot::Box& box) {
  for (Spot& spot : spots) spot = {spot.x + box.left, spot.y + box.top};
  return spots;
}

std::vector<int> numbers_to(int count) {
  std::vector<int> numbers(at(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

void draw_tree(const std::vector<int>& parents, const plot::Box& box, const char* colour, Canvas& canvas) {
  const TreeSpots tree(parents, box.width, box.height);
  const std::vector<Spot> spots = moved(tree.spots(), box);
  for (std::size_t rank = 0; rank < spots.size(); ++rank) {
    if (parents[rank] < 0) continue;
    const Spot& above = spots[at(parents[rank])];
    canvas.line(above.x, above.y, spots[rank].x, spots[rank].y, {colour, tree.radius < 3 ? 0.8 : 1.8});
  }
  const auto root = std::ranges::find(parents, -1) - parents.begin();
  draw_spots(spots, numbers_to(static_cast<int>(parents.size())), tree.radius, colour, static_cast<int>(root), canvas);
}

/// Under the lane's name.
plot::Box picture_in(const plot::Box& box) { return {box.left, box.top + kTop, box.width, box.height - kTop}; }

/// Of the ranks' dots.
double radius_of(const LaneShape& shape, int ranks, const plot::Box& picture) {
  switch (shape.form) {
    case LaneShape::Form::kTree: return TreeSpots(shape.ranks, picture.width, picture.height).radius;
    case LaneShape::Form::kTreePair:
      return std::min(TreeSpots(shape.ranks, picture.width / 2, picture.height).radius,
                      TreeSpots(shape.down, picture.width / 2, picture.height).radius);
    case LaneShape::Form::kRing:
    case LaneShape::Form::kAllPairs: break;
  }
  const double around = std::numbers::pi * (std::min(picture.width, picture.height) - 3 * kRadius);
  return std::min(kRadius, around / std::max(ranks, 1) / 2);
}

/// Of a plan that goes by hosts.
std::set<std::pair<int, int>> chords_of(const MachineCandidate& plan) {
  std::set<std::pair<int, int>> chords;
  if (plan.hierarchy.groups.empty()) return chords;
  for (std::size_t rank = 0; rank < plan.schedule.ranks.size(); ++rank) {
    for (const schedule::LaneProgram& lane : plan.schedule.ranks[rank].lanes) {
      for (const schedule::Step& step : lane.steps) {
        for (const schedule::Endpoint& sink : lane.sinks(step)) {
          if (sink.place == schedule::Place::kPeer && sink.width != 0)
            chords.insert(std::minmax(static_cast<int>(rank), static_cast<int>(sink.peer)));
        }
      }
    }
  }
  return chords;
}

}  // namespace

LaneSample sample_lanes(const planner::MachinePlan& plan) {
  LaneSample sample;
  if (plan.ranks < 2) return sample;
  const MachineCandidate& chosen = plan.chosen();
  std::vector<LaneShape> shapes = distinct_shapes(chosen, plan.ranks);
  if (plan.question.collective != Collective::kAllReduce && chosen.algorithm == "packed_trees")
    shapes = block_trees(chosen, plan.ranks);
  const std::size_t count = shapes.size();
  if (shapes.size() > at(kLanesDrawn)) shapes.resize(at(kLanesDrawn));
  std::ranges::stable_sort(shapes, {}, &LaneShape::first);
  for (LaneShape& shape : shapes) shape.chords = chords_of(chosen);
  sample.shapes = std::move(shapes);
  sample.caption = caption_of(plan, sample, count);
  return sample;
}

bool has_numbers(const LaneShape& shape, int ranks, const plot::Box& box) {
  return radius_of(shape, ranks, picture_in(box)) >= kNumbersRadius;
}

void draw_lane(const LaneShape& shape, int ranks, int place, const plot::Box& box, Canvas& canvas) {
  const char* colour = kLanes[at(place) % kLanes.size()];
  canvas.rectangle(box, kGround, {kEdge}, 6);
  canvas.text(box.left + 8, box.top + 15, plot::fitted(shape.name, kNameText, box.width - 16, true),
              {kNameText, colour, Anchor::kStart, true});
  const plot::Box picture = picture_in(box);
  if (shape.form == LaneShape::Form::kTree) {
    draw_tree(shape.ranks, picture, colour, canvas);
    return;
  }
  if (shape.form == LaneShape::Form::kTreePair) {
    const double half = picture.width / 2;
    draw_tree(shape.ranks, {picture.left, picture.top, half, picture.height}, colour, canvas);
    draw_tree(shape.down, {picture.left + half, picture.top, half, picture.height}, colour, canvas);
    return;
  }
  const double radius = radius_of(shape, ranks, picture);
  const std::vector<Spot> spots =
      moved(circle_spots(ranks, picture.width, picture.height, std::max(radius, 2.0)), picture);
  for (std::size_t i = 0; i < spots.size(); ++i) {
    for (std::size_t j = i + 1; j < spots.size(); ++j) {
      const bool is_next = j == i + 1 || (i == 0 && j + 1 == spots.size());
      const bool is_chord = shape.chords.empty() || shape.chords.contains({static_cast<int>(i), static_cast<int>(j)});
      const bool is_drawn =
          shape.form == LaneShape::Form::kRing ? is_next : is_chord && (ranks <= kChordsRanksMax || i == 0);
      if (is_drawn)
        canvas.line(spots[i].x, spots[i].y, spots[j].x, spots[j].y,
                    {colour, shape.form == LaneShape::Form::kRing ? 2.0 : 1.0});
    }
  }
  draw_spots(spots, shape.form == LaneShape::Form::kRing ? shape.ranks : numbers_to(ranks), radius, colour, -1, canvas);
}

}  // namespace tutti::drawing
