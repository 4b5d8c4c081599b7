#include "comm/connection.h"

#include "base/assert.h"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::uint32_t kFrameMagic = 0x49545554;  // "TUTI"
constexpr int kAttachedMax = 4;

}  // namespace

Connection::SharedFrame Connection::make_frame(FrameType type, const Bytes& payload) {
  WireWriter writer;
  writer.number(kFrameMagic)
      .number(static_cast<std::uint32_t>(type))
      .number(static_cast<std::uint32_t>(payload.size()));
  writer.raw(payload);
  return std::make_shared<const Bytes>(writer.take());
}

void Connection::queue(FrameType type, const Bytes& payload, std::shared_ptr<Descriptor> attached) {
  outbox_.push_back(Outgoing{make_frame(type, payload), 0, std::move(attached)});
}

ssize_t Connection::send_some(Outgoing& outgoing) {
  iovec part = {const_cast<std::uint8_t*>(outgoing.frame->data()) + outgoing.sent,
                outgoing.frame->size() - outgoing.sent};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (outgoing.attached) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = outgoing.attached->get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool Connection::flush() {
  while (!outbox_.empty()) {
    Outgoing& outgoing = outbox_.front();
    const ssize_t sent = send_some(outgoing);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == ETOOMANYREFS) {
        // The user has as many descriptors under way as it may; they arrive soon.
        usleep(1000);
        return true;
      }
      return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
    }
    outgoing.attached.reset();  // It went with the first byte.
    outgoing.sent += static_cast<std::size_t>(sent);
    if (outgoing.sent == outgoing.frame->size()) outbox_.pop_front();
  }
  return true;
}

void Connection::show_life() {
  const auto now = std::chrono::steady_clock::now();
  if (now - shown_ < kLifeTime) return;
  shown_ = now;
  // What waits to be sent is a sign as good.
  if (outbox_.empty()) queue(FrameType::kSignOfLife, {});
  (void)flush();
}

bool Connection::is_silent(double seconds) {
  const auto now = std::chrono::steady_clock::now();
  // This process itself was stopped, and with it perhaps all others.
  if (now - std::exchange(looked_, now) > 2 * kLifeTime) heard_ = now;
  const auto silent = now - heard_;
  return seconds > 0 && silent > std::chrono::duration<double>(seconds) && silent > 4 * kLifeTime;
}

ssize_t Connection::receive_some(std::uint8_t* data, std::size_t bytes) {
  iovec part = {data, bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kAttachedMax * sizeof(int))];
  if (accepts_descriptors_) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 || !accepts_descriptors_) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      const int kept = above_standard(fd);
      if (kept >= 0) descriptors_.emplace_back(kept);
      descriptor_lost_ |= kept < 0;
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) descriptor_lost_ = true;
  return got;
}

Connection::Input Connection::fill(std::size_t inbox_max) {
  std::uint8_t part[kPartBytes];
  while (inbox_.size() < inbox_max) {
    const ssize_t got = receive_some(part, std::min(sizeof(part), inbox_max - inbox_.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Input::kOpen;
    if (got <= 0) return Input::kClosed;
    inbox_.insert(inbox_.end(), part, part + got);
    heard_ = std::chrono::steady_clock::now();
  }
  return Input::kOpen;
}

Result<std::optional<Frame>> Connection::next() {
  if (inbox_.size() < kHeaderBytes) return std::optional<Frame>();
  WireReader reader(inbox_);
  const auto magic = reader.number<std::uint32_t>();
  const auto type = reader.number<std::uint32_t>();
  const auto length = reader.number<std::uint32_t>();
  if (magic != kFrameMagic)
    return error(Code::kRemote, fmt::format("bytes that are no bootstrap frame ({:#010x})", magic));
  if (length > payload_max_) {
    return error(Code::kRemote, fmt::format("a frame of {} bytes, {} are allowed", length, payload_max_));
  }
  if (inbox_.size() < kHeaderBytes + length) return std::optional<Frame>();
  const auto payload = reader.raw(length);
  Frame frame{static_cast<FrameType>(type), Bytes(payload.begin(), payload.end())};
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(kHeaderBytes + length));
  return std::optional<Frame>(std::move(frame));
}

std::string Connection::end_before_frame() const {
  if (inbox_.empty()) return "it closed the connection without a word";
  return fmt::format("it closed the connection after {} bytes, within its first frame", inbox_.size());
}

PrivateDescriptor Connection::release() {
  TUTTI_ASSERT(inbox_.empty() && outbox_.empty());
  return std::move(socket_);
}

Descriptor Connection::take_descriptor() {
  if (descriptors_.empty()) return {};
  Descriptor taken = std::move(descriptors_.front());
  descriptors_.pop_front();
  return taken;
}

}  // namespace tutti::comm
