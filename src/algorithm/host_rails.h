// Rails across hosts: which rank of each host a part of the data goes through. Hierarchical plans are made of these.
#pragma once

#include "algorithm/pattern.h"

#include <vector>

namespace tutti::algorithm {

/// One rail, or some next to each other that lead through the same ranks everywhere.
struct Rail {
  int first = 0;
  int count = 1;
  int pass = 0;             ///< rails that share an owner differ in it
  std::vector<int> owners;  ///< by host: the rank that talks to the other hosts
};

class HostRails {
 public:
  using Groups = std::vector<std::vector<int>>;

  /// The groups have every rank once; carriers are some of each group, or all where there are none given. `units`: what the
  /// pattern across cuts a rail's part into.
  HostRails(Collective collective, const Groups& groups, const Groups& carriers, int units);

  /// Whether blocks belong to ranks: there a rail has a part of each host's blocks, elsewhere a part of the one block.
  static bool by_block(Collective collective);

  int hosts() const { return static_cast<int>(groups_.size()); }
  const std::vector<int>& group(int host) const { return groups_[index(host)]; }
  int host_of(int rank) const { return host_of_[index(rank)]; }
  int place_of(int rank) const { return place_of_[index(rank)]; }
  const std::vector<Rail>& rails() const { return rails_; }
  int passes() const { return passes_; }
  int units_in_all() const { return units_in_all_; }

  /// Units `unit` to `unit + width - 1` of the pattern on this rail, of a part of the whole that follows `chunk` others.
  schedule::Span units(const Rail& rail, int chunk, std::uint32_t unit, std::uint32_t width) const;
  /// The rail's part of the host's blocks lies in the home's: all of it in one, none if the width is 0.
  int home(const Rail& rail, int host) const;
  schedule::Span part(const Rail& rail, int host) const;

  /// The rank of `host` that passes on what goes to this rank of another host.
  int carrier_towards(int host, int rank) const;

 private:
  int size(int host) const { return static_cast<int>(groups_[index(host)].size()); }
  int owner(int host, int rail) const;
  std::vector<int> owners(int rail) const;
  bool continues(const Rail& rail, int next) const;
  int count_units() const;
  void assign_passes();

  Groups groups_;
  Groups carriers_;
  bool by_block_;
  int rails_in_all_ = 1;
  bool cuts_blocks_ = true;  ///< otherwise a block is on one rail
  int row_units_;
  int units_in_all_ = 1;
  std::vector<int> host_of_, place_of_;  ///< by rank
  std::vector<Rail> rails_;
  int passes_ = 1;
};

/// All-to-all: what goes to place p of another host leaves through the sender's rank of place p, block by block.
LaneProgram exchange_by_rails(const HostRails& rails, int rank);

/// Gather and scatter: what crosses passes the rank of its place on the root's host.
LaneProgram collect_by_rails(const HostRails& rails, Collective collective, int root, int rank);

}  // namespace tutti::algorithm
