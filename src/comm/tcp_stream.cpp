#include "comm/tcp_stream.h"

#include "comm/tcp_socket.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace tutti::comm {
namespace {

using Moved = transport::ByteStream::Moved;
using State = transport::ByteStream::State;

msghdr message_of(std::span<const iovec> parts) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
/// Messages up to this go as one piece: taking a list of parts over costs the kernel more than the copy costs here.
constexpr std::size_t kGatheredBytes = 512;

bool is_for_now(int failure) { return failure == EAGAIN || failure == ENOBUFS || failure == ENOMEM; }

/// A call may come hours after the last one, and what lies between, a firewall say, forgets connections by which nothing goes, some after 350 s.
void keep_remembered(int socket) {
  constexpr int kOn = 1;
  constexpr int kIdleS = 60;
  (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof(kOn));
  (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleS, sizeof(kIdleS));
}

}  // namespace

TcpStream::TcpStream(PrivateDescriptor socket, ZeroCopy::Options zero_copy)
    : socket_(std::move(socket)), zero_copy_(ZeroCopy::open(socket_.get(), zero_copy)) {
  keep_remembered(socket_.get());
}

std::size_t bytes_in(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

Moved TcpStream::send(std::span<const iovec> parts) {
  const std::size_t bytes = bytes_in(parts);
  const msghdr message = message_of(parts);
  std::byte gathered[kGatheredBytes];
  if (bytes <= kGatheredBytes) {
    std::byte* end = gathered;
    for (const iovec& part : parts) end = std::copy_n(static_cast<const std::byte*>(part.iov_base), part.iov_len, end);
  }
  ssize_t sent = -1;
  do {
    sent = bytes <= kGatheredBytes ? ::send(socket_.get(), gathered, bytes, kFlags)
                                   : sendmsg(socket_.get(), &message, kFlags);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {static_cast<std::size_t>(sent), State::kOpen};
  return {0, is_for_now(errno) ? State::kOpen : State::kEnded};
}

Moved TcpStream::send_lent(std::span<const iovec> parts) {
  if (bytes_in(parts) < lends_from()) return send(parts);
  const msghdr message = message_of(parts);
  const ssize_t sent = zero_copy_->send(message, kFlags);
  if (sent >= 0) return {static_cast<std::size_t>(sent), State::kOpen};
  if (errno == EAGAIN) return {};
  // The kernel cannot keep more of such sends, or this memory (a driver's); or the stream has ended, as this one finds, too.
  return send(parts);
}

Moved TcpStream::receive(std::span<const iovec> parts) {
  msghdr message = message_of(parts);
  ssize_t got = -1;
  do {
    got = parts.size() == 1 ? recv(socket_.get(), parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT)
                            : recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return {static_cast<std::size_t>(got), State::kOpen};
  return {0, got < 0 && is_for_now(errno) ? State::kOpen : State::kEnded};
}

void TcpStream::finish() { shutdown(socket_.get(), SHUT_WR); }

/// Containers of one system can have a network between them all the same, or what takes its place in a test.
void TcpStream::settle_pacing(bool one_system) {
  constexpr std::uint32_t kNearUs = 1000;
  if (!one_system || round_trip_us(socket_.get()).value_or(kNearUs) >= kNearUs) pace_by_system(socket_.get());
}

/// The end is acknowledged at once, which a short message is not.
bool TcpStream::has_arrived() const {
  int unacknowledged = 0;
  return ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

}  // namespace tutti::comm
