// Hierarchical plans for ranks that share hosts: sums inside each host first, one pattern of the table across the hosts on
// each rail, results spread inside again. It asks for nothing but who shares a host with whom: which ranks should carry
// what is the planner's matter.
#pragma once

#include "algorithm/algorithm.h"

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace tutti::algorithm {

struct Hierarchy {
  /// By host, its ranks: all ranks once, no host empty. Rails join ranks of equal places in their groups.
  std::vector<std::vector<int>> groups;
  /// By host, those of its ranks that talk to other hosts, in the order of rails. Empty: all of every group.
  std::vector<std::vector<int>> carriers;
  /// The row of the table that goes across: one of across_patterns().
  std::string_view across = "ring";
  /// Parts of a round that follow each other through a tree or chain; 1 where the row is none.
  int chunks = 1;
  /// All chunks take a step of the row before any takes the next one, so that while one's message is on its way others' are sent. Needs
  /// one slot more than chunks. Not for trees, in which chunks do that anyway.
  bool abreast = false;
};

/// The rows that can go across hosts, those for large messages first; none for a collective that has no hierarchical form.
std::span<const std::string_view> across_patterns(Collective collective);

/// Of a request whose groups are hosts: all ranks carry, each pattern in as many parts as it gains from.
Hierarchy hierarchy_of(const schedule::Request& request, std::string_view across);

/// All collectives but send and receive. Needs two slots.
schedule::Shape hierarchical_shape(const schedule::Request& request, const Hierarchy& hierarchy);

/// This rank's program, in time that grows with its own steps.
schedule::RankProgram hierarchical(const schedule::Request& request, const Hierarchy& hierarchy, int rank);

/// Each rank's in turn, without the work that all have in common being done again.
void hierarchical_each(const schedule::Request& request, const Hierarchy& hierarchy,
                       const std::function<void(int rank, schedule::RankProgram program)>& visit);

/// All ranks' programs.
schedule::Schedule hierarchical(const schedule::Request& request, const Hierarchy& hierarchy);

}  // namespace tutti::algorithm
