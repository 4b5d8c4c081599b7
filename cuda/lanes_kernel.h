// tutti_lanes: the lane interpreter (protocol/lane.h), one block per lane of the tiling. Thread 0 leads: it alone runs the interpreter, so
// that protocol state has one owner. The others serve: they wait for the payload work that the leader posts.
//
//   leader                              all other threads
//   ... protocol ...                    wait at the barrier
//   post the work, barrier  --------->  barrier passed: do their share
//   do its own share, barrier <-------  barrier, wait again
//
// Why it is right: the first barrier orders the leader's acquire loads before everybody's payload loads, the second orders everybody's
// payload stores before the leader's release store; both stores and loads of counts are at system scope and cumulative.
#pragma once

#include "cuda/kernel_abi.h"
#include "cuda/opening.h"
#include "cuda/payload.h"
#include "cuda/waiting.h"
#include "protocol/lane.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// What the leader has posted.
struct PostedWork {
  ReduceArgs args;
  bool over;
};
struct LanesShared {
  Buffers buffers;
  protocol::PeerBuffers peers[kRanksMax];
  PostedWork posted;
};

/// What the interpreter asks of a machine.
template <class Thread, class Type>
class LaneMachine {
 public:
  TUTTI_DEVICE_CALL LaneMachine(Thread& thread, const RankHome& home, const LaneHome& lane, ReduceOp op,
                                PostedWork& posted)
      : t_(thread), home_(home), tiles_(lane.tiles), op_(op), posted_(posted) {}

  // The leader's part.

  TUTTI_DEVICE_CALL std::uint64_t load_acquire(const std::uint64_t* word) { return t_.load_acquire(word); }
  TUTTI_DEVICE_CALL void store_release(std::uint64_t* word, std::uint64_t value) { t_.store_release(word, value); }
  TUTTI_DEVICE_CALL std::uint64_t load_word(const std::uint64_t* word) { return t_.load_word(word); }
  TUTTI_DEVICE_CALL void store_word(std::uint64_t* word, std::uint64_t value) { t_.store_word(word, value); }
  TUTTI_DEVICE_CALL void prepare_write(const std::byte*, std::size_t) {}
  TUTTI_DEVICE_CALL bool aborted() {
    return t_.is_claimed(&home_.state->failed) || t_.load_acquire(home_.abort_word) != 0;
  }
  TUTTI_DEVICE_CALL void reduce(const ReduceArgs& args) {
    posted_.args = args;
    posted_.over = false;
    t_.sync_apart();
    do_share();
    t_.sync_apart();
  }
  // No memory is reached by system calls from here.
  TUTTI_DEVICE_CALL bool read_remote(std::uint32_t, std::uint64_t, std::byte*, std::size_t) { return false; }
  TUTTI_DEVICE_CALL bool write_remote(std::uint32_t, std::uint64_t, const std::byte*, std::size_t) { return false; }
  TUTTI_DEVICE_CALL std::byte* staging(std::size_t index, std::size_t) { return tiles_ + index * kLaneTileBytes; }
  /// Lets the others go.
  TUTTI_DEVICE_CALL void finish() {
    posted_.over = true;
    t_.sync_apart();
  }

  /// The others' part: until finish().
  TUTTI_DEVICE_CALL void serve() {
    for (;;) {
      t_.sync_apart();
      if (posted_.over) return;
      do_share();
      t_.sync_apart();
    }
  }

 private:
  /// Once, although both parts call it.
  TUTTI_DEVICE_CALL TUTTI_OUT_OF_LINE void do_share() { fold<Type>(t_, op_, posted_.args, {0, 1}); }

  Thread& t_;
  const RankHome& home_;
  std::byte* tiles_;
  ReduceOp op_;
  PostedWork& posted_;
};

template <class Thread, class Type>
class LanesKernel {
 public:
  using Machine = LaneMachine<Thread, Type>;
  using Lane = protocol::Lane<Machine>;
  static_assert(Lane::kTileBytes <= kLaneTileBytes);

  TUTTI_DEVICE_CALL LanesKernel(Thread& thread, const LanesLaunch& launch, LanesShared& shared)
      : t_(thread),
        launch_(launch),
        shared_(shared),
        launch_rank_(thread.block() / launch.blocks_per_rank),
        lane_index_(thread.block() % launch.blocks_per_rank),
        home_(*launch.homes[launch_rank_]),
        counted_(launch.announces ? home_.state->announced_sequence : home_.state->lanes_sequence) {}

