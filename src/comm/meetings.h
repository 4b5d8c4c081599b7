// Meetings: the connections that a rank is making with others, each proved by the unique id's secret. It is driven by whoever polls: nothing here waits.
//
//   connecting rank                          listening rank
//    | -- greeting (nonce) ------------------> |   the handshake of bootstrap_root.h, so that strangers cost a place for
//    | <-- challenge (nonce, proof) ---------- |   a few seconds and nothing else
//    | -- attach (proof, ranks, purpose) ----> |
//    | <-- attached ------------------------- |   now it is made for who connects ...
//    | -- attached -------------------------> |   ... and now for who listens. The socket is the two ranks' own
//
// Who connects may give an attempt up until it is made, and try again. Who listens sends nothing of its own by a connection before it is
// sure that the other side has kept that one.
//
// Two ranks may connect with each other at once. A rank takes the other's attempt and drops its own, but for one case: the higher rank that
// has sent its attach, to which the lower one answers.
#pragma once

#include "comm/listen_place.h"
#include "comm/messages.h"

#include <poll.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {

/// Values above are for data too: the second socket of a pair, the third, and so on.
enum class Purpose : std::uint8_t { kTree, kData, kWatch };
constexpr Purpose data_socket(std::size_t number) {
  return number == 0 ? Purpose::kData : static_cast<Purpose>(static_cast<std::size_t>(Purpose::kWatch) + number);
}
/// Which socket of a pair it is; none: not for data.
constexpr std::optional<std::size_t> number_of(Purpose purpose) {
  const auto value = static_cast<std::size_t>(purpose);
  if (purpose == Purpose::kData) return 0;
  if (value <= static_cast<std::size_t>(Purpose::kWatch)) return std::nullopt;
  return value - static_cast<std::size_t>(Purpose::kWatch);
}

class Meetings {
 public:
  using Clock = std::chrono::steady_clock;
  /// Another rank, and what for.
  using Key = std::pair<int, Purpose>;
  struct Callbacks {
    /// Whether that connection is wanted now.
    std::function<bool(const Key&)> expects;
    /// It is made. What the other side has sent since is in the socket.
    std::function<void(const Key&, Connection)> on_made;
  };

  /// Of rank `rank` of `ranks`, which listens at `listener` for as long as this lives.
  Meetings(int rank, int ranks, const Secret& secret, const PrivateDescriptor& listener);

  /// How many connections are taken in at a time that are not proved yet: a share of the descriptors that this process may have, for each
  /// port, as strangers are not to take those that it needs itself.
  static std::size_t strangers_max();

  /// From here on. Those that came for what was not wanted are looked at again.
  void begin(Callbacks callbacks);
  /// Whoever comes for what is not wanted need not wait: it never will be.
  void turn_away_others() { keeps_early_ = false; }
  /// Nobody need wait any more: drops all that is under way, but for what the other side may have kept already. No add_to() follows.
  void turn_away_all();
  /// This rank connects with the other one, which is at `there` until this is over: again and again, by its addresses in their order, but
  /// that the sockets of a pair begin with those abreast by turns, and that those that did not answer last come last.
  void seek(const Key& key, const ListenPlace& there);
  /// Takes what the other side has kept by now: on_made() is called before this returns. For a rank of which something has come by
  /// another way.
  void settle(int peer);
  /// Nothing more is to be made with that rank; or no more of that kind.
  void forget(int peer);
  void forget(const Key& key);
  /// Nothing is under way.
  bool is_idle() const { return outgoing_.empty() && incoming_.empty(); }

  /// What to poll for, and what came of it: the same places, in that order. Attempts that are due begin.
  void add_to(std::vector<pollfd>& watched);
  void serve(std::span<const pollfd> polled);
  /// How long to poll at most while something is under way.
  static constexpr std::chrono::milliseconds kLookTime{25};
  /// For a network that is down to come back.
  static constexpr std::chrono::seconds kReachTime{30};
  /// For how long another rank is tried to be reached, of TUTTI_HEARTBEAT_TIMEOUT_S and TUTTI_TIMEOUT_S: kReachTime, or four fifths of the latter if
  /// that is less, so that what was tried is said before those that wait for it run out of patience. Where nobody minds a rank that is silent, one
  /// that does not answer may be one that a debugger has stopped: then by the latter alone.
  static std::chrono::duration<double> reach_time(double heartbeat_timeout_s, double timeout_s);
  /// For this process to get a descriptor for one more connection, if starved() is to end all.
  static constexpr std::chrono::seconds kDescriptorPatience{5};

