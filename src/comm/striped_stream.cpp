#include "comm/striped_stream.h"

#include <algorithm>
#include <array>

namespace tutti::comm {
namespace {

using Moved = transport::ByteStream::Moved;

constexpr std::size_t kPartsMax = 64;

/// The `bytes` bytes of the parts from `from` on, as far as there is room for parts.
std::size_t cut(std::span<const iovec> parts, std::size_t from, std::size_t bytes, std::array<iovec, kPartsMax>& made) {
  std::size_t count = 0;
  for (const iovec& part : parts) {
    const std::size_t skipped = std::min(from, part.iov_len);
    from -= skipped;
    const std::size_t now = std::min(part.iov_len - skipped, bytes);
    if (now == 0) continue;
    if (count == made.size()) break;
    made[count++] = {static_cast<std::byte*>(part.iov_base) + skipped, now};
    bytes -= now;
  }
  return count;
}

}  // namespace

StripedStream::StripedStream(std::vector<PrivateDescriptor> sockets, ZeroCopy::Options zero_copy) {
  for (PrivateDescriptor& socket : sockets) streams_.emplace_back(std::move(socket), zero_copy);
}

/// Stripe by stripe, until a socket takes or has no more.
template <class Move>
Moved StripedStream::move(std::span<const iovec> parts, std::uint64_t& position, const Move& move_part) {
  const std::size_t total = bytes_in(parts);
  Moved all;
  while (all.bytes < total) {
    const std::size_t left = kStripeBytes - position % kStripeBytes;
    std::array<iovec, kPartsMax> some;
    const std::size_t count = cut(parts, all.bytes, left, some);
    const std::span<const iovec> wanted(some.data(), count);
    const Moved moved = move_part(streams_[position / kStripeBytes % streams_.size()], wanted);
    position += moved.bytes;
    all.bytes += moved.bytes;
    all.state = moved.state;
    if (moved.bytes < bytes_in(wanted)) break;
  }
  return all;
}

Moved StripedStream::send(std::span<const iovec> parts) {
  return move(parts, sent_, [](TcpStream& stream, std::span<const iovec> some) { return stream.send(some); });
}

Moved StripedStream::send_lent(std::span<const iovec> parts) {
  return move(parts, sent_, [](TcpStream& stream, std::span<const iovec> some) { return stream.send_lent(some); });
}

std::size_t StripedStream::lends_from() const {
  std::size_t least = ByteStream::lends_from();
  for (const TcpStream& stream : streams_) least = std::min(least, stream.lends_from());
  return least;
}

bool StripedStream::is_released() {
  return std::ranges::all_of(streams_, [](TcpStream& stream) { return stream.is_released(); });
}

Moved StripedStream::receive(std::span<const iovec> parts) {
  return move(parts, received_, [](TcpStream& stream, std::span<const iovec> some) { return stream.receive(some); });
}

void StripedStream::finish() {
  for (TcpStream& stream : streams_) stream.finish();
}

void StripedStream::settle_pacing(bool one_system) {
  for (TcpStream& stream : streams_) stream.settle_pacing(one_system);
}

bool StripedStream::has_arrived() const {
  return std::ranges::all_of(streams_, [](const TcpStream& stream) { return stream.has_arrived(); });
}

}  // namespace tutti::comm
