// RootClient: a rank's side of the conversation with the bootstrap root (see bootstrap_root.h), by the tree that all ranks are in
// (bootstrap_tree.h).
#pragma once

#include "comm/bootstrap_tree.h"
#include "comm/messages.h"
#include "comm/patience.h"
#include "comm/unique_id.h"

#include <poll.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::comm {

class RootClient {
 public:
  /// Rank `self.rank` of `ranks` comes: it says its hello to the root and takes its place in the tree. Tries again while the root is too busy
  /// to take connections. The root, and later who is next to it in the tree, that gives no sign of life for `heartbeat_s` is a failure; 0: never.
  static Result<RootClient> enter(const UniqueId& id, const Patience& patience, int ranks, const Peer& self,
                                  double heartbeat_s = 10);
  /// Tells the root that it is not needed.
  static Status release(const UniqueId& id, const Patience& patience);
  /// Tells the root, and by it everybody, why a rank will not come.
  static Status excuse(const UniqueId& id, const Patience& patience, int rank, const std::string& why);

  Status send(FrameType type, const Bytes& payload, std::shared_ptr<Descriptor> attached = nullptr);
  /// Waits for the next frame, which must be of this type; the ranks below get it too. What the root says of a failure of all is the error.
  /// When the time is over, the root is asked who is missing.
  Result<Bytes> expect(FrameType type);
  Result<Frame> expect_one_of(FrameType type, FrameType other);
  /// Waits until the ranks below have taken all that came for them. kRemote: one does not, for a minute, though it
  /// should give signs of life.
  Status finish_passing_on();
  /// What came with the last kControl; empty if nothing did.
  std::shared_ptr<Descriptor> take_file() { return std::exchange(file_, nullptr); }
  bool descriptor_lost() const { return connection_.descriptor_lost(); }

  /// What the root says of a failure of all while this rank is busy elsewhere, or that it is gone; nothing if all is well. Passes on what
  /// ranks below say, and to be called again when something comes:
  std::optional<Error> failure_now();
  void add_to(std::vector<pollfd>& watched);
  /// Waits for what the root says of a failure of all, if that comes soon.
  Status hear_failure();

  /// Connections that this rank has in the tree.
  std::size_t connections() const { return 1 + (links_ ? links_->children() : 0); }

  /// Tells the root, and by it everybody, why this rank gives up. Returns `why`.
  Error leave(Error why);

 private:
  RootClient(const UniqueId& id, Connection connection, const Patience& patience)
      : id_(id), connection_(std::move(connection)), patience_(&patience) {}

  /// The proved message. `by_unix_socket`: how the root was reached.
  using Body = std::function<Result<Bytes>(bool by_unix_socket)>;
  /// Connects with the root, by the Unix socket where that is this host's, else by TCP, and proves to know the secret. `rank`: whose hello it is; -1:
  /// it is none. To a hello the root's answer is waited for: until then it may have dropped the connection for want of room.
  /// `heartbeat_s`: as enter() has it.
  static Result<RootClient> join(const UniqueId& id, const Patience& patience, FrameType type, const Body& body,
                                 int rank = -1, double heartbeat_s = 0);
  Status handshake(FrameType type, const Body& body, int rank);
  Status go_below(const TreePlace& place);

  Patience::Outcome wait(short events);
  void pass_up();
  void pass_down(const Frame& frame);
  Status send_all();
  Result<Frame> next_frame();
  std::optional<Error> ask_root(FrameType type, const Bytes& payload);
  Error give_up(Patience::Outcome outcome);
  Error above_gone();
  std::optional<Error> own_trouble();
  std::optional<Error> above_silent();
  Error root_gone() const;
  Error not_of_this_job(const Error& what);
  Error tell_below(Error why);
  void await_failure();

  UniqueId id_;
  Connection connection_;  ///< with the root, or the rank above
  const Patience* patience_;
  double heartbeat_s_ = 0;
  int rank_ = -1;
  std::string root_;   ///< "process 12", or "the process at 10.0.0.1:4711"
  std::string above_;  ///< "rank 3 (process 12)"; empty: the root
  Bytes place_;        ///< the answer to the hello
  int parent_ = kBelowRoot;
  std::unique_ptr<TreeLinks> links_;  ///< none where there are so few ranks that all are the root's own
  std::shared_ptr<Descriptor> file_;
  std::deque<Frame> kept_;  ///< that failure_now() has come across; passed on already
  bool in_place_ = false;   ///< in the tree: the end of the connection is the end of who is above
  bool above_gone_ = false;
  bool met_root_ = false;      ///< it has proved that it knows the secret
  bool met_stranger_ = false;  ///< what answers is no root of this id, or no rank
  bool failure_passed_on_ = false;
  bool done_ = false;  ///< says nothing more of itself, so that nothing is unread when the connection above is closed
};

}  // namespace tutti::comm
