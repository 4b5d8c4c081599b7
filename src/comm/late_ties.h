// LateTies: connections that are made while the communicator lives. Those for data when the first byte is to go by them: whoever has the
// communicator's turn asks for one, and takes it when it is there; the watch's thread makes it meanwhile, and takes in those that other ranks
// make: no rank waits for another's call. Those on which ranks watch each other when the ones between have gone: the watch asks for them
// itself, also when the communicator has failed, and no data moves any more.
#pragma once

#include "comm/meetings.h"
#include "comm/peer_watch.h"
#include "comm/rank_endpoint.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

/// Where and how other ranks are reached, once the communicator's bootstrap is over.
struct LateMeeting {
  TcpListener listener;
  std::unique_ptr<Meetings> meetings;   ///< they use the listener
  std::vector<RankEndpoint> endpoints;  ///< [ranks]
};

class LateTies final : public WatchedBeside {
 public:
  struct Args {
    int rank = 0;
    LateMeeting meeting;
    std::vector<bool> missing;  ///< by rank: has no connection for data, and may get one
    std::chrono::duration<double> reach_time = Meetings::kReachTime;
    /// A rank could not be reached for so long. By the watch's thread.
    std::function<void(int peer, const Error& why)> on_failure;
    /// No data moves any more: asked by the watch's thread.
    std::function<bool()> given_up;
  };
  explicit LateTies(Args args);

  /// `wake`: the watch's thread looks for what is new.
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }
  /// A connection with that rank is needed. It comes by take_news(), or on_failure is called.
  void want(int peer);

  /// What came of a rank.
  struct News {
    int peer = 0;
    std::vector<PrivateDescriptor> sockets;  ///< the connection with it; or, if there are none:
    std::uint32_t last_call = 0;             ///< it has left after this call
  };
  bool has_news() const { return has_news_.load(std::memory_order_acquire); }
  /// In the order in which they came.
  std::vector<News> take_news();
  /// This rank leaves: no connection comes from here on, none that take_news() does not have.
  void close_doors();
  /// When the watch's thread is no more: gives the listener back, and what was under way.
  void end();

  // By the watch's thread.

  /// The rank has said that it leaves.
  void note_left(int peer, std::uint32_t last_call);
  void add_to(std::vector<pollfd>& watched) override;
  void serve(std::span<const pollfd> polled) override;
  Clock::time_point due() const override;
  void set_keeper(Keeper* keeper) override { keeper_ = keeper; }
  void seek(int peer) override;
  void forget(int peer) override;
  Meetings::Attempts attempts(int peer) const override;

 private:
  /// A pair's sockets as far as they are there.
  struct Pair {
    std::vector<std::optional<Connection>> made;
    Clock::time_point until = Clock::time_point::max();  ///< for this rank's sake
  };

  std::size_t sockets_with(int peer) const;
  bool may_get(const Meetings::Key& key) const;
  void keep(const Meetings::Key& key, Connection connection);
  void begin_wanted();
  void give_up_late();
  void end_data();
  void tell(News news);

  Args args_;
  std::function<void()> wake_;
  Keeper* keeper_ = nullptr;
  std::map<int, Pair> pairs_;  ///< the watch's thread's: under way

  mutable std::mutex mutex_;
  std::vector<int> wanted_;  ///< guarded by mutex_, as all that follows
  std::vector<News> news_;
  bool closed_ = false;
  bool polled_ = false;  ///< add_to() has found something to poll for
  std::atomic<bool> has_news_{false};
};

}  // namespace tutti::comm
