// tutti_fold: collectives as sums and copies straight between buffers. A call is cut into parts: some ranks' blocks in, summed in rank
// order or copied, to some ranks' blocks out.
//
//                    fused: all ranks' parts            per rank r: what r does, between opening and closing
//   all_reduce       sum all -> all                     its unit:  sum all -> all            (two-shot, direct)
//   reduce           sum all -> root                    its unit:  sum all -> root
//   broadcast        root -> all                        its unit:  root -> all
//   reduce_scatter   each k: sum all's block k -> k     sum all's block r -> r
//   all_gather       each k: k -> all's block k         r -> all's block r
//   all_to_all       each i, j: i's block j -> j's i    each j: r's block j -> j's block r
//   gather           each k: k -> root's block k        r -> root's block r
//   scatter          each k: root's block k -> k        root's block r -> r
//   send             root -> root                       -
//
// Why it is right:
//  F1. No element is written by two threads, and whoever writes one has read it before, if anybody reads it: parts write disjoint places,
//      and what a part writes in place is what the same thread has just read (payload.h), or read by nobody else in the call.
//      So fused launches need no order between blocks.
//  F2. Per rank: the opening is the order between what peers' streams did before and this launch's accesses; the closing between
//      those and what peers' streams do afterwards. For several ranks (FoldMembers): the order of their streams is, in place of both.
#pragma once

#include "cuda/kernel_abi.h"
#include "cuda/opening.h"
#include "cuda/payload.h"
#include "cuda/waiting.h"
#include "schedule/tiling.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

struct FoldShared {
  Buffers buffers;
  const void* sources[kRanksMax];
  void* destinations[kRanksMax];
  const void* scales[kRanksMax];
};

struct FoldPart {
  static constexpr std::uint32_t kAll = ~0u;
  std::uint32_t source = kAll;  ///< a rank, or the sum of all in rank order
  std::uint32_t source_block = 0;
  std::uint32_t destination = kAll;
  std::uint32_t destination_block = 0;
  schedule::Piece piece;  ///< of each block
};

/// The parts of a call, all of them or those of one rank.
class FoldParts {
 public:
  TUTTI_DEVICE_CALL FoldParts(const FoldCall& call, bool fused, std::uint32_t rank, std::uint32_t element_bytes)
      : call_(call), fused_(fused), rank_(rank), element_bytes_(element_bytes) {}

  TUTTI_DEVICE_CALL std::uint32_t count() const {
    switch (call_.collective) {
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kBroadcast:
      case Collective::kSend: return 1;
      case Collective::kAllToAll: return fused_ ? call_.ranks * call_.ranks : call_.ranks;
      default: return fused_ ? call_.ranks : 1;
    }
  }
  TUTTI_DEVICE_CALL FoldPart part(std::uint32_t k) const {
    const std::uint32_t who = fused_ ? k % call_.ranks : rank_;
    const std::uint32_t other = fused_ ? k / call_.ranks : k;
    const std::uint32_t root = call_.root;
    constexpr std::uint32_t kAll = FoldPart::kAll;
    switch (call_.collective) {
      case Collective::kAllReduce: return {kAll, 0, kAll, 0, unit()};
      case Collective::kReduce: return {kAll, 0, root, 0, unit()};
      case Collective::kBroadcast: return {root, 0, kAll, 0, unit()};
      case Collective::kReduceScatter: return {kAll, who, who, 0, whole()};
      case Collective::kAllGather: return {who, 0, kAll, who, whole()};
      case Collective::kAllToAll: return {who, other, other, who, whole()};
      case Collective::kGather: return {who, 0, root, who, whole()};
      case Collective::kScatter: return {root, who, who, 0, whole()};
      default: return {root, 0, root, 0, whole()};
    }
  }

 private:
  TUTTI_DEVICE_CALL schedule::Piece whole() const { return {0, call_.count}; }
  /// One unit per rank; alone it does all of them.
  TUTTI_DEVICE_CALL schedule::Piece unit() const {
    if (fused_) return whole();
    schedule::Tiling tiling;
    tiling.count = call_.count;
    tiling.element_bytes = element_bytes_;
    tiling.units = call_.ranks;
    return schedule::Tiling::piece_in_slab(call_.count, tiling.unit_count(call_.count), rank_, 1);
  }

  const FoldCall& call_;
  bool fused_;
  std::uint32_t rank_;
  std::uint32_t element_bytes_;
};

template <class Thread, class Type>
class FoldKernel {
 public:
  using Element = typename Type::Element;

