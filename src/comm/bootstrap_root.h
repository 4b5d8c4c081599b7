// The bootstrap root: the server side of one communicator's bootstrap, one thread around poll.
//
//   rank                root
//    | -- greeting ---> |            a connection is a stranger's until its hello is proved; strangers have
//    | <-- challenge -- |            kHandshakeTime, are never waited for, and are dropped without harm to others
//    | -- hello ------> | known
//    | <-- place ------ |            below whom it is in the tree (bootstrap_tree.h): the root itself keeps this connection, or
//    |     (here) ----> |            the rank above says that it has come, and the root lets it go:
//    | <- registered -- |
//
// From here on by the tree, of which the root holds the first ranks only:
//
//    | <-- listen ----- |            when all have come, if they are on several hosts
//    | -- endpoint ---> |            where each rank listens for the others, and when all have said so:
//    | <-- table ------ |            of all ranks; on one host when all have come
//    | <-- endpoints -- |            on several hosts
//    | -- control ----> |            leader of a host only: the memory file of that host
//    | <-- control ---- |            when all leaders have said so
//    | -- done -------> |
//    | <-- complete --- |            when all are done; the root ends
//
// All the while neighbours in the tree send each other signs of life: who gives none is reported. When a rank's time is over, and all have come,
// they are called by name: those that do not answer are why.
//
//    | <- roll call --- |
//    | -- present ----> |
//
// Whatever goes wrong with a known rank before "complete" is a failure of all, told to all, late comers included.
#pragma once

#include "comm/bootstrap_tree.h"
#include "comm/long_wait.h"
#include "comm/messages.h"
#include "comm/private_descriptor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

class BootstrapRoot {
 public:
  /// At least one listener: of this host's ranks, of other hosts', or both. A rank that gives no sign of life for `heartbeat_s` is a failure; 0:
  /// never. `unwanted`, which may be null: once true, it ends if no rank has come. `has_next`: another one may listen there when this one has ended.
  BootstrapRoot(std::vector<PrivateDescriptor> listeners, const Secret& secret, double heartbeat_s = 10,
                std::shared_ptr<const std::atomic<bool>> unwanted = nullptr, bool has_next = false)
      : listeners_(std::move(listeners)),
        secret_(secret),
        heartbeat_s_(heartbeat_s),
        unwanted_(std::move(unwanted)),
        has_next_(has_next) {}

  /// Returns when the bootstrap is complete or has failed and everybody was told.
  void run();

  /// So many connections at most it has at a time, whatever the number of ranks: its own of both trees, and those that are strangers or on
  /// their way to their places. Fewer of these where this process may have few descriptors.
  static constexpr std::size_t kConnectionsMax = 2 * kRootChildren + 96;
  /// What it has now, and the most that it has had; the former may be asked by another thread.
  std::size_t connections() const { return connections_.load(std::memory_order_relaxed); }
  std::size_t most_connections() const { return most_connections_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kSilent, kChallenged, kKnown, kLeaving, kGone };

  /// A connection.
  struct Member {
    Connection connection;
    Clock::time_point since;
    std::int32_t pid = 0;  ///< 0: of another host, or unknown
    std::string from;      ///< "process 12" or "10.0.0.2:4711"
    State state = State::kSilent;
    Greeting greeting = {};
    Challenge challenge = {};
    int rank = -1;

    bool is_stranger() const { return state == State::kSilent || state == State::kChallenged; }
  };

  /// What is known of a rank.
  struct Rank {
    Peer peer;
    ListenPlace place;
    int above = kBelowRoot;         ///< the rank that it was sent to
    Member* until_here = nullptr;   ///< its connection, until the rank above has it
    bool here = false;              ///< in the tree
    std::optional<Bytes> endpoint;  ///< where it listens, if ranks are on several hosts
    bool done = false;
    bool present = false;  ///< has answered the roll call
  };

  bool finished() const;
  int poll_timeout_ms(Clock::time_point now) const;
  void poll_once();
  void accept_all(int listener, Clock::time_point now);
  bool is_full() const;
  void make_room(Clock::time_point now);
  void drop_late_strangers(Clock::time_point now);
  void look_for_life(Member& member);

  void serve(Member& member);
  void handle(Member& member, const Frame& frame);
  void hear(Member& by, int rank, const Frame& frame);
  void challenge(Member& member, const Frame& frame);
  void admit(Member& member, const Frame& frame);
  void answer(Member& member, std::span<const std::uint8_t> said);
  bool comes_again(const Hello& hello) const;
  void settle(Member& member);
  void join(Member& member, Hello hello);
  void give_place(Member& member, Rank& rank);
  void note_here(Rank& rank);
  std::vector<Peer> peers() const;
  void take_control(Member& by, Rank& rank, const Frame& frame);
  void take_endpoint(Rank& rank, const Frame& frame);
  void take_done(Rank& rank);
  void take_leave(int rank, const Frame& frame);
  void take_present(Rank& rank);
  void call_the_roll(const std::string& reason);
  void end_roll_call();
  void tell_of_wait();
  bool is_calling_the_roll() const { return roll_call_end_ && !failure_; }

  void gone(Member& member);
  void left(Member& member);
  void refuse(Member& member, const std::string& why);
  void fail(Code code, std::string reason);
  void fail_silent(int rank, double seconds);
  void send_to_all(FrameType type, const Bytes& payload, const std::shared_ptr<Descriptor>& attached = nullptr);
  std::string describe(int rank) const;
  std::string list_missing() const;
  std::string list_absent() const;
  void flush(Member& member);

  std::vector<PrivateDescriptor> listeners_;
  std::size_t turn_ = 0;  ///< which of them is first
  const std::size_t places_ = std::min(kConnectionsMax, 2 * kRootChildren + Meetings::strangers_max());
  Secret secret_;
  double heartbeat_s_;
  std::shared_ptr<const std::atomic<bool>> unwanted_;
  const bool has_next_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<int, Rank> known_;
  std::vector<int> arrivals_[2];         ///< by TCP and by the Unix socket: each makes a tree
  std::map<int, ControlFile> controls_;  ///< by leader
  std::size_t hosts_ = 0;                ///< once all have come
  std::string first_rank_;               ///< who said how many ranks there are
  int ranks_ = 0;                        ///< 0 until the first hello
  int hellos_ = 0;                       ///< all that were proved, duplicates too
  int here_ = 0;
  int done_ = 0;
  int endpoints_ = 0;
  bool complete_ = false;
  bool released_ = false;
  bool abandoned_ = false;  ///< whoever made the id expects no more ranks: once failed, no late comers to tell
  bool refusal_told_ = false;
  bool left_told_ = false;
  std::optional<Error> failure_;
  std::optional<Clock::time_point> roll_call_end_;
  std::string roll_call_reason_;  ///< whose time was over
  int present_ = 0;
  std::atomic<std::size_t> connections_{0};
  std::size_t most_connections_ = 0;
  std::optional<LongWait> wait_;  ///< since the first rank came
  Clock::time_point linger_end_ = {};
  Clock::time_point accept_again_ = {};
  std::optional<Clock::time_point> starved_since_;  ///< no descriptor for who comes
};

}  // namespace tutti::comm
