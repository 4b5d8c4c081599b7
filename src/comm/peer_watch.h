// PeerWatch: a communicator's thread that knows, over hosts, whether the other ranks still live. On a connection of its own to each of
// them it sends a sign of life every so often, tells of the communicator's failure, and says goodbye at the end.
//
//   closes without goodbye                     -> the rank has died: at once
//   silent for TUTTI_HEARTBEAT_TIMEOUT_S       -> it is stopped, or its host or the network is gone
//   words of ncclCommShrink                    -> handed on, also when the communicator has failed
//   failure                                    -> kept as this rank's, and passed on: every rank ends with the first reason
//
// Its thread also makes connections for data that come late (late_ties.h). Data has connections of its own, so that a rank that computes, and reads no data, still answers here.
#pragma once

#include "base/result.h"
#include "comm/connection.h"
#include "comm/control.h"
#include "comm/private_descriptor.h"

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tutti::comm {

/// What is known of a rank when calls tell nothing any more: it may have failed, and its last data may not have come.
enum class PeerLife : std::uint8_t { kThere, kEnded, kSilent, kLeft };

/// Something else that the watch's thread polls for and serves, so that it needs no thread of its own. Neither call blocks.
class WatchedBeside {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~WatchedBeside() = default;
  virtual void add_to(std::vector<pollfd>& watched) = 0;
  /// What came of that: the same places.
  virtual void serve(std::span<const pollfd> polled) = 0;
  /// To be served then, if nothing comes before.
  virtual Clock::time_point due() const = 0;
};

class PeerWatch {
 public:
  /// Run on the watch's thread; they must not block.
  struct Callbacks {
    std::function<void(int peer)> on_end;                               ///< died
    std::function<void(int peer)> on_silence;                           ///< says nothing any more
    std::function<void(int peer, std::uint32_t last_call)> on_goodbye;  ///< has left
    /// Of any rank's. True if they are news, to be passed on where not all watch each other.
    std::function<bool(const Bytes&)> on_words;
    /// The same of a rank that is gone. `last_call`: of one that has left.
    std::function<bool(int rank, PeerLife life, std::uint32_t last_call)> on_gone;
  };

  /// `sockets`: by rank, empty for those that are not watched. `failure`: this rank's record, which the thread reads and writes.
  /// `beside`: nullptr, or lives longer.
  static Result<std::unique_ptr<PeerWatch>> start(std::vector<PrivateDescriptor> sockets, FailureRecord& failure,
                                                  double timeout_s, Callbacks callbacks, WatchedBeside* beside);
  virtual ~PeerWatch() = default;  ///< says goodbye

  /// What the goodbye says: the number of this rank's last call of all ranks.
  virtual void set_last_call(std::uint32_t last_call) = 0;
  /// The failure record has something to tell, or what is watched beside wants to be asked again.
  virtual void wake() = 0;
  /// To all peers that are there, in the order of the calls; by any thread.
  virtual void say(Bytes words) = 0;
  /// Waits until all that the failure record says is told, or its receivers are gone, at most `seconds`.
  virtual void finish_telling(double seconds) = 0;
};

}  // namespace tutti::comm