  TUTTI_DEVICE_CALL FoldKernel(Thread& thread, const FoldLaunch& launch, FoldShared& shared)
      : t_(thread), launch_(launch), shared_(shared) {}

  TUTTI_DEVICE_CALL void run() {
    const FoldCall& call = own_call();
    take_own(call);
    t_.sync();
    if (launch_.home == nullptr) return run_parts(call, true, 0);
    if (launch_.members.bits != 0) return run_for_members(call);
    const RankHome& home = *launch_.home;
    const std::uint64_t sequence = t_.load(&home.state->announced_sequence) + 1;
    Opening<Thread> opening(t_, home, sequence, launch_.announced, shared_.buffers.factors[home.rank]);
    opening.announce();
    if (!opening.learn(shared_.buffers)) return;
    run_parts(call, false, home.rank);
    close_with_peers(t_, home, sequence);
    count_call(t_, *home.state, home.state->announced_sequence, t_.blocks());
  }

 private:
  TUTTI_DEVICE_CALL const FoldCall& own_call() const {
    std::uint32_t k = 0;
    while (k + 1 < launch_.call_count && t_.block() >= launch_.calls[k + 1].first_block) ++k;
    return launch_.calls[k];
  }
  TUTTI_DEVICE_CALL void run_for_members(const FoldCall& call) {
    const RankHome& home = *launch_.home;
    const FoldMembers& members = launch_.members;
    if (members.learns) return learn_members(t_, home, members, launch_.announced.fingerprint, shared_.buffers);
    if (!take_learned(t_, home, shared_.buffers)) return;
    if (members.bits == (1u << call.ranks) - 1) return run_parts(call, true, 0);
    for (std::uint32_t rank = 0; rank < call.ranks; ++rank) {
      if ((members.bits >> rank & 1) == 0) continue;
      t_.sync();
      run_parts(call, false, rank);
    }
  }

  /// Of this launch's ranks.
  TUTTI_DEVICE_CALL void take_own(const FoldCall& call) {
    const std::uint32_t rank = t_.index();
    if (rank >= call.ranks || (launch_.home != nullptr && rank != launch_.home->rank)) return;
    shared_.buffers.inputs[rank] = call.inputs[rank];
    shared_.buffers.outputs[rank] = call.outputs[rank];
    shared_.buffers.factors[rank] = call.scaled ? value_of(t_, launch_.factors[rank], sizeof(Element)) : 0;
  }

  /// Blocks begin with different parts' first elements, so that short parts are not all left to the same block.
  TUTTI_DEVICE_CALL void run_parts(const FoldCall& call, bool fused, std::uint32_t rank) {
    const FoldParts parts(call, fused, rank, sizeof(Element));
    const std::uint32_t own = t_.block() - call.first_block;
    for (std::uint32_t k = 0; k < parts.count(); ++k) {
      if (k != 0) t_.sync();
      run_part(call, parts.part(k), {(own + k) % call.block_count, call.block_count});
    }
  }
  TUTTI_DEVICE_CALL void run_part(const FoldCall& call, const FoldPart& part, Workers workers) {
    const bool from_all = part.source == FoldPart::kAll;
    const bool to_all = part.destination == FoldPart::kAll;
    const std::uint32_t rank = t_.index();
    if (rank < call.ranks) {
      const std::uint64_t from = (part.source_block * call.count + part.piece.offset) * sizeof(Element);
      const std::uint64_t to = (part.destination_block * call.count + part.piece.offset) * sizeof(Element);
      const Buffers& b = shared_.buffers;
      // Of one source or destination every thread's slot is the same: the first.
      shared_.sources[rank] = static_cast<const unsigned char*>(b.inputs[from_all ? rank : part.source]) + from;
      shared_.destinations[rank] = static_cast<unsigned char*>(b.outputs[to_all ? rank : part.destination]) + to;
      shared_.scales[rank] = &b.factors[from_all ? rank : part.source];
    }
    t_.sync();
    ReduceArgs args;
    args.sources = shared_.sources;
    args.source_count = from_all ? static_cast<int>(call.ranks) : 1;
    args.destinations = shared_.destinations;
    args.destination_count = to_all ? static_cast<int>(call.ranks) : 1;
    args.count = part.piece.count;
    args.scales = call.scaled ? shared_.scales : nullptr;
    args.divisor = from_all ? call.divisor : 0;
    fold<Type>(t_, call.op, args, workers);
  }

  Thread& t_;
  const FoldLaunch& launch_;
  FoldShared& shared_;
};

}  // namespace tutti::cuda
