// tutti_lines: small and middle messages. Every rank pushes what its peers need into their line memory (kernel_abi.h: LineMemory), 8 bytes
// of data at a time in two words with flags (protocol/lines.h), and takes what it needs out of its own: no barrier, no fence, no
// mapped buffers.
//
//   one-shot    push own input (or the peer's block of it) -> take everybody's, sum in rank order or place
//   two-shot    push unit r of own input to rank r (phase 0) -> sum own unit in rank order -> push the sum to all (phase 1) -> place
//
// Each 8 bytes are one thread's through all phases, so no thread waits for another of its block.
//
// Why it is right, besides L1 to L5 of protocol/lines.h:
//  N1. Flags count the calls; a message has two turns of memory, by parity of the count. A rank pushes into the turn that a peer has read
//      in call s - 2 only in call s, after its own call s - 1, in which every block has seen the headers of all peers for s - 1; a
//      peer writes that header after its call s - 2 is over, as launches of a rank run one after the other. So every rank sends
//      every other one a header in every call, whether it has data for it or not.
//  N2. Calls that differ are found by their headers before any output is written; a peer that opens another kind of call instead by its
//      announce line (opening.h has the other half).
//  N3. In place: an element of the input is overwritten by the thread that has pushed it.
#pragma once

#include "cuda/kernel_abi.h"
#include "cuda/opening.h"
#include "cuda/payload.h"
#include "cuda/waiting.h"
#include "protocol/lines.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

template <class Thread, class Type>
class LinesKernel {
 public:
  TUTTI_DEVICE_CALL LinesKernel(Thread& thread, const LinesLaunch& launch)
      : t_(thread),
        launch_(launch),
        member_(thread.block() / launch.blocks_per_rank),
        block_(thread.block() % launch.blocks_per_rank),
        home_(*launch.homes[member_]),
        ranks_(home_.ranks),
        rank_(home_.rank),
        sequence_(thread.load(&home_.state->lines_sequence) + 1),
        waiting_(thread, home_, sequence_),
        block_bytes_(launch.count * sizeof(Element)) {
    flag_ = shape().flag(sequence_);
    if (launch.scaled) factor_ = value_of(thread, launch.factors[member_], sizeof(Element));
  }

  TUTTI_DEVICE_CALL void run() {
    send_headers();
    push_inputs();
    if (t_.any(!headers_agree())) return;
    const bool done = launch_.two_shot ? finish_two_shot() : reduces(launch_.collective) ? sum_all() : place_all();
    if (t_.any(!done)) return;
    count_call(t_, *home_.state, home_.state->lines_sequence, launch_.blocks_per_rank);
  }

 private:
  using Element = typename Type::Element;
  using Accumulator = typename Type::Accumulator;
  using Units = Packing<Type>;
  static constexpr std::uint64_t kUnitBytes = LineMemory::kUnitPayloadBytes;
  static constexpr std::uint32_t kBatch = 8;  ///< peers whose lines are looked at together

  TUTTI_DEVICE_CALL protocol::LineShape shape() const { return {LineMemory::kTurns, 0}; }
  TUTTI_DEVICE_CALL std::uint64_t first_unit() const { return std::uint64_t{block_} * t_.count() + t_.index(); }
  TUTTI_DEVICE_CALL std::uint64_t stride() const { return std::uint64_t{launch_.blocks_per_rank} * t_.count(); }
  TUTTI_DEVICE_CALL static std::uint64_t units_of(std::uint64_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes; }
  /// Of one rank's share in two-shot.
  TUTTI_DEVICE_CALL std::uint64_t share_units() const { return lines_share_bytes(block_bytes_, ranks_) / kUnitBytes; }
  /// What there is of the rank's share: the last ones may be short, or empty.
  TUTTI_DEVICE_CALL std::uint64_t units_in_share(std::uint32_t rank) const {
    const std::uint64_t share = share_units();
    const std::uint64_t units = units_of(block_bytes_);
    const std::uint64_t left = units > rank * share ? units - rank * share : 0;
    return left < share ? left : share;
  }

  // What the collective sends whom.

