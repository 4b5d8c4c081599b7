#include "comm/launch.h"

#include "base/descriptor.h"
#include "comm/private_descriptor.h"

#include <fmt/format.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

// The meeting: rank 0 listens on a Unix SOCK_SEQPACKET socket, so that a message is one packet.
//
//   rank r                                  rank 0
//   connect, until somebody listens
//   check that the listener is this user  | accept, check that the caller is this user
//   Hello{job, rank, size, call} ------->   same job, size and call? rank r not here yet?
//   Reply{id} or a reason        <-------
//
// The name of the socket holds user, job and call, so that other jobs do not meet here by chance; Hello makes it
// certain.

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMagic = 0x74757474694d6565;  // "tuttiMee"
constexpr std::uint32_t kVersion = 1;

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t call = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  char job[TUTTI_LAUNCH_JOB_BYTES] = {};
};

struct Reply {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t refused = 0;
  UniqueId id;
  char reason[256] = {};  ///< where refused
};

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// Its connect() does not wait for a listener that takes no more callers.
Descriptor callers_socket() { return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

Address socket_address(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path, name.data(), name.size());
  if (name[0] == '@') result.address.sun_path[0] = 0;
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (name[0] == '@' ? 0 : 1));
  return result;
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

/// False at the deadline.
bool readable_before(int fd, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(std::min<long long>(left, 1000))) > 0) return true;
  }
}

Clock::time_point deadline_of(const MeetingPlace& place) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(place.timeout_s));
}

void pause_shortly() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }

/// A socket file whose owner is gone refuses connections; it may be taken away. Nothing else is.
bool remove_stale_socket(const std::string& path) {
  struct stat info {};
  if (path[0] == '@' || lstat(path.c_str(), &info) != 0) return false;
  if (!S_ISSOCK(info.st_mode) || info.st_uid != geteuid()) return false;
  const Descriptor probe = callers_socket();
  const Address address = socket_address(path);
  if (connect(probe.get(), address.get(), address.length) == 0 || errno != ECONNREFUSED) return false;
  return unlink(path.c_str()) == 0;
}

Result<Descriptor> listen_at(const MeetingPlace& place, int ranks, Clock::time_point deadline) {
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (listener.get() < 0) return system_error("socket(AF_UNIX) for the ranks' meeting");
  const Address address = socket_address(place.address);
  while (bind(listener.get(), address.get(), address.length) != 0) {
    if (errno != EADDRINUSE) return system_error(fmt::format("bind the ranks' meeting at {}", place.address));
    if (remove_stale_socket(place.address)) continue;
    if (Clock::now() > deadline)
      return error(Code::kRemote,
                   fmt::format("rank 0 cannot listen at {}: another process does, or another file is there. Two "
                               "jobs with the same identity? Give each its own TUTTI_RENDEZVOUS=file:/path",
                               place.address));
    pause_shortly();
  }
  if (listen(listener.get(), ranks) != 0) return system_error(fmt::format("listen at {}", place.address));
  return listener;
}

/// Empty: welcome.
std::string reason_to_refuse(const tuttiLaunchInfo_t& info, const MeetingPlace& place, const Hello& hello,
                             const std::vector<bool>& present) {
  if (hello.magic != kMagic || hello.version != kVersion) return "it speaks another version of the meeting's protocol";
  if (std::memcmp(hello.job, info.job, sizeof(hello.job)) != 0)
    return fmt::format("rank 0 is of job \"{:.120}\"", info.job);
  if (hello.call != place.call)
    return fmt::format("rank 0 is at id number {}, it asked for number {}", place.call, hello.call);
  if (hello.size != info.size) return fmt::format("rank 0's job has {} ranks, it counts {}", info.size, hello.size);
  if (hello.rank < 1 || hello.rank >= info.size)
    return fmt::format("rank {} is not in 1..{}", hello.rank, info.size - 1);
  if (present[static_cast<std::size_t>(hello.rank)]) return fmt::format("another process came as rank {}", hello.rank);
  return {};
}

