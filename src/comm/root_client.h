// RootClient: a rank's side of the conversation with the bootstrap root (see bootstrap_root.h).
#pragma once

#include "comm/messages.h"
#include "comm/patience.h"
#include "comm/unique_id.h"

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tutti::comm {

class RootClient {
 public:
  /// Connects (by the Unix socket where that is this host's, else by TCP) and proves to know the secret, with `type` (kHello or kRelease) and `body` as the proved message. Tries
  /// again while the root is too busy to take connections.
  static Result<RootClient> join(const UniqueId& id, const Patience& patience, FrameType type,
                                 std::span<const std::uint8_t> body);

  Status send(FrameType type, const Bytes& payload, std::shared_ptr<Descriptor> attached = nullptr);
  /// Waits for the next frame, which must be of this type. What the root says of a failure of all is the error. When
  /// the time is over, the root is asked who is missing.
  Result<Bytes> expect(FrameType type);
  Result<Frame> expect_one_of(FrameType type, FrameType other);
  Descriptor take_descriptor() { return connection_.take_descriptor(); }
  /// What the root says of a failure of all while this rank is busy elsewhere, or that it is gone; nothing if all is well.
  std::optional<Error> failure_now();
  /// By the Unix socket, which carries descriptors.
  bool is_local() const { return root_pid_ > 0; }
  bool descriptor_lost() const { return connection_.descriptor_lost(); }

  /// Tells the root, and by it everybody, why this rank gives up. Returns `why`.
  Error leave(Error why);

 private:
  RootClient(Connection connection, const Patience& patience)
      : connection_(std::move(connection)), patience_(&patience) {}

  Status handshake(const UniqueId& id, FrameType type, std::span<const std::uint8_t> body);
  Status send_all();
  Result<Frame> next_frame();
  Error give_up(Patience::Outcome outcome);
  Error root_gone() const;

  Connection connection_;
  const Patience* patience_;
  std::int32_t root_pid_ = 0;  ///< 0: on another host
  std::string root_;           ///< "process 12", or "the process at 10.0.0.1:4711"
  std::deque<Frame> kept_;     ///< that failure_now() has come across
  bool joined_ = false;        ///< the hello is sent: the end of the connection is the end of the root
  bool root_gone_ = false;
};

}  // namespace tutti::comm
