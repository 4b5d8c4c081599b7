// Whether ranks in several processes work on a call's buffers where they lie. All must cut a call alike, and each knows of its own buffers only
// whether the others can reach them (device_exports.h). So the ranks' hosts settle it, call by call, while they make the call:
//
//   arrive()   counts this rank in, with a refusal if its buffers are not to be reached; waits for nobody
//   settle()   all have come, and none has refused: in place. One has refused, or waited longer than that would gain: through staging
//
// A rank may arrive at many calls (of a group) before it settles the first. Calls are told by their number, on each rank its own; replays of
// graphs are not counted. Those that all ranks have captured they also replay together, as the program promises (docs/gpu.md).
//
//  A1. A call has one word, which says how many have come and whether it is refused: who changes it sees what it was. It is refused before all
//      have come, or never: so all ranks read the same from it, whenever they look.
//  A2. A word is another call's when all ranks have settled the one that it was: kDepth calls later at the earliest. A rank that comes before that
//      has no room, and is not counted in: so that call can never be complete. The others see that it has settled it all the same.
//  A3. Nobody waits for ever: settle() refuses when its time is over, when another rank has had no room, and when the communicator has failed.
//  A4. A call that only some have captured is staged, and so is all that comes after it: where one rank replays it another makes a call, and their
//      numbers are those of other calls from then on. A rank that has captured one refuses until it sees that all have; but for the other
//      calls that it captures in the same group, between which it replays nothing.
//  A5. A call that its rank refuses before it arrives (I5 in device_ipc.h: its capture was spoilt) has no number. Where all ranks make that mistake
//      their numbers stay alike. Where one does, the others' call is staged, as this one has not come; made again, it has the others' number. If it
//      never is and the others have captured theirs, they have a call that only some have captured (A4): all is staged from then on, and right.
#pragma once

#include "executor/backoff.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tutti::comm {

class DeviceAgreement {
 public:
  static constexpr std::uint64_t kDepth = 64;
  static constexpr std::size_t bytes_for(std::size_t ranks) { return (kDepth + ranks) * sizeof(std::uint64_t); }
  /// `words`: memory that all ranks share, zero at first; outlives it.
  DeviceAgreement(std::span<std::byte> words, int ranks, int rank);

  using GivesUp = std::function<bool()>;
  struct Place {
    std::uint64_t number = 0;  ///< of the rank's calls, from 1
    bool has_room = false;
  };
  /// This rank makes its next call. `is_captured`: into a graph. By whoever has the rank's turn.
  Place arrive(bool is_willing, bool is_captured);
  /// Whether the call goes in place, the same on all ranks. In the order of arrive().
  bool settle(const Place& place, std::chrono::nanoseconds patience, const GivesUp& gives_up);

 private:
  static constexpr std::uint64_t kComeMask = 0xff;
  static constexpr std::uint64_t kRefused = 1 << 8;
  static constexpr int kCapturedShift = 9;  ///< how many have captured it
  static constexpr int kNumberShift = 16;
  static constexpr std::uint64_t captured(std::uint64_t word) { return word >> kCapturedShift & 0x7f; }
  std::uint64_t& call(std::uint64_t number) const { return words_[number % kDepth]; }
  std::uint64_t& settled(int rank) const { return words_[kDepth + static_cast<std::size_t>(rank)]; }
  bool have_all_captured(std::uint64_t number) const;
  bool has_doubts(bool is_captured) const;
  bool have_all_settled(std::uint64_t number) const;
  bool has_another_settled(std::uint64_t number) const;
  bool do_all_come(std::uint64_t number, std::chrono::nanoseconds patience, const GivesUp& gives_up) const;

  std::uint64_t* const words_;
  const int ranks_;
  const int rank_;
  std::uint64_t arrived_ = 0;
  std::vector<std::uint64_t> doubts_;  ///< captured calls, in order, of which it is not known yet whether all have
};

}  // namespace tutti::comm
