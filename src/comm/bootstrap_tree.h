// The tree by which ranks stay in touch with the bootstrap root, while nobody holds more than a few connections, the root included. It has the
// ranks in the order in which they came: the first kRootChildren are the root's own, and each of the others is below an earlier one, which the
// root tells it. Two such trees are below a root: of ranks that came by its Unix socket, and of those that came by TCP. Each is made of the like.
//
//   root ---> ranks that came first ---> 4 each of those that came next ---> 4 each ...
//
// Upwards go frames of single ranks, in kFrom; downwards what all ranks are told. Whoever loses a rank below tells the root; whoever loses
// the rank above asks the root (root_client.h).
#pragma once

#include "base/result.h"
#include "comm/connection.h"
#include "comm/meetings.h"
#include "comm/messages.h"
#include "comm/private_descriptor.h"

#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::comm {

inline constexpr int kRootChildren = 16;
inline constexpr int kRankChildren = 4;
inline constexpr int kBelowRoot = -1;

/// Below which arrival the i-th one is; kBelowRoot: below none.
constexpr int parent_of(int arrival) {
  return arrival < kRootChildren ? kBelowRoot : (arrival - kRootChildren) / kRankChildren;
}

/// A rank's connections in the tree but the one with the root. Driven by the rank's own waits: nothing here waits but flush_down().
class TreeLinks {
 public:
  /// Listens for the ranks below: by a Unix socket, or by TCP. One that gives no sign of life for `heartbeat_s` is reported; 0: never.
  static Result<std::unique_ptr<TreeLinks>> listen(int rank, int ranks, const Secret& secret, bool by_unix_socket,
                                                   double heartbeat_s);

  const ListenPlace& place() const { return place_; }

  /// Connects with the rank above, which is at `place`.
  void seek_above(const TreePlace& place);
  /// The connection with it, once it is made.
  std::optional<Connection> take_above() { return std::exchange(above_, std::nullopt); }
  /// What went wrong at each of its addresses.
  std::optional<Error> above_not_reached() const { return meetings_->not_reached(); }
  /// This rank has had no descriptor for who is above or below for a while.
  std::optional<Error> starved() const {
    return meetings_ ? meetings_->starved(Meetings::kDescriptorPatience) : std::nullopt;
  }

  /// What to poll for, if serve() is to be called when something comes.
  void add_to(std::vector<pollfd>& watched);
  /// Takes what has come from below, and sends there what waits to be.
  void serve();

  /// A frame for the root.
  struct Upward {
    FrameType type;
    Bytes payload;
    std::shared_ptr<Descriptor> attached;
  };
  /// All that have come, in order.
  std::vector<Upward> take_upward() { return std::exchange(upward_, {}); }

  /// To all ranks below. No more of them come after the first one.
  void send_down(const Frame& frame, const std::shared_ptr<Descriptor>& attached);
  /// How many ranks are below this one.
  std::size_t children() const { return children_.size(); }
  /// One of those that have not taken all that was sent, or -1.
  int slow_child() const;
  /// Until all have, for so long at most. What comes from below waits meanwhile.
  void flush_down(std::chrono::milliseconds at_most);

 private:
  struct Child {
    int rank;
    Connection connection;
    bool open = true;
    bool done = false;  ///< says nothing more of itself
  };

  TreeLinks(int rank, int ranks, double heartbeat_s) : rank_(rank), ranks_(ranks), heartbeat_s_(heartbeat_s) {}
  bool takes(const Meetings::Key& key) const;
  void keep(const Meetings::Key& key, Connection connection);
  void listen_to(Child& child);
  void say_of(int rank, FrameType type, Bytes payload, std::shared_ptr<Descriptor> attached = nullptr);

  const int rank_;
  const int ranks_;
  const double heartbeat_s_;
  int parent_ = kBelowRoot;
  PrivateDescriptor listener_;
  ListenPlace place_;
  ListenPlace parents_place_;
  std::unique_ptr<Meetings> meetings_;  ///< until the first frame has gone down
  std::optional<Connection> above_;
  std::vector<Child> children_;
  std::vector<Upward> upward_;
};

}  // namespace tutti::comm