/// Talks to one caller; the rank that now has the id, or 0 where none was satisfied.
int serve(int caller, const tuttiLaunchInfo_t& info, const MeetingPlace& place, const UniqueId& id,
          const std::vector<bool>& present, Clock::time_point deadline) {
  if (!same_user(caller)) return 0;
  // A caller writes at once; a silent one costs a second, not the job.
  if (!readable_before(caller, std::min(deadline, Clock::now() + std::chrono::seconds(1)))) return 0;
  Hello hello{};
  if (recv(caller, &hello, sizeof(hello), MSG_DONTWAIT) != static_cast<ssize_t>(sizeof(hello))) return 0;
  Reply reply;
  const std::string reason = reason_to_refuse(info, place, hello, present);
  if (reason.empty()) {
    reply.id = id;
  } else {
    reply.refused = 1;
    reason.copy(reply.reason, sizeof(reply.reason) - 1);
  }
  if (send(caller, &reply, sizeof(reply), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(reply))) return 0;
  return reason.empty() ? hello.rank : 0;
}

std::string absent_ranks(const std::vector<bool>& present) {
  std::string text;
  int named = 0;
  for (std::size_t rank = 0; rank < present.size(); ++rank) {
    if (present[rank]) continue;
    if (++named > 16) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  }
  return text;
}

}  // namespace

Status hand_out(const tuttiLaunchInfo_t& info, const MeetingPlace& place, const UniqueId& id) {
  const Clock::time_point deadline = deadline_of(place);
  TUTTI_TRY_ASSIGN(const Descriptor listener, listen_at(place, info.size, deadline));
  std::vector<bool> present(static_cast<std::size_t>(info.size), false);
  present[0] = true;
  int missing = info.size - 1;
  bool lacks_descriptors = false;
  while (missing > 0 && readable_before(listener.get(), deadline)) {
    const Descriptor caller(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.get() < 0) {
      lacks_descriptors = lacks_descriptor(errno);
      if (lacks_descriptors) pause_shortly();
      continue;
    }
    const int rank = serve(caller.get(), info, place, id, present, deadline);
    if (rank == 0) continue;
    present[static_cast<std::size_t>(rank)] = true;
    --missing;
  }
  if (place.address[0] != '@') unlink(place.address.c_str());
  if (missing == 0) return {};
  return error(
      Code::kRemote,
      fmt::format("after {:g} s {} of {} ranks had not come for the unique id: rank {} ({} job \"{}\", at {}){}",
                  place.timeout_s, missing, info.size, absent_ranks(present), info.launcher, info.job, place.address,
                  lacks_descriptors ? "; rank 0 has no descriptor left to let them in by (raise ulimit -n)" : ""));
}

Result<UniqueId> fetch(const tuttiLaunchInfo_t& info, const MeetingPlace& place) {
  const Clock::time_point deadline = deadline_of(place);
  Hello hello;
  hello.call = place.call;
  hello.rank = info.rank;
  hello.size = info.size;
  std::memcpy(hello.job, info.job, sizeof(hello.job));
  const Address address = socket_address(place.address);
  std::string last = "nobody listens there";
  for (; Clock::now() < deadline; pause_shortly()) {
    const Descriptor server = callers_socket();
    if (server.get() < 0) return system_error("socket(AF_UNIX) for the ranks' meeting");
    if (connect(server.get(), address.get(), address.length) != 0) {
      if (errno == EAGAIN) last = "who listens there lets nobody in";
      continue;
    }
    if (!same_user(server.get())) {
      last = "another user listens there";
      continue;
    }
    last = "rank 0 does not answer";
    Reply reply;
    if (send(server.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) continue;
    if (!readable_before(server.get(), deadline)) break;
    if (recv(server.get(), &reply, sizeof(reply), 0) != static_cast<ssize_t>(sizeof(reply))) continue;
    if (reply.magic != kMagic || reply.version != kVersion) continue;
    if (!reply.refused) return reply.id;
    return error(Code::kInvalidUsage,
                 fmt::format("rank 0 gave rank {} no unique id: {:.255}", info.rank, reply.reason));
  }
  return error(Code::kRemote,
               fmt::format("rank {} of {} waited {:g} s for rank 0 at {}: {}. Is rank 0 on this host, with the same "
                           "user and the same job ({} \"{}\")?",
                           info.rank, info.size, place.timeout_s, place.address, last, info.launcher, info.job));
}

}  // namespace tutti::comm