  TUTTI_DEVICE_CALL bool sends(std::uint32_t from, std::uint32_t to) const {
    switch (launch_.collective) {
      case Collective::kBroadcast:
      case Collective::kScatter: return from == launch_.root;
      case Collective::kReduce:
      case Collective::kGather: return to == launch_.root;
      default: return true;
    }
  }
  /// Of the sender's input.
  TUTTI_DEVICE_CALL std::uint64_t block_for(std::uint32_t to) const {
    const Collective c = launch_.collective;
    return c == Collective::kReduceScatter || c == Collective::kAllToAll || c == Collective::kScatter ? to : 0;
  }
  /// Of the receiver's output.
  TUTTI_DEVICE_CALL std::uint64_t block_from(std::uint32_t from) const {
    const Collective c = launch_.collective;
    return c == Collective::kAllGather || c == Collective::kAllToAll || c == Collective::kGather ? from : 0;
  }

  // Units of buffers. The last one of a block may be short.

  TUTTI_DEVICE_CALL std::uint64_t load_unit(std::uint64_t block, std::uint64_t unit) {
    const auto* const from =
        static_cast<const unsigned char*>(launch_.inputs[member_]) + block * block_bytes_ + unit * kUnitBytes;
    const std::uint64_t left = block_bytes_ - unit * kUnitBytes;
    std::uint64_t bits = 0;
    if (left >= kUnitBytes && reinterpret_cast<std::uintptr_t>(from) % kUnitBytes == 0) {
      bits = t_.load(reinterpret_cast<const std::uint64_t*>(from));
    } else {
      TUTTI_UNROLL
      for (int i = 0; i < Units::kCount; ++i) {
        if (i * sizeof(Element) < left) bits |= Units::placed(load_element<Element>(t_, from + i * sizeof(Element)), i);
      }
    }
    return launch_.scaled ? scaled(bits) : bits;
  }
  TUTTI_DEVICE_CALL void store_unit(std::uint64_t block, std::uint64_t unit, std::uint64_t bits) {
    auto* const to = static_cast<unsigned char*>(launch_.outputs[member_]) + block * block_bytes_ + unit * kUnitBytes;
    const std::uint64_t left = block_bytes_ - unit * kUnitBytes;
    if (left >= kUnitBytes && reinterpret_cast<std::uintptr_t>(to) % kUnitBytes == 0) {
      return t_.store(reinterpret_cast<std::uint64_t*>(to), bits);
    }
    TUTTI_UNROLL
    for (int i = 0; i < Units::kCount; ++i) {
      if (i * sizeof(Element) < left) store_element<Element>(t_, to + i * sizeof(Element), Units::element(bits, i));
    }
  }
  /// Rounded to the data type, as a source with a factor is anywhere.
  TUTTI_DEVICE_CALL std::uint64_t scaled(std::uint64_t bits) const {
    Accumulator values[Units::kCount];
    Units::unpack(bits, values);
    const Accumulator by = Type::decode(Units::element(factor_, 0));
    TUTTI_UNROLL
    for (int i = 0; i < Units::kCount; ++i) values[i] = Type::product(values[i], by);
    return Units::pack(values);
  }

  // Lines.

  TUTTI_DEVICE_CALL std::uint64_t* message(std::uint32_t owner, std::uint32_t phase, std::uint32_t sender) const {
    return home_.lines[owner] + home_.line_memory.at(ranks_, sequence_, phase, sender);
  }
  TUTTI_DEVICE_CALL std::uint64_t* unit_at(std::uint32_t owner, std::uint32_t phase, std::uint32_t sender,
                                           std::uint64_t unit) const {
    return message(owner, phase, sender) + 2 + 2 * unit;
  }
  TUTTI_DEVICE_CALL void store_line(std::uint64_t* to, std::uint64_t bits) {
    t_.store_words(to, flag_ << 32 | (bits & 0xffffffffu), flag_ << 32 | bits >> 32);
  }
  TUTTI_DEVICE_CALL bool has_come(const std::uint64_t (&words)[2]) const {
    return words[0] >> 32 == flag_ && words[1] >> 32 == flag_;
  }
  TUTTI_DEVICE_CALL static std::uint64_t data_of(const std::uint64_t (&words)[2]) {
    return (words[0] & 0xffffffffu) | words[1] << 32;
  }
  TUTTI_DEVICE_CALL void push(std::uint32_t peer, std::uint32_t phase, std::uint64_t unit, std::uint64_t bits) {
    store_line(unit_at(peer, phase, rank_, unit), bits);
  }
  /// The rest of a message's memory, in calls that must not leave old flags (L3).
  TUTTI_DEVICE_CALL void fill(std::uint32_t peer, std::uint32_t phase, std::uint64_t units) {
    if (!shape().fills(sequence_)) return;
    for (std::uint64_t u = first_unit(); u < home_.line_memory.units; u += stride()) {
      if (u >= units) push(peer, phase, u, 0);
    }
  }

