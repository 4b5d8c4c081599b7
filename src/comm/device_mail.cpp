#include "comm/device_mail.h"

#include "base/log.h"
#include "base/random.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace tutti::comm {
namespace {

/// One message, and nothing else, on a connection of its own; the descriptors go with it.
struct Head {
  std::uint64_t token[2] = {};  ///< of the receiver's card, which only the communicator's ranks can read
  MailKey key;
  std::uint64_t pieces = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes[DeviceMail::kPiecesMax] = {};
};

/// What sendmsg and recvmsg take: the head, and room for descriptors.
struct Message {
  explicit Message(std::size_t descriptors = DeviceMail::kPiecesMax) {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = attached;
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  Head head;
  iovec part = {&head, sizeof head};
  alignas(cmsghdr) char attached[CMSG_SPACE(DeviceMail::kPiecesMax * sizeof(int))] = {};
  msghdr message = {};
};

std::string name_of(const MailKey& key) {
  return fmt::format("{} {} of rank {}", key.of == MailOf::kWindow ? "window" : "memory", key.number, key.from);
}

std::vector<Descriptor> descriptors_of(msghdr& message) {
  std::vector<Descriptor> found;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      found.emplace_back(fd);
    }
  }
  return found;
}

/// A message that is there as a whole. It stays there.
Result<cuda::SharedPieces> read(int socket) {
  Message found;
  const Head& head = found.head;
  const ssize_t got = recvmsg(socket, &found.message, MSG_DONTWAIT | MSG_PEEK | MSG_CMSG_CLOEXEC);
  cuda::SharedPieces pieces;
  pieces.descriptors = descriptors_of(found.message);  // whatever else has come: they are open
  if (got != static_cast<ssize_t>(sizeof head)) return system_error("receive descriptors");
  if ((found.message.msg_flags & MSG_CTRUNC) != 0) {
    return error(Code::kSystem, fmt::format("this process may not open the {} descriptors of {}; raise ulimit -n",
                                            head.pieces, name_of(head.key)));
  }
  if (head.pieces == 0 || head.pieces > DeviceMail::kPiecesMax || head.pieces != pieces.descriptors.size()) {
    return error(Code::kInternal, fmt::format("{} descriptors have come of {}, not {}", pieces.descriptors.size(),
                                              name_of(head.key), head.pieces));
  }
  pieces.begin = head.begin;
  pieces.bytes.assign(head.bytes, head.bytes + head.pieces);
  return pieces;
}

}  // namespace

void log_unshared(const std::string& what, const std::string& why_no_handle, const Error& why_no_pieces) {
  const std::string text = fmt::format("{} is not shared with other processes, calls copy what lies in it: {}; {}",
                                       what, why_no_handle, why_no_pieces.message);
  if (why_no_pieces.code == Code::kSystem) return log_warn("{}", text);
  log_info("{}", text);
}

Result<std::unique_ptr<DeviceMail>> DeviceMail::open(DeviceCard& card) {
  auto made = std::make_unique<DeviceMail>();
  std::uint64_t name = 0;
  TUTTI_TRY(fill_random(&name, sizeof name));
  TUTTI_TRY(fill_random(made->token_, sizeof made->token_));
  const std::string address = fmt::format("{}tutti-gpu-{}-{:016x}", kUnixPrefix, getpid(), name);
  TUTTI_TRY_ASSIGN(made->listener_, listen_unix(address));
  address.copy(card.mail, sizeof card.mail - 1);
  std::memcpy(card.mail_token, made->token_, sizeof made->token_);
  return made;
}

Result<cuda::SharedPieces> DeviceMail::share(const cuda::Device& device, const void* begin, std::size_t bytes,
                                             cuda::Sharing sharing, std::span<const DeviceCard* const> to,
                                             const MailKey& key) {
  TUTTI_TRY_ASSIGN(cuda::SharedPieces pieces, cuda::export_pieces(device, begin, bytes, sharing, kPiecesMax));
  for (const DeviceCard* const card : to) {
    const Status sent = send(*card, key, pieces);
    if (sent.ok()) continue;
    return error(Code::kSystem,
                 fmt::format("it lies in {} pieces of memory, which could not be sent: {}; a user's processes may have "
                             "as many descriptors on their way as one may have open (ulimit -n)",
                             pieces.bytes.size(), sent.error().message));
  }
  return pieces;
}

Status DeviceMail::send(const DeviceCard& to, const MailKey& key, const cuda::SharedPieces& pieces) {
  Message letter(pieces.descriptors.size());
  Head& head = letter.head;
  std::memcpy(head.token, to.mail_token, sizeof head.token);
  head.key = key;
  head.pieces = pieces.bytes.size();
  head.begin = pieces.begin;
  std::ranges::copy(pieces.bytes, head.bytes);
  cmsghdr* const rights = CMSG_FIRSTHDR(&letter.message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(pieces.descriptors.size() * sizeof(int));
  for (std::size_t i = 0; i < pieces.descriptors.size(); ++i) {
    const int fd = pieces.descriptors[i].get();
    std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
  }
  const PrivateDescriptor socket = connect_unix(to.mail);
  if (!socket) return system_error(fmt::format("connect to {}", to.mail));
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket.get(), &letter.message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return system_error(fmt::format("send descriptors to {}", to.mail));
  if (sent != static_cast<ssize_t>(sizeof head)) return error(Code::kInternal, "a part of a message was sent");
  return {};
}

bool DeviceMail::look_at(PrivateDescriptor& caller) {
  Head head;
  const ssize_t got = recv(caller.get(), &head, sizeof head, MSG_DONTWAIT | MSG_PEEK);
  if (got < 0) return errno != EAGAIN && errno != EINTR;
  const bool whole = got == static_cast<ssize_t>(sizeof head);
  if (!whole || std::memcmp(head.token, token_, sizeof token_) != 0) return true;
  letters_.emplace_back();
  letters_.back() = {head.key, std::move(caller)};
  return true;
}

void DeviceMail::collect() {
  while (true) {
    callers_.emplace_back();  // before it, as what has come must not be lost for want of memory
    PrivateDescriptor& caller = callers_.back();
    caller = PrivateDescriptor::open(
        [this] { return accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    const bool is_there = static_cast<bool>(caller);
    if (!is_there || look_at(caller)) callers_.pop_back();
    if (!is_there) break;
    if (callers_.size() > kCallersMax) callers_.pop_front();
  }
  callers_.remove_if([this](PrivateDescriptor& one) { return look_at(one); });
}

void DeviceMail::sift(MailOf of, const std::function<bool(const MailKey&)>& is_wanted) try {
  const std::lock_guard lock(mutex_);
  collect();
  letters_.remove_if([&](const Letter& letter) { return letter.key.of == of && !is_wanted(letter.key); });
} catch (const std::bad_alloc&) {
  // The next one does it.
}

Result<cuda::SharedPieces> DeviceMail::take(const MailKey& key) {
  const std::lock_guard lock(mutex_);
  collect();
  const auto found = std::ranges::find(letters_, key, &Letter::key);
  if (found == letters_.end()) return error(Code::kInternal, fmt::format("what {} lies in has not come", name_of(key)));
  Result<cuda::SharedPieces> pieces = read(found->socket.get());
  if (pieces.ok()) letters_.erase(found);
  return pieces;
}

}  // namespace tutti::comm
