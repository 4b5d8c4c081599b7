// TcpStream: the ByteStream of a connected TCP socket, made with Pacing::kNone (tcp_socket.h).
#pragma once

#include "comm/private_descriptor.h"
#include "comm/zero_copy.h"
#include "transport/byte_stream.h"

#include <memory>

namespace tutti::comm {

/// All of them together.
std::size_t bytes_in(std::span<const iovec> parts);

class TcpStream final : public transport::ByteStream {
 public:
  explicit TcpStream(PrivateDescriptor socket, ZeroCopy::Options zero_copy = {});
  Moved send(std::span<const iovec> parts) override;
  Moved send_lent(std::span<const iovec> parts) override;
  std::size_t lends_from() const override { return zero_copy_ ? zero_copy_->from_bytes() : ByteStream::lends_from(); }
  bool is_released() override { return !zero_copy_ || zero_copy_->is_released(); }
  Moved receive(std::span<const iovec> parts) override;
  void finish() override;
  bool has_arrived() const override;
  void settle_pacing(bool one_system) override;
  int descriptor() const override { return socket_.get(); }

 private:
  PrivateDescriptor socket_;
  std::unique_ptr<ZeroCopy> zero_copy_;  ///< ends before the socket; nullptr: all is copied
};

}  // namespace tutti::comm
