// The best that rings reach: every compute node once, from one to the next through switches alone, as NCCL's search finds
// them. An upper limit for NCCL's own, whose channels share one bandwidth from a list.
#pragma once

#include "topology/network.h"

#include <vector>

namespace tutti::topology {

struct Ring {
  double rate = 0;         ///< kB/s on every link of its way
  std::vector<int> order;  ///< compute nodes
  std::vector<std::vector<int>>
      paths;  ///< by place: from there to the next, the last back to the first, with both ends
};

struct RingPacking {
  double rate = 0;          ///< algorithm bandwidth of all-reduce, kB/s: N / (2 (N - 1)) of the rings' rates together
  double limit = 0;         ///< no packing of rings is better, by the prices of the links; equal to rate where exact
  bool exact = false;       ///< proved best (to a millionth); beyond 16 compute nodes tours are sought, not proved
  std::vector<Ring> rings;  ///< none where no ring exists, or fewer than two compute nodes
};

/// Fractional packing of Hamiltonian cycles: a linear programme over all of them, of which only those are made that its
/// prices ask for (column generation; Held-Karp finds the cheapest). A few ms for 8 compute nodes, below a second for 64.
RingPacking pack_rings(const Network& network);

}  // namespace tutti::topology
