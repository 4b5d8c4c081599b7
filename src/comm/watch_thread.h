// The thread of a PeerWatch (peer_watch.h): peer_watch.cpp has what it does on its connections, watch_ring.cpp the connections that it seeks in
// the place of those that have gone.
#pragma once

#include "comm/messages.h"
#include "comm/peer_watch.h"
#include "comm/signs_of_life.h"
#include "comm/wire.h"
#include "executor/host_machine.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>

namespace tutti::comm {

class WatchThread final : public PeerWatch, private WatchedBeside::Keeper {
 public:
  explicit WatchThread(Args args)
      : failure_(*args.failure),
        timeout_s_(args.timeout_s),
        reach_time_(args.reach_time),
        callbacks_(std::move(args.callbacks)),
        beside_(args.beside),
        graph_(args.rank, static_cast<int>(args.sockets.size())),
        signs_(args.timeout_s) {
    for (std::size_t rank = 0; rank < args.sockets.size(); ++rank) {
      if (args.sockets[rank])
        add(static_cast<int>(rank), Connection(std::move(args.sockets[rank]), payload_max()), true);
    }
    passes_on_ = peers_.size() + 1 < args.sockets.size();
    if (beside_ != nullptr) beside_->set_keeper(this);
  }
  ~WatchThread() override;

  Status run_thread();
  Error give_up(int rank, Error why);
  void begin_leaving(std::uint32_t last_call) override {
    last_call_ = last_call;
    leaving_ = true;
    wake();
  }
  void wake() override { eventfd_write(wake_.get(), 1); }
  void say(Bytes words) override;
  void finish_telling(double seconds) override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    int rank;
    Connection connection;
    Clock::time_point heard;
    bool proved = true;  ///< something has come by it: the other side has kept it, if it was made late
    bool open = true;
    bool said_goodbye = false;  ///< one of the two has: the end of the connection tells nothing any more
    bool silent = false;
  };

  /// A rank's words of a shrink have a bit for each rank and list.
  std::size_t payload_max() const {
    return Connection::kStrangerPayloadMax + kShrinkLists * static_cast<std::size_t>(graph_.ranks()) / 8;
  }
  bool expects(int peer) override;
  void keep(int peer, Connection made) override { made_.emplace_back(peer, std::move(made)); }

  void run();
  void look();
  void end_watch();
  template <class Act>
  void survive(const Act& act);
  void wait(Clock::time_point until);
  void listen_to_all(Clock::time_point now);
  void listen(Peer& peer, Clock::time_point now);
  void handle(Peer& peer, const Frame& frame);
  void end(Peer& peer);
  void close(Peer& peer);
  void judge(Clock::time_point now);
  void send_signs(Clock::time_point now);
  void tell_failure();
  void tell_words();
  void pass_on(int from, FrameType type, const Bytes& news);
  void note_gone(const WatchGraph::Gone& gone, int from);
  void tell_deaths();
  void send(Peer& peer);
  void say_goodbye();

  void add(int rank, Connection connection, bool proved);
  void take_made();
  void tell_all_known(Peer& peer);
  bool is_connected(int rank) const;
  bool is_watched(int rank) const;
  bool has_failed() const { return executor::load_acquire(&failure_.word) == 2; }
  /// Whether connections can be made in the place of those that have gone.
  bool has_ring() const { return passes_on_ && beside_ != nullptr; }
  void close_ring(Clock::time_point now);
  void leave_out_pause(Clock::time_point now);
  void judge_sought(Clock::time_point now);
  void let_go();

  FailureRecord& failure_;
  const double timeout_s_;
  const std::chrono::duration<double> reach_time_;
  const Callbacks callbacks_;
  WatchedBeside* const beside_;
  std::atomic<std::uint32_t> last_call_{0};
  const pid_t owner_ = getpid();
  std::atomic<bool> leaving_{false};
  // The thread's:
  WatchGraph graph_;
  std::vector<Peer> peers_;
  std::vector<std::pair<int, Connection>> made_;  ///< peers to be
  std::map<int, Clock::time_point> sought_;       ///< since when
  std::set<int> unreached_;                       ///< not sought any more
  SignsOfLife signs_;
  Clock::time_point due_ = Clock::now();  ///< when the thread is to look again at the latest
  bool says_goodbye_ = false;
  std::optional<Bytes> own_words_;
  std::vector<WatchGraph::Gone> deaths_;  ///< callbacks_.on_death is still to be called for these
  bool passes_on_ = false;                ///< some rank is not watched by this one
  PrivateDescriptor wake_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  bool failure_told_ = false;
  std::mutex mutex_;
  std::condition_variable told_;
  bool all_told_ = false;    ///< guarded by mutex_
  std::vector<Bytes> said_;  ///< the same; not queued yet
};

}  // namespace tutti::comm
