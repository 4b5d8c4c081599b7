// Which links the messages of a schedule cross, and how long the fullest one takes: what a plan for large messages comes
// down to.
#pragma once

#include "schedule/schedule.h"
#include "topology/network.h"

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace tutti::planner {

/// Part of what goes from one rank to another: arcs of the network, in any order, and how much of it crosses each.
using Route = std::vector<std::pair<int, double>>;

/// Ways through a network whose nodes 0 to ranks - 1 are the ranks (topology/view.h).
class Routes {
 public:
  explicit Routes(const topology::Network& network);

  /// In `lane` the messages from the path's first node to its last one go along it; if several paths are given, in equal
  /// parts.
  void add_path(int lane, const std::vector<int>& path);
  void forget_paths() { paths_.clear(); }

  /// The way from one rank to another, through switches alone: the shortest, of these the widest, of equally wide ones each
  /// in equal parts at every branch. Nothing if there is none.
  const std::optional<Route>& shortest(int from, int to);  ///< soonest for pairs in order of `to`

  /// The route of a lane's messages: along its paths or, where it has none, the shortest. Nothing if there is none.
  std::optional<Route> route(int lane, int from, int to);

  const topology::Network& network() const { return network_; }

 private:
  /// By node: hops to a rank through switches alone, and the width of the widest such way.
  struct Towards {
    std::vector<int> hops;
    std::vector<topology::Bandwidth> width;
    std::vector<int> order;  ///< nodes with a way, the nearest first
  };
  Towards search(int to) const;
  std::optional<Route> follow(const Towards& way, int from, int to) const;

  const topology::Network& network_;
  std::vector<std::vector<int>> leaving_, entering_;  ///< arcs by node
  std::map<std::pair<int, int>, int> arcs_;
  std::map<std::tuple<int, int, int>, std::vector<Route>> paths_;  ///< by lane, from, to
  std::map<int, Towards> towards_;                                 ///< by rank, of late
  std::map<std::pair<int, int>, std::optional<Route>> shortest_;
  std::vector<char> computes_;  ///< by node
};

/// What a schedule comes to where messages are large: bytes go through all lanes at once and each link at its bandwidth.
struct SteadyState {
  double gbps = 0;   ///< bytes per rank of an all-reduce, or in all of an all-gather or reduce-scatter, over the time
  int fullest = -1;  ///< the arc that takes longest
};

/// What the ranks of a schedule send to each other; it need not be there as a whole.
class Traffic {
 public:
  explicit Traffic(int ranks) : units_(static_cast<std::size_t>(ranks)) {}

  void add(int rank, const schedule::RankProgram& program);
  /// Nothing if some message has no route.
  std::optional<SteadyState> steady_state(const schedule::Shape& shape, Routes& routes) const;

 private:
  std::vector<double> units_;                         ///< by peer, for add
  std::map<std::tuple<int, int, int>, double> sent_;  ///< units by receiver, lane and sender
};

/// Nothing if some message has no route.
std::optional<SteadyState> steady_state(const schedule::Schedule& schedule, Routes& routes);

}  // namespace tutti::planner
