// TcpStream: the ByteStream of a connected TCP socket, made with Pacing::kNone (tcp_socket.h).
#pragma once

#include "comm/private_descriptor.h"
#include "transport/byte_stream.h"

namespace tutti::comm {

class TcpStream final : public transport::ByteStream {
 public:
  explicit TcpStream(PrivateDescriptor socket) : socket_(std::move(socket)) {}
  Moved send(std::span<const iovec> parts) override;
  Moved receive(std::span<const iovec> parts) override;
  void finish() override;
  bool has_arrived() const override;
  void settle_pacing(bool one_system) override;
  int descriptor() const override { return socket_.get(); }

 private:
  PrivateDescriptor socket_;
};

}  // namespace tutti::comm
