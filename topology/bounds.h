// What the links allow: upper limits for the algorithm bandwidth of collectives on a network, exact, with the cut or the
// partition that binds. Algorithm bandwidth: bytes per rank of an all-reduce, or bytes gathered in all by an all-gather,
// over the time.
//
// B+(S) is the capacity of the arcs that leave the node set S, C the compute nodes, N of them. Switches neither copy nor
// add.
#pragma once

#include "topology/network.h"
#include "topology/rational.h"

#include <cstddef>
#include <vector>

namespace tutti::topology {

/// A cut of ForestColl's kind (arXiv 2402.06787, section 4): what S holds has to leave it.
struct CutBound {
  Rational rate;           ///< kB/s; nothing if unlimited
  bool unlimited = false;  ///< fewer than two compute nodes: nothing has to move
  std::vector<int> nodes;  ///< S, ascending: some but not all compute nodes, and switches
};

/// N min B+(S) / |S n C| over the S that hold some but not all compute nodes: one minimum cut for each compute node that S
/// leaves out, and Newton's steps on the ratio (Dinkelbach 1967).
CutBound all_gather_bound(const Network& network);

/// Whether every cut lets `each` from every compute node reach all the others.
bool all_gather_allows(const Network& network, const Rational& each);

/// The same on the reversed network: `nodes` is the set that has to be entered.
CutBound reduce_scatter_bound(const Network& network);

/// A family of blocks that every byte has to leave and enter.
struct PartitionBound {
  enum class Form {
    kOut,  ///< sum of B+(Si) / (2 (k-1))
    kIn,   ///< the same with B-(Si); differs only where links are not full duplex
    kCut,  ///< B+(S) of one block alone: the first block's bytes have to leave it. One-way links only
  };
  Rational rate;
  bool unlimited = false;
  Form form = Form::kOut;
  std::vector<std::vector<int>> blocks;  ///< the compute nodes, parted: ascending, ordered by their first
  std::vector<std::vector<int>> sets;    ///< by block: with the switches on its side of its cut; these may overlap
};

/// The least of sum w(Pi) / (2 (k-1)) over the partitions of the compute nodes into k >= 2 blocks, w(P) the least B+(S) with
/// S n C = P. Newton's steps; each minimises sum (w(Pi) - rate) over all partitions at once (Dilworth truncation, by the
/// greedy algorithm with one minimum cut for each compute node). On networks that are not full duplex also the same with
/// what enters, and every single cut.
PartitionBound all_reduce_bound(const Network& network);

/// Whether every partition allows `rate`: one of Newton's steps.
bool all_reduce_allows(const Network& network, const Rational& rate);

/// w(P) with the smallest set that reaches it.
struct BlockCut {
  Wide capacity = 0;
  std::vector<int> nodes;
};
BlockCut block_cut(const Network& network, const std::vector<int>& block);

/// Where a switch can add and copy (NVLS), n GPUs each with `per_gpu` to it can have all of that: one of them sends what the switch
/// has added up of the others and it has finished, the others their inputs, so that each byte leaves each GPU once. NCCL has the
/// switch read its own share from the GPU that finishes it, too: of every n + 1 chunks' worth that leaves one, n are its inputs.
Rational nccl_nvls_rate(Bandwidth per_gpu, int gpus);

/// On host memory every input is read once and every output written once: `ranks` inputs and outputs over the bandwidth.
Rational host_memory_bound(Bandwidth memory, int ranks);
/// Of an all-gather or reduce-scatter among `ranks` with a memory each: one block in and all of them out, or the reverse.
Rational block_memory_bound(Bandwidth memory, int ranks);

/// Hops that information from every rank needs to reach every other: one where each can read all others at once, as many
/// as doublings where it talks to one at a time.
int hops_bound(int ranks, bool all_at_once);
std::int64_t latency_bound_ns(int ranks, bool all_at_once, std::int64_t hop_ns);

/// Capacities as floating point, for programmes: none larger than anything of this rate can use, as a schedule crosses an
/// arc at most 2 N times a byte. Huge ones beside small ones would cost digits.
std::vector<double> usable_capacities(const Network& network, double rate);

/// The same arcs the other way around.
Network reversed(const Network& network);

}  // namespace tutti::topology