  /// This rank has had no descriptor for what it seeks, or for who waits at its listener, for so long by now; kSystem.
  std::optional<Error> starved(Clock::duration so_long) const;

  /// How attempts to connect have gone.
  struct Attempts {
    int rounds = 0;        ///< in which each of the other's addresses had its turn
    bool refused = false;  ///< nobody listens any more, at none of them, as of the last round
    bool silent = false;   ///< it is sought, and nothing has ever come back, not even a refusal
  };
  /// All zeros for what is not sought.
  Attempts attempts(const Key& key) const;

  /// What went wrong at each address of that rank, or of the first one that is sought; kRemote. Nothing: none is.
  std::optional<Error> not_reached(std::optional<int> peer = std::nullopt) const;

 private:
  /// This rank's way to another.
  struct Outgoing {
    enum class State { kIdle, kConnecting, kGreeted, kProved };
    Key key;
    const ListenPlace* there = nullptr;
    State state = State::kIdle;
    std::vector<std::size_t> order;  ///< in which the ways there have their turn
    std::size_t turn = 0;            ///< of the order
    Clock::time_point due = {};      ///< idle: not before; else: to be given up
    std::optional<Connection> connection;
    Greeting greeting = {};
    std::vector<std::string> why;  ///< by candidate: what went wrong last
    std::vector<bool> refused;     ///< the same: whether it was that nobody listens
    int rounds = 0;                ///< all had their turn so often
    bool silent = true;            ///< whatever was tried, nothing has come back

    Outgoing() = default;
    Outgoing(const Outgoing&) = delete;
    Outgoing& operator=(const Outgoing&) = delete;
    ~Outgoing() { let_go(); }
    /// Of the connection, if there is one.
    void let_go();
    std::size_t candidate() const { return order[turn]; }
  };

  /// Somebody who has connected.
  struct Incoming {
    enum class State { kNew, kChallenged, kAttached, kOver };
    Connection connection;
    Clock::time_point since;
    std::string from;
    State state = State::kNew;
    Greeting greeting = {};
    Challenge challenge = {};
    Key key = {-1, Purpose::kTree};  ///< once it is attached
  };

  /// Somebody who is proved to be a rank, and came early.
  struct Early {
    Key key;
    Connection connection;
  };

  /// No descriptor.
  struct Starvation {
    Clock::time_point since;
    int why = 0;
  };
  static void note_lack(std::optional<Starvation>& starvation, int why);

  enum class Failure : std::uint8_t { kRefused, kSilence, kOther };
  static Failure failure_of(int connect_errno);
  void start(Outgoing& way);
  void fail(Outgoing& way, const std::string& why, Failure failure = Failure::kOther);
  void advance(Outgoing& way);
  void greet(Outgoing& way);
  bool prove(Outgoing& way, const Bytes& payload);
  bool finish(Outgoing& way);
  Outgoing* way_to(const Key& key);
  Incoming* attached(const Key& key);

  void accept_all();
  void pause_accepting(int why);
  void serve(Incoming& guest);
  void challenge(Incoming& guest, const Bytes& payload);
  void admit(Incoming& guest, const Bytes& payload);
  void welcome(Incoming& guest);
  void confirm(Incoming& guest);
  void refuse(Incoming& guest, const std::string& why);
  void hand_over(const Key& key, Connection made);
  void drop_late();
  void note(const IpAddress& address, bool answers);

  const int rank_;
  const int ranks_;
  const Secret secret_;
  const int listener_;
  const std::size_t places_ = strangers_max();
  Callbacks callbacks_;
  bool keeps_early_ = true;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::vector<Early> early_;
  std::vector<IpAddress> mute_;    ///< other ranks' addresses where no rank has answered, nor come from since
  std::size_t polled_guests_ = 0;  ///< of add_to()
  std::size_t polled_ways_ = 0;
  bool refusal_told_ = false;
  Clock::time_point accepts_again_ = {};
  bool pause_told_ = false;
  std::optional<Starvation> starved_listener_;
  std::optional<Starvation> starved_ways_;
};

}  // namespace tutti::comm
