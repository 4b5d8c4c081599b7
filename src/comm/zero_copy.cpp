#include "comm/zero_copy.h"

#include "base/log.h"
#include "comm/tcp_socket.h"

#include <linux/errqueue.h>
#include <netinet/in.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace tutti::comm {
namespace {

constexpr std::size_t kNever = ~std::size_t{0};

/// nullptr: it is none of the kernel's words on such sends.
const sock_extended_err* word_in(msghdr& message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    const bool is_v4 = header->cmsg_level == SOL_IP && header->cmsg_type == IP_RECVERR;
    const bool is_v6 = header->cmsg_level == SOL_IPV6 && header->cmsg_type == IPV6_RECVERR;
    if (!is_v4 && !is_v6) continue;
    const auto* const word = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(header));
    if (word->ee_origin == SO_EE_ORIGIN_ZEROCOPY && word->ee_errno == 0) return word;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<ZeroCopy> ZeroCopy::open(int socket, Options options) {
  if (options.from_bytes == 0) return nullptr;
  const int on = 1;
  if (setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0)
    return std::unique_ptr<ZeroCopy>(new ZeroCopy(socket, options));
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) log_info("TUTTI_ZEROCOPY_BYTES has no effect: SO_ZEROCOPY: {}", std::strerror(errno));
  return nullptr;
}

ZeroCopy::~ZeroCopy() {
  const linger drop = {.l_onoff = 1, .l_linger = 0};
  if (!is_released()) (void)setsockopt(socket_, SOL_SOCKET, SO_LINGER, &drop, sizeof(drop));
  if (sends_ != 0) log_info("{} bytes to {} in {} sends with MSG_ZEROCOPY", bytes_, peer_address(socket_), sends_);
}

ssize_t ZeroCopy::send(const msghdr& message, int flags) {
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket_, &message, flags | MSG_ZEROCOPY);
  } while (sent < 0 && errno == EINTR);
  if (sent > 0) {
    ++sends_;
    bytes_ += static_cast<std::uint64_t>(sent);
  } else if (errno == ENOBUFS) {
    take_words();  // they take the room of further sends
    errno = ENOBUFS;
  }
  return sent;
}

bool ZeroCopy::is_released() {
  if (released_ != sends_) take_words();
  return released_ == sends_;
}

void ZeroCopy::take_words() {
  while (take_word()) {
  }
}

/// One word is about several sends in a row. False: there is none.
bool ZeroCopy::take_word() {
  alignas(cmsghdr) char control[128];
  msghdr message = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = -1;
  do {
    got = recvmsg(socket_, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return false;
  const sock_extended_err* const word = word_in(message);
  if (word == nullptr) return true;
  released_ += word->ee_data - word->ee_info + 1;
  if ((word->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) note_copied();
  return true;
}

void ZeroCopy::note_copied() {
  if (goes_on_if_copied_) return;
  from_bytes_ = kNever;
  static std::atomic<bool> told{false};
  if (!told.exchange(true))
    log_info("MSG_ZEROCOPY: what goes to {} is copied all the same, and so it is sent with a copy from here on",
             peer_address(socket_));
}

}  // namespace tutti::comm
