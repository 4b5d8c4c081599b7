#include "lazy_network.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <random>

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDescriptors = 4096;
constexpr std::size_t kPartsMax = 64;
/// What is shorter a socket takes as a whole, as one does that has little to send yet.
constexpr std::size_t kShort = 1024;

/// One direction of a socket: now and then it moves but a part at a time for a while, each after a nap.
struct Side {
  Clock::time_point asleep_until;
  Clock::time_point slow_until;
};

std::atomic<std::uint64_t> longest_ns{0};
std::atomic<int> until_break{0};
std::mutex mutex;  // of what follows
std::mt19937_64 randoms;
Side receiving[kDescriptors];
Side sending[kDescriptors];

std::uint64_t below(std::uint64_t end) { return randoms() % end; }

bool is_tcp(int descriptor) {
  int family = 0;
  int type = 0;
  socklen_t family_size = sizeof family;
  socklen_t type_size = sizeof type;
  if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &family, &family_size) != 0) return false;
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0) return false;
  return type == SOCK_STREAM && (family == AF_INET || family == AF_INET6);
}

bool is_lazy(int descriptor) {
  if (longest_ns.load(std::memory_order_relaxed) == 0 || descriptor < 0 || descriptor >= kDescriptors) return false;
  return is_tcp(descriptor);
}

/// How many of so many bytes move now; 0: none do.
std::size_t share_of(Side& side, std::size_t bytes) {
  constexpr std::size_t kParts[] = {200, 9000, 100000};
  const std::lock_guard lock(mutex);
  const std::uint64_t longest = longest_ns.load(std::memory_order_relaxed);
  const auto now = Clock::now();
  if (now < side.asleep_until) return 0;
  const auto up_to = [](std::uint64_t most) { return std::chrono::nanoseconds(below(most + 1)); };
  if (below(1000) == 0) side.slow_until = now + up_to(256 * longest);
  const bool is_slow = now < side.slow_until;
  if (is_slow || below(4) == 0) side.asleep_until = now + up_to(is_slow ? longest : longest >> (3 + below(8)));
  const std::uint64_t kind = below(std::size(kParts) + 1);
  return kind == std::size(kParts) ? bytes : std::min(bytes, 1 + below(kParts[kind]));
}

std::size_t size_of(const msghdr& message) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) bytes += message.msg_iov[i].iov_len;
  return bytes;
}

/// The message's first `bytes` bytes.
msghdr cut(const msghdr& message, std::size_t bytes, iovec* parts) {
  msghdr made = message;
  made.msg_iov = parts;
  made.msg_iovlen = 0;
  for (std::size_t i = 0; i < message.msg_iovlen && bytes != 0; ++i) {
    iovec& part = parts[made.msg_iovlen++];
    part = message.msg_iov[i];
    part.iov_len = std::min(part.iov_len, bytes);
    bytes -= part.iov_len;
  }
  return made;
}

template <class Function>
Function* next_of(const char* name, Function*) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// What the C library does with as much of a message as moves now. Only what may end with less, and is not about errors.
template <class Function>
ssize_t move(Function* real, int descriptor, const msghdr& message, int flags, Side* sides) {
  const std::size_t bytes = size_of(message);
  const bool may_be_less = (flags & MSG_DONTWAIT) != 0 && (flags & (MSG_PEEK | MSG_ERRQUEUE)) == 0;
  msghdr all = message;
  if (!may_be_less || bytes == 0 || message.msg_iovlen > kPartsMax || !is_lazy(descriptor))
    return real(descriptor, &all, flags);
  const std::size_t share = share_of(sides[descriptor], bytes);
  if (share == 0) {
    errno = EAGAIN;
    return -1;
  }
  iovec parts[kPartsMax];
  msghdr some = cut(message, share, parts);
  return real(descriptor, &some, flags);
}

msghdr message_of(iovec& part) {
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return message;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  static auto* const real = next_of("recvmsg", &recvmsg);
  if ((flags & MSG_ERRQUEUE) != 0 || message->msg_controllen != 0) return real(descriptor, message, flags);
  return move(real, descriptor, *message, flags, receiving);
}

[[gnu::visibility("default")]] ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  static auto* const real = next_of("sendmsg", &sendmsg);
  if (until_break > 0 && is_tcp(descriptor) && --until_break == 0) {
    shutdown(descriptor, SHUT_RDWR);
    errno = ECONNRESET;
    return -1;
  }
  if (size_of(*message) < kShort) return real(descriptor, message, flags);
  return move(real, descriptor, *message, flags, sending);
}

[[gnu::visibility("default")]] ssize_t recv(int descriptor, void* data, size_t bytes, int flags) {
  iovec part = {data, bytes};
  msghdr message = message_of(part);
  return recvmsg(descriptor, &message, flags);
}

[[gnu::visibility("default")]] ssize_t send(int descriptor, const void* data, size_t bytes, int flags) {
  iovec part = {const_cast<void*>(data), bytes};
  const msghdr message = message_of(part);
  return sendmsg(descriptor, &message, flags);
}

}  // extern "C"

namespace tutti::test {

void break_at(int n) { until_break = n; }

void be_lazy(std::uint64_t seed, std::uint64_t longest_us) {
  const std::lock_guard lock(mutex);
  randoms.seed(seed);
  longest_ns = longest_us * 1000;
}

}  // namespace tutti::test
