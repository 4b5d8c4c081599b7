// Rounding a network to units of bandwidth: how large a unit may be so that a given number of unit trees still fits.
#pragma once

#include "topology/bounds.h"
#include "topology/network.h"
#include "topology/rational.h"

#include <map>

namespace tutti::topology {

/// What the capacities hold of whole units, less where a switch would else have an odd number of them: no unit could be
/// balanced there.
Network in_units(const Network& network, const Rational& unit);

/// Finds how large units can be. For one network, many numbers of trees.
class UnitSearch {
 public:
  /// `bound` is the network's own, its rate above 0. The network is full duplex.
  UnitSearch(const Network& network, const PartitionBound& bound);

  /// The largest unit for which the partition that binds allows `trees` trees: no unit can be larger, and finding it is
  /// cheap. 0 if it would give up more than half.
  Rational promised(int trees) const;
  /// A unit for which every partition of in_units() allows `trees` trees, close to the largest there is and at most `most`,
  /// which is above 0; 0 if none is found that gives up less than half.
  Rational largest(int trees, const Rational& most) const;

 private:
  const Network& network_;
  Rational bound_;
  Wide blocks_;
  std::map<Bandwidth, Wide> crossing_;  ///< capacities of arcs that leave the partition's sets, and how many have it
  std::map<Bandwidth, Wide> all_;
};

/// What the capacities hold of whole units. A full-duplex network stays one.
Network whole_units(const Network& network, const Rational& unit);

/// The same for all-gathers: of `trees` unit trees from every compute node, on whole_units().
class GatherUnitSearch {
 public:
  /// `bound` is the network's own, its rate above 0. The network is full duplex.
  GatherUnitSearch(const Network& network, const CutBound& bound);

  Rational promised(int trees) const;
  Rational largest(int trees, const Rational& most) const;

 private:
  const Network& network_;
  Rational each_;  ///< of the bound, from every compute node
  Wide inside_ = 0;
  std::map<Bandwidth, Wide> crossing_;
  std::map<Bandwidth, Wide> all_;
};

}  // namespace tutti::topology
