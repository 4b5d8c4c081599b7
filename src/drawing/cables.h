// A machine's links as a drawing needs them: both directions of a cable as one, with whether they count and whether they
// cross what binds; and the nodes' blocks.
#pragma once

#include "planner/machine_plan.h"
#include "topology/graph.h"
#include "topology/view.h"

#include <string>
#include <vector>

namespace tutti::drawing {

/// What is drawn. Everything has to outlive the drawing.
struct Subject {
  std::string name;                 ///< of the machine
  std::string contents;             ///< in a line: "8 GPUs, 4 NICs, 2 NUMA nodes"
  std::string question;             ///< "all_reduce of 8 GPUs"
  std::string links;                ///< which are counted: "over all links"
  std::vector<std::string> blocks;  ///< of the partition, or what is inside and outside the cut: their ranks
  const topology::Graph& graph;
  const topology::View& view;
  const planner::MachinePlan& plan;
};

/// Between nodes of the graph, or later between boxes.
struct Cable {
  int a = topology::kNone;
  int b = topology::kNone;
  topology::LinkKind kind = topology::LinkKind::kPci;
  int count = 1;                  ///< NVLinks, or PCI lanes
  topology::Bandwidth there = 0;  ///< from a to b; 0: one way only
  topology::Bandwidth back = 0;
  bool counted = false;   ///< the bound's network has it
  bool crossing = false;  ///< it leaves a block, or the cut

  topology::Bandwidth widest() const { return there > back ? there : back; }
};

inline constexpr int kNoBlock = -1;

struct Marks {
  std::vector<Cable> cables;
  std::vector<int> rank;   ///< by graph node; kNone
  std::vector<int> block;  ///< by graph node: of the binding partition, or 0 inside the cut and 1 outside; kNoBlock
  std::vector<int> block_sizes;  ///< ranks
  bool all_single = false;       ///< every rank is a block
};

Marks mark(const Subject& subject);

/// By graph node: whether it is a switch or network that joins hosts, or lies between such.
std::vector<char> bars_outside(const Subject& subject, const Marks& marks);

}  // namespace tutti::drawing
