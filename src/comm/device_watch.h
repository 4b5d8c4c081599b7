// Who looks after the kernels of a rank that wait for other processes: nobody on the host does. A thread that passes on what goes wrong,
// both ways, and looks a few hundred times a second.
//
//   a kernel gave up (its failure record)              -> the communicator's failure, which all ranks see
//   the communicator has failed (a peer died, abort)   -> the abort word and the bells, so that kernels and streams go on
//   a peer does not make a call, or left without it    -> the communicator's failure
//   a peer's stream does not come to a call            -> the communicator's failure, where streams meet by bells
//
// It also keeps what the rank has called, for the others. Where a call may go by kernels or through host memory, and ranks' calls differ so much
// that they go both ways, nobody would find the others where they look: then it is the notes that differ.
#pragma once

#include "comm/communicator.h"
#include "comm/device_bells.h"
#include "comm/device_segment.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace tutti::comm {

class DeviceWatch {
 public:
  /// `segment` and `bells` outlive it, the communicator until leave(). `bells`: nullptr where kernels wait for each other by themselves.
  static Result<std::unique_ptr<DeviceWatch>> start(Communicator& communicator, const DeviceSegment& segment,
                                                    const DeviceBells* bells);
  ~DeviceWatch();
  /// Before the communicator goes, if kernels of graphs may still run. Has a last look at it; of one that has failed, streams go on
  /// being let go.
  void leave();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  /// Whether kernels have failed: who asks for the communicator's state need not wait for the next look. By any thread.
  void look_at_kernels();

  enum class Way : std::uint8_t { kKernels, kWindows, kHost };  ///< kWindows: kernels, in place
  /// Before this rank's next collective goes to its stream: the others' messages can name it then, and wait for it no more. `eager`: not
  /// captured into a graph: note_capture(). By any thread. `stream`: stream_key() where streams wait for each other by bells.
  /// kInvalidUsage: a peer's call of the same number, if that is not long ago, goes another way, by kernels or through the host, or is on a
  /// stream of this process that comes to it only after this rank's. The communicator has failed then. Of two ranks of which this is so at
  /// least one notices.
  Status note(const Signature& signature, Way way, bool eager, std::uint64_t stream = 0);
  /// This rank captures calls into a graph, whose replays nobody counts: from now on its calls have no numbers that others could compare, nor
  /// does its count say what it has not called. By any thread.
  void note_capture() { std::atomic_ref(card_.captured).store(1, std::memory_order_seq_cst); }
  /// Different for streams of a device that do not wait for each other, also for those that have had the same handle. Of this thread's default
  /// stream, if that is named.
  static Result<std::uint64_t> stream_key(const cuda::Device& device, cuda::StreamHandle stream);
  /// What a call is announced by.
  static std::uint32_t fingerprint_of(const Signature& signature, bool in_windows) {
    return signature.fingerprint() ^ (in_windows ? 0x9e3779b8u : 0u);
  }
  /// The same of one that the ranks have agreed to do in place (device_agreement.h). A replay can meet a call that is not: its kernel must not
  /// take the other's staging for the whole buffer.
  static std::uint32_t agreed(std::uint32_t fingerprint) { return fingerprint ^ 0x85ebca6au; }

 private:
  using Clock = std::chrono::steady_clock;
  DeviceWatch(Communicator& communicator, const DeviceSegment& segment, const DeviceBells* bells)
      : comm_(communicator),
        segment_(segment),
        bells_(bells),
        card_(communicator.members().control.device_card(communicator.rank())) {}
  void run();
  void look();
  void look_at_peers();
  void look_at_streams();
  /// Whether what is counted of both ranks means the same.
  bool counts_match(int peer) const;
  Status compare_ways(std::uint64_t number, const DeviceCallNote& own) const;
  Status compare_streams(std::uint64_t number, std::uint64_t stream) const;
  std::string why(const cuda::FailureRecord& record) const;

  Communicator& comm_;
  const DeviceSegment& segment_;
  const DeviceBells* const bells_;
  DeviceCard& card_;
  std::mutex noting_;                                           ///< of card_.calls and card_.notes
  std::vector<std::optional<Clock::time_point>> behind_since_;  ///< by rank; by the thread
  /// Since when this rank's stream has been waiting for a peer's, and what both had called then; by rank, by the thread.
  struct Stall {
    Clock::time_point since;
    std::uint64_t calls = 0;
    std::uint64_t peers_calls = 0;
  };
  std::vector<std::optional<Stall>> stalls_;
  std::mutex mutex_;
  std::condition_variable wake_;
  enum class Phase : std::uint8_t { kWatching, kLeaving, kLeft, kOver } phase_ = Phase::kWatching;
  std::thread thread_;
};

}  // namespace tutti::comm
