// The bootstrap root: the server side of one communicator's bootstrap, one thread around poll.
//
//   rank                root
//    | -- greeting ---> |            a connection is a stranger's until its hello is proved; strangers have
//    | <-- challenge -- |            kHandshakeTime, are never waited for, and are dropped without harm to others
//    | -- hello ------> | joined
//    | <-- table ------ |            when all have joined, if they are on one host; else:
//    | <-- listen ----- |
//    | -- endpoint ---> |            where each rank listens for the others, and when all have said so:
//    | <-- place ------ |            from whom it gets the tables, and who gets them from it (table_tree.h)
//    | <-- table ------ |            a few ranks only
//    | <-- endpoints -- |
//    | -- control ----> |            leader of a host only: the memory file of that host
//    | <-- control ---- |            the host's others
//    | -- done -------> |
//    | <-- complete --- |            when all are done; the root ends
//
// Whatever goes wrong with a joined rank before "complete" is a failure of all, told to all, late comers included.
#pragma once

#include "comm/messages.h"
#include "comm/private_descriptor.h"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::comm {

class BootstrapRoot {
 public:
  /// At least one listener: of this host's ranks, of other hosts', or both.
  BootstrapRoot(std::vector<PrivateDescriptor> listeners, const Secret& secret)
      : listeners_(std::move(listeners)), secret_(secret) {}

  /// Returns when the bootstrap is complete or has failed and everybody was told.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kSilent, kChallenged, kJoined, kGone };

  struct Member {
    Connection connection;
    Clock::time_point since;
    std::int32_t pid = 0;  ///< 0: of another host, or unknown
    std::string from;      ///< "process 12" or "10.0.0.2:4711"
    State state = State::kSilent;
    Greeting greeting = {};
    Challenge challenge = {};
    Peer peer = {};
    std::optional<Bytes> endpoint;  ///< where it listens, if ranks are on several hosts
    bool done = false;

    bool is_stranger() const { return state == State::kSilent || state == State::kChallenged; }
  };

  bool finished() const;
  int poll_timeout_ms(Clock::time_point now) const;
  void poll_once();
  void accept_all(int listener, Clock::time_point now);
  void make_room(Clock::time_point now);
  void drop_late_strangers(Clock::time_point now);

  void serve(Member& member);
  void handle(Member& member, const Frame& frame);
  void challenge(Member& member, const Frame& frame);
  void admit(Member& member, const Frame& frame);
  void settle(Member& member);
  void join(Member& member, const Hello& hello);
  void relay_control(Member& member, const Frame& frame);
  void take_endpoint(Member& member, const Frame& frame);
  void hand_down_tables();
  std::vector<Peer> peers() const;
  void take_done(Member& member);
  void take_leave(Member& member, const Frame& frame);

  void gone(Member& member);
  void refuse(Member& member, const std::string& why);
  void fail(Code code, std::string reason);
  void send_to_joined(FrameType type, const Bytes& payload);
  std::string describe(const Member& member) const;
  std::string list_missing() const;
  void flush(Member& member);

  std::vector<PrivateDescriptor> listeners_;
  Secret secret_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<int, Member*> ranks_joined_;      ///< not looked at after a failure: the dead are not taken out
  std::map<std::string, bool> host_served_;  ///< hosts whose control segment has come
  std::string first_rank_;                   ///< who said how many ranks there are
  int ranks_ = 0;                            ///< 0 until the first hello
  int hellos_ = 0;                           ///< all that were proved, duplicates too
  int done_ = 0;
  int endpoints_ = 0;
  bool all_joined_ = false;
  bool complete_ = false;
  bool released_ = false;
  bool abandoned_ = false;  ///< whoever made the id expects no more ranks: once failed, no late comers to tell
  bool refusal_told_ = false;
  std::optional<Error> failure_;
  Clock::time_point linger_end_ = {};
  Clock::time_point accept_again_ = {};
};

}  // namespace tutti::comm
