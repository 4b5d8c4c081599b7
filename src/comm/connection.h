// Connection: length-capped frames over a non-blocking stream socket, optionally with a descriptor attached.
// The framing is the same for Unix sockets and TCP; only the descriptors need a Unix socket.
//
//   frame := magic u32 | type u32 | length u32 | `length` bytes          all little-endian
#pragma once

#include "base/descriptor.h"
#include "base/result.h"
#include "comm/private_descriptor.h"
#include "comm/wire.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

namespace tutti::comm {

/// The values are the protocol: change kProtocolVersion when they change. "Up" and "down" are the bootstrap's tree (bootstrap_tree.h).
enum class FrameType : std::uint32_t {
  kGreeting = 1,     ///< rank to root: nonce
  kChallenge = 2,    ///< root to rank: nonce, proof that the root knows the secret
  kHello = 3,        ///< rank to root: proof that the rank knows the secret, then Hello
  kPlace = 21,       ///< root to rank: below whom it is
  kHere = 23,        ///< up, in the name of a rank that has come to its place
  kRegistered = 25,  ///< root to rank, when it has heard that, or why a rank asks: all else goes by the tree
  kTable = 4,        ///< down: every rank's Peer
  kControl =
      5,  ///< up, of a host's leader: the size of its control segment, and its descriptor on one machine; down: of all hosts
  kDone = 6,       ///< up: has everything
  kComplete = 7,   ///< down: every rank has everything
  kFailure = 8,    ///< down: code and reason; nothing follows
  kLeave = 9,      ///< up: why it gives up
  kLost = 24,      ///< up: a rank whose connection has ended
  kRollCall = 26,  ///< down: whoever is there says so
  kPresent = 27,   ///< up: that
  kSilent = 28,    ///< up: a rank that gives no sign of life any more, and for how long
  kFrom =
      22,  ///< up: any of these of another rank than the one that sends it; instead of kHello: of one that has lost the rank above it
  kRelease = 10,  ///< a rank instead of kHello: this root is not needed
  // Where ranks are on several hosts:
  kListen = 20,     ///< down, before kTable: to say where it listens for calls
  kEndpoint = 11,   ///< up: that
  kEndpoints = 12,  ///< down, behind kTable: of all ranks
  kAttach = 13,     ///< rank to rank, in place of kHello: which ranks, and what the connection is for
  kAttached = 14,   ///< the answer
  // Afterwards, between ranks that watch each other:
  kSignOfLife = 15,  ///< before too, between neighbours in the tree
  kTold = 16,        ///< the communicator's failure
  kGoodbye = 17,     ///< this rank leaves; nothing follows
  kShrink = 18,      ///< what a rank says in ncclCommShrink
  kGone = 19,        ///< a rank has died, left or does not answer: for those that do not watch it
};

struct Frame {
  FrameType type;
  Bytes payload;
};

class Connection {
 public:
  enum class Input { kOpen, kClosed };
  /// Largest payload that is accepted from the other side.
  static constexpr std::size_t kStrangerPayloadMax = 1024;
  static constexpr std::size_t kRootPayloadMax = std::size_t{64} << 20;

  Connection(PrivateDescriptor socket, std::size_t payload_max)
      : socket_(std::move(socket)), payload_max_(payload_max) {}
  Connection(Connection&&) = default;
  Connection& operator=(Connection&&) = default;

  int fd() const { return socket_.get(); }
  /// From now on descriptors are taken in too. Before, the kernel drops them.
  void accept_descriptors() { accepts_descriptors_ = true; }

  /// From now on longer frames are taken in: whoever sends them is known.
  void accept_up_to(std::size_t payload_max) { payload_max_ = payload_max; }

  /// Queues a frame; flush sends it. The receiver gets a copy of the descriptor, if there is one.
  void queue(FrameType type, const Bytes& payload, std::shared_ptr<Descriptor> attached = nullptr);
  /// A frame that goes to many: they share its bytes.
  using SharedFrame = std::shared_ptr<const Bytes>;
  static SharedFrame make_frame(FrameType type, const Bytes& payload);
  void queue(SharedFrame frame, std::shared_ptr<Descriptor> attached = nullptr) {
    outbox_.push_back(Outgoing{std::move(frame), 0, std::move(attached)});
  }
  /// Sends what the socket takes. False: the other side is gone.
  bool flush();
  bool wants_to_write() const { return !outbox_.empty(); }
  /// Queues and sends a sign of life, if the last one was a while ago.
  void show_life();
  /// So often.
  static constexpr auto kLifeTime = std::chrono::milliseconds(200);
  /// Whether nothing at all has come for so long, and for the time of a few signs of life. Never: 0.
  bool is_silent(double seconds);

  /// Takes in what is there, without blocking. Frames that came before the end can still be taken after kClosed.
  Input fill() { return fill(kHeaderBytes + payload_max_ + kPartBytes); }
  /// The same, as long as fewer than so many bytes wait here: what comes behind them stays in the socket.
  Input fill(std::size_t inbox_max);
  static constexpr std::size_t kHeaderBytes = 12;
  /// The next whole frame, nothing if none is complete, or an error for bytes that are no frame.
  Result<std::optional<Frame>> next();
  /// How it ended, where the other side has closed it before it said anything: "it closed the connection without a word".
  std::string end_before_frame() const;
  /// The descriptor of the oldest frame that carried one; empty if none came.
  Descriptor take_descriptor();
  /// The socket, for other uses; only while no byte of a frame is left here.
  PrivateDescriptor release();
  /// True if the kernel had to drop a descriptor because this process may open no more.
  bool descriptor_lost() const { return descriptor_lost_; }

 private:
  /// Not more than a frame and so much at a time: who sends without end is looked at in between.
  static constexpr std::size_t kPartBytes = 16384;

  struct Outgoing {
    SharedFrame frame;
    std::size_t sent = 0;
    std::shared_ptr<Descriptor> attached;
  };
  ssize_t send_some(Outgoing& outgoing);
  ssize_t receive_some(std::uint8_t* data, std::size_t bytes);

  PrivateDescriptor socket_;
  std::size_t payload_max_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_ = heard_;
  std::chrono::steady_clock::time_point looked_ = heard_;
  bool accepts_descriptors_ = false;
  bool descriptor_lost_ = false;
  Bytes inbox_;
  std::deque<Outgoing> outbox_;
  std::deque<Descriptor> descriptors_;
};

}  // namespace tutti::comm
