// StripedStream: the ByteStream of several connected TCP sockets. One flow of TCP is carried by one core at each end and one path between
// them, which a fast network is more than. The bytes go over the sockets by turns, kStripeBytes over each: both ends count them, so
// that nothing is added and order stays.
#pragma once

#include "comm/tcp_stream.h"

#include <cstdint>
#include <vector>

namespace tutti::comm {

class StripedStream final : public transport::ByteStream {
 public:
  static constexpr std::size_t kStripeBytes = std::size_t{64} << 10;

  /// In the same order on both sides.
  explicit StripedStream(std::vector<PrivateDescriptor> sockets, ZeroCopy::Options zero_copy = {});
  Moved send(std::span<const iovec> parts) override;
  Moved send_lent(std::span<const iovec> parts) override;
  std::size_t lends_from() const override;
  bool is_released() override;
  Moved receive(std::span<const iovec> parts) override;
  void finish() override;
  bool has_arrived() const override;
  void settle_pacing(bool one_system) override;
  /// That on which the next byte comes.
  int descriptor() const override { return of(received_).descriptor(); }
  int output_descriptor() const override { return of(sent_).descriptor(); }

 private:
  const TcpStream& of(std::uint64_t position) const { return streams_[position / kStripeBytes % streams_.size()]; }
  template <class Move>
  Moved move(std::span<const iovec> parts, std::uint64_t& position, const Move& move_part);

  std::vector<TcpStream> streams_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace tutti::comm
