// PeerWatch: a communicator's thread that knows, over hosts, whether the other ranks still live. On connections of its own, with those ranks
// that watch_graph.h says, it sends a sign of life every so often, tells of the communicator's failure, and says goodbye at the end.
//
//   closes without goodbye                     -> the rank has died: at once
//   silent for TUTTI_HEARTBEAT_TIMEOUT_S       -> it is stopped, or its host or the network is gone; so if it is sought, since those that
//                                                 watched it have gone, and nothing comes back for that time, or 30 s if that is longer
//   words of ncclCommShrink                    -> handed on, also when the communicator has failed
//   failure                                    -> kept as this rank's, and passed on: every rank ends with the first reason
//   goodbye, of one of many ranks              -> answered once this rank has closed the ring over it: until then it passes on what comes
//
// What comes is passed on before anything else is done about it. Its thread also makes the connections that come late (late_ties.h). Data
// has connections of its own, so that a rank that computes, and reads no data, still answers here.
#pragma once

#include "base/result.h"
#include "comm/connection.h"
#include "comm/control.h"
#include "comm/meetings.h"
#include "comm/private_descriptor.h"
#include "comm/watch_graph.h"

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tutti::comm {

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

  /// Who gets connections for watching that are made late. By the watch's thread.
  class Keeper {
   public:
    virtual ~Keeper() = default;
    virtual bool expects(int peer) = 0;
    virtual void keep(int peer, Connection made) = 0;
  };
  virtual void set_keeper(Keeper* keeper) = 0;
  /// Tries to make such a one, until it is made or forgotten.
  virtual void seek(int peer) = 0;
  virtual void forget(int peer) = 0;
  /// How that goes.
  virtual Meetings::Attempts attempts(int peer) const = 0;
};

class PeerWatch {
 public:
  /// Run on the watch's thread; they must not block.
  struct Callbacks {
    /// Of any rank's. True if they are news, to be passed on where not all watch each other.
    std::function<bool(const Bytes&)> on_words;
    /// The last words of all other ranks, for one that this rank connects with late.
    std::function<std::vector<Bytes>()> words_known;
    /// A rank is gone, whoever noticed; the others that this one watches are told at once. `last_call`: of one that has left.
    std::function<void(int rank, PeerLife life, std::uint32_t last_call)> on_gone;
    /// The same, for what may take a while: of one that has died or does not answer, when the others have been told of the failure, too.
    std::function<void(int rank, PeerLife life)> on_death;
  };

  struct Args {
    int rank = 0;
    std::vector<PrivateDescriptor> sockets;  ///< by rank, empty for those that are not watched
    FailureRecord* failure = nullptr;        ///< this rank's, which the thread reads and writes
    double timeout_s = 0;
    /// For a rank that is to be watched in the place of those that have gone to be connected with.
    std::chrono::duration<double> reach_time = Meetings::kReachTime;
    Callbacks callbacks;
    WatchedBeside* beside = nullptr;  ///< or lives longer
  };
  /// Where it cannot start, the others are told so before this returns, as by a rank that has failed and leaves.
  static Result<std::unique_ptr<PeerWatch>> start(Args args);
  virtual ~PeerWatch() = default;  ///< says goodbye

  /// This rank leaves, after its call of all ranks of that number, as the goodbye will say: it makes no more connections.
  virtual void begin_leaving(std::uint32_t last_call) = 0;
  /// The failure record has something to tell, or what is watched beside wants to be asked again.
  virtual void wake() = 0;
  /// To all peers that are there, in the order of the calls; by any thread.
  virtual void say(Bytes words) = 0;
  /// Waits until all that the failure record says is told, or its receivers are gone, at most `seconds`.
  virtual void finish_telling(double seconds) = 0;
};

}  // namespace tutti::comm