  TUTTI_DEVICE_CALL void run() {
    const std::uint64_t sequence = t_.load(&counted_) + 1;
    if (!learn_buffers(sequence)) return;
    const LaneHome& lane = launch_.lanes[launch_rank_][lane_index_];
    Machine machine(t_, home_, lane, launch_.op, shared_.posted);
    if (t_.index() == 0) {
      lead(machine, lane, sequence);
    } else {
      machine.serve();
    }
    count_call(t_, *home_.state, counted_, launch_.blocks_per_rank);
  }

 private:
  TUTTI_DEVICE_CALL TUTTI_OUT_OF_LINE bool learn_buffers(std::uint64_t sequence) {
    const std::uint32_t rank = t_.index();
    if (rank < kRanksMax) {
      const bool scaled = launch_.scaled && (!launch_.announces || rank == home_.rank);
      shared_.buffers.inputs[rank] = launch_.inputs[rank];
      shared_.buffers.outputs[rank] = launch_.outputs[rank];
      shared_.buffers.factors[rank] = scaled ? value_of(t_, launch_.factors[rank], sizeof(typename Type::Element)) : 0;
    }
    t_.sync();
    if (launch_.announces) {
      Opening<Thread> opening(t_, home_, sequence, launch_.announced, shared_.buffers.factors[home_.rank]);
      opening.announce();
      if (!opening.learn(shared_.buffers)) return false;
    }
    if (rank < kRanksMax) {
      protocol::PeerBuffers& peer = shared_.peers[rank];
      peer.input = reinterpret_cast<std::uint64_t>(shared_.buffers.inputs[rank]);
      peer.output = reinterpret_cast<std::uint64_t>(shared_.buffers.outputs[rank]);
      peer.mapped = true;
      peer.scale = launch_.scaled ? &shared_.buffers.factors[rank] : nullptr;
    }
    t_.sync();
    return true;
  }

  TUTTI_DEVICE_CALL protocol::LaneCall call_of(const LaneHome& lane) const {
    const LaneProgramReference& program = launch_.programs[launch_rank_][lane_index_ / launch_.rows];
    const std::uint32_t rank = home_.rank;
    protocol::LaneCall call;
    call.steps = program.steps;
    call.step_count = program.step_count;
    call.endpoints = program.endpoints;
    call.tiling = launch_.tiling;
    call.lane = lane_index_;
    call.input = static_cast<std::byte*>(const_cast<void*>(own(launch_.inputs, rank)));
    call.output = static_cast<std::byte*>(own(launch_.outputs, rank));
    call.scratch = lane.scratch;
    call.channels = lane.channels;
    call.slot_shape = launch_.slot_shape;
    call.line_shape = launch_.line_shape;
    call.peers = shared_.peers;
    call.direct = launch_.direct;
    call.lines = launch_.lines;
    call.wide_wire = launch_.wide_wire;
    call.scale = launch_.scaled ? &shared_.buffers.factors[rank < kRanksMax ? rank : 0] : nullptr;
    call.divisor = launch_.divisor;
    call.workspace = lane.workspace;
    return call;
  }
  /// More ranks than the arrays have places for: the only one of the launch is in the first.
  template <class Pointer>
  TUTTI_DEVICE_CALL static Pointer own(const Pointer (&by_rank)[kRanksMax], std::uint32_t rank) {
    return by_rank[rank < kRanksMax ? rank : 0];
  }

  TUTTI_DEVICE_CALL void lead(Machine& machine, const LaneHome& home, std::uint64_t sequence) {
    using protocol::Progress;
    Waiting<Thread> waiting(t_, home_, sequence);
    Lane lane;
    lane.start(call_of(home));
    std::uint32_t turn = 0;
    for (;;) {
      const Progress progress = lane.advance(machine);
      if (progress == Progress::kDone) break;
      if (progress == Progress::kAdvanced) turn = 0;
      if (progress == Progress::kFailed || (++turn % kTurnsPerLook == 0 && machine.aborted())) {
        waiting.fail(Failure::kAborted, lane.waiting_for(machine), 0, 0, lane.round(), lane.step());
        break;
      }
      t_.pause();
    }
    machine.finish();
  }

  Thread& t_;
  const LanesLaunch& launch_;
  LanesShared& shared_;
  std::uint32_t launch_rank_;
  std::uint32_t lane_index_;
  const RankHome& home_;
  std::uint64_t& counted_;
};

}  // namespace tutti::cuda