  TUTTI_DEVICE_CALL void send_headers() {
    const std::uint32_t peer = t_.index();
    if (block_ != 0 || peer >= ranks_ || peer == rank_) return;
    const std::uint64_t twice = std::uint64_t{launch_.fingerprint} << 32 | launch_.fingerprint;
    for (std::uint32_t phase = 0; phase < LineMemory::kPhases; ++phase) store_line(message(peer, phase, rank_), twice);
  }
  TUTTI_DEVICE_CALL bool headers_agree() {
    const std::uint32_t peer = t_.index();
    if (peer >= ranks_ || peer == rank_) return true;
    std::uint32_t theirs = 0;
    const auto number = static_cast<std::int32_t>(peer);
    const auto announced = static_cast<std::uint32_t>(t_.load(&home_.state->announced_sequence) + 1);
    const auto has_come = [&] { return has_header(t_, home_, sequence_, peer, theirs); };
    if (!waiting_.until(number, has_come, [&] { return announces_instead(peer, announced); })) return false;
    if (theirs == launch_.fingerprint) return true;
    waiting_.fail(Failure::kMismatch, number, launch_.fingerprint, theirs);
    return false;
  }
  /// The peer has opened a call with announce lines where this rank has a lines call. The failure is recorded then.
  TUTTI_DEVICE_CALL bool announces_instead(std::uint32_t peer, std::uint32_t sequence) {
    const std::uint64_t word = announced_by(t_, home_, sequence, peer);
    // Or it has come behind this call: then its header was there before.
    std::uint32_t header = 0;
    if (word == 0 || has_header(t_, home_, sequence_, peer, header)) return false;
    waiting_.fail(Failure::kMismatch, static_cast<std::int32_t>(peer), launch_.fingerprint, word & 0xffffffffu);
    return true;
  }

  /// One phase 0 message to each peer. Peers in turn from this rank on, so that not all push to the same one.
  TUTTI_DEVICE_CALL void push_inputs() {
    for (std::uint32_t distance = 1; distance < ranks_; ++distance) {
      const std::uint32_t peer = (rank_ + distance) % ranks_;
      std::uint64_t units = 0;
      if (launch_.two_shot) {
        units = units_in_share(peer);
        const std::uint64_t begin = peer * share_units();
        for (std::uint64_t u = first_unit(); u < units; u += stride()) push(peer, 0, u, load_unit(0, begin + u));
      } else if (sends(rank_, peer)) {
        units = units_of(block_bytes_);
        for (std::uint64_t u = first_unit(); u < units; u += stride()) push(peer, 0, u, load_unit(block_for(peer), u));
      }
      fill(peer, 0, units);
      fill(peer, 1, launch_.two_shot ? units_in_share(rank_) : 0);
    }
  }

