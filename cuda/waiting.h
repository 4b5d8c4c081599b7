// What all kernels that wait have in common: looking at the abort word, saying why they gave up, and counting calls.
#pragma once

#include "cuda/kernel_abi.h"
#include "cuda/payload.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// Looks at something in host memory only every so many turns of a spin: each takes a microsecond.
inline constexpr std::uint32_t kTurnsPerLook = 256;

/// The call that a kernel waits in.
template <class Thread>
class Waiting {
 public:
  TUTTI_DEVICE_CALL Waiting(Thread& thread, const RankHome& home, std::uint64_t sequence)
      : t_(thread), home_(home), sequence_(sequence) {}

  /// Until ready(), which must have no effect but its own when it returns true. False: give up; the reason is recorded.
  /// in_vain(): looked at now and then; it records why.
  template <class Ready, class InVain>
  TUTTI_DEVICE_CALL bool until(std::int32_t peer, Ready&& ready, InVain&& in_vain) {
    for (std::uint32_t turn = 1; !ready(); ++turn) {
      if (turn % kTurnsPerLook == 0 && (in_vain() || gives_up(peer))) return false;
      t_.pause();
    }
    return true;
  }
  template <class Ready>
  TUTTI_DEVICE_CALL bool until(std::int32_t peer, Ready&& ready) {
    return until(peer, ready, [] { return false; });
  }
  TUTTI_DEVICE_CALL bool gives_up(std::int32_t peer) {
    if (t_.is_claimed(&home_.state->failed)) return true;
    if (t_.load_acquire(home_.abort_word) == 0) return false;
    fail(Failure::kAborted, peer, 0, 0);
    return true;
  }
  /// The first one of the rank is kept.
  TUTTI_DEVICE_CALL void fail(Failure failure, std::int32_t peer, std::uint64_t ours, std::uint64_t theirs,
                              std::uint64_t round = 0, std::uint32_t step = 0) {
    if (!t_.claim(&home_.state->failed)) return;
    FailureRecord& record = *home_.failure;
    record.peer = peer;
    record.block = t_.block();
    record.sequence = sequence_;
    record.ours = ours;
    record.theirs = theirs;
    record.round = round;
    record.step = step;
    // The reader takes `failure` as the low half of this word: failure and rank are one store.
    t_.store_release(reinterpret_cast<std::uint64_t*>(&record),
                     static_cast<std::uint64_t>(home_.rank) << 32 | static_cast<std::uint32_t>(failure));
  }
  TUTTI_DEVICE_CALL std::uint64_t sequence() const { return sequence_; }

 private:
  Thread& t_;
  const RankHome& home_;
  std::uint64_t sequence_;
};
static_assert(offsetof(FailureRecord, failure) == 0 && offsetof(FailureRecord, rank) == 4);

/// All threads of a block, at the end of a call that went well: the last block of the rank counts the call.
template <class Thread>
TUTTI_DEVICE_CALL void count_call(Thread& t, RankState& state, std::uint64_t& counted, std::uint32_t blocks) {
  t.sync_apart();
  if (t.index() != 0) return;
  if (t.add(&state.blocks_done, 1) + 1 != blocks) return;
  t.store(&state.blocks_done, std::uint32_t{0});
  t.store(&counted, t.load(&counted) + 1);
}

}  // namespace tutti::cuda