  /// Waits for unit `unit` of ranks [first, first + kBatch); `own` stands in for this rank's.
  TUTTI_DEVICE_CALL bool take_batch(std::uint32_t phase, std::uint32_t first, std::uint64_t unit, std::uint64_t own,
                                    std::uint64_t (&bits)[kBatch]) {
    std::uint64_t words[kBatch][2] = {};
    std::uint32_t missing = 0;
    const auto all_there = [&] {
      TUTTI_UNROLL
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        if (first + i < ranks_ && first + i != rank_) t_.load_words(unit_at(rank_, phase, first + i, unit), words[i]);
      }
      TUTTI_UNROLL
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        if (first + i >= ranks_ || first + i == rank_ || has_come(words[i])) continue;
        missing = first + i;
        return false;
      }
      return true;
    };
    for (std::uint32_t turn = 1; !all_there(); ++turn) {
      if (turn % kTurnsPerLook == 0 && waiting_.gives_up(static_cast<std::int32_t>(missing))) return false;
      t_.pause();
    }
    TUTTI_UNROLL
    for (std::uint32_t i = 0; i < kBatch; ++i) bits[i] = first + i == rank_ ? own : data_of(words[i]);
    return true;
  }
  /// The sum of all ranks' unit, in rank order.
  TUTTI_DEVICE_CALL bool sum_unit(std::uint64_t unit, std::uint64_t own, std::uint64_t& sum) {
    Accumulator sums[Units::kCount] = {};
    for (std::uint32_t first = 0; first < ranks_; first += kBatch) {
      std::uint64_t bits[kBatch];
      if (!take_batch(0, first, unit, own, bits)) return false;
      TUTTI_UNROLL
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        if (first + i < ranks_) add(bits[i], first + i == 0, sums);
      }
    }
    TUTTI_UNROLL
    for (int i = 0; i < Units::kCount; ++i) {
      if (launch_.divisor != 0) sums[i] = Type::divide(sums[i], launch_.divisor);
    }
    sum = Units::pack(sums);
    return true;
  }
  TUTTI_DEVICE_CALL void add(std::uint64_t bits, bool first, Accumulator (&sums)[Units::kCount]) const {
    Accumulator next[Units::kCount];
    Units::unpack(bits, next);
    TUTTI_UNROLL
    for (int i = 0; i < Units::kCount; ++i) sums[i] = first ? next[i] : combine(sums[i], next[i]);
  }
  TUTTI_DEVICE_CALL Accumulator combine(Accumulator a, Accumulator b) const {
    switch (launch_.op) {
      case ReduceOp::kProduct: return Type::product(a, b);
      case ReduceOp::kMax: return Type::max(a, b);
      case ReduceOp::kMin: return Type::min(a, b);
      default: return Type::sum(a, b);
    }
  }

  // The endings: all_reduce, reduce and reduce_scatter; everything that only moves data; two-shot.

  TUTTI_DEVICE_CALL bool sum_all() {
    if (launch_.collective == Collective::kReduce && rank_ != launch_.root) return true;
    const std::uint64_t units = units_of(block_bytes_);
    for (std::uint64_t u = first_unit(); u < units; u += stride()) {
      std::uint64_t sum = 0;
      if (!sum_unit(u, load_unit(block_for(rank_), u), sum)) return false;
      store_unit(0, u, sum);
    }
    return true;
  }
  TUTTI_DEVICE_CALL bool place_all() {
    const std::uint64_t units = units_of(block_bytes_);
    for (std::uint32_t distance = 0; distance < ranks_; ++distance) {
      const std::uint32_t peer = (rank_ + ranks_ - distance) % ranks_;
      if (!sends(peer, rank_)) continue;
      for (std::uint64_t u = first_unit(); u < units; u += stride()) {
        std::uint64_t bits = 0;
        if (peer == rank_) {
          bits = load_unit(block_for(rank_), u);
        } else if (!take(0, peer, u, bits)) {
          return false;
        }
        store_unit(block_from(peer), u, bits);
      }
    }
    return true;
  }
  TUTTI_DEVICE_CALL bool take(std::uint32_t phase, std::uint32_t peer, std::uint64_t unit, std::uint64_t& bits) {
    std::uint64_t words[2];
    const std::uint64_t* const from = unit_at(rank_, phase, peer, unit);
    if (!waiting_.until(static_cast<std::int32_t>(peer), [&] { return t_.load_words(from, words), has_come(words); })) {
      return false;
    }
    bits = data_of(words);
    return true;
  }
  TUTTI_DEVICE_CALL bool finish_two_shot() {
    const std::uint64_t share = share_units();
    const std::uint64_t own_units = units_in_share(rank_);
    const std::uint64_t own = rank_ * share;
    for (std::uint64_t u = first_unit(); u < own_units; u += stride()) {
      std::uint64_t sum = 0;
      if (!sum_unit(u, load_unit(0, own + u), sum)) return false;
      for (std::uint32_t distance = 1; distance < ranks_; ++distance) push((rank_ + distance) % ranks_, 1, u, sum);
      store_unit(0, own + u, sum);
    }
    for (std::uint32_t distance = 1; distance < ranks_; ++distance) {
      const std::uint32_t owner = (rank_ + ranks_ - distance) % ranks_;
      const std::uint64_t units = units_in_share(owner);
      for (std::uint64_t u = first_unit(); u < units; u += stride()) {
        std::uint64_t bits = 0;
        if (!take(1, owner, u, bits)) return false;
        store_unit(0, owner * share + u, bits);
      }
    }
    return true;
  }

  Thread& t_;
  const LinesLaunch& launch_;
  std::uint32_t member_;  ///< of the launch's ranks
  std::uint32_t block_;   ///< of the rank's blocks
  const RankHome& home_;
  std::uint32_t ranks_;
  std::uint32_t rank_;
  std::uint64_t sequence_;
  Waiting<Thread> waiting_;
  std::uint64_t block_bytes_;
  std::uint64_t flag_ = 0;
  std::uint64_t factor_ = 0;
};

}  // namespace tutti::cuda
