#include "comm/root_address.h"

#include "base/log.h"
#include "comm/long_wait.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

namespace tutti::comm {
namespace {

using Outcome = Patience::Outcome;

/// While the root's queue is full, or other threads of this process hold the last descriptors for a moment.
constexpr int kRetryMs = 5;
constexpr auto kDescriptorPatience = std::chrono::seconds(5);
/// For one address; for the network to come back; between two rounds.
constexpr double kAttemptS = 2.5;
constexpr auto kNetworkPatience = std::chrono::seconds(20);
constexpr int kNetworkRetryMs = 100;
constexpr int kLookMs = 25;

std::string unix_address_of(const UniqueId& id) {
  return std::string(id.address, strnlen(id.address, sizeof(id.address)));
}

Error nobody_listens(const UniqueId& id, const std::string& tried) {
  if (id.named) {
    return error(Code::kRemote,
                 fmt::format("rank 0 was not reached at {}, where it was to be: {}", describe(id), tried));
  }
  return error(Code::kRemote,
               fmt::format("nobody listens at {}: the process that made the unique id has ended or runs in "
                           "another network, or the id was used before (an id makes one communicator){}{}",
                           describe(id), tried.empty() ? "" : "; tried ", tried));
}

/// What went wrong at an id's addresses.
struct Tried {
  std::string why;
  bool refused = true;  ///< at all of them: one may be that of another host, too, as the loopback's is
};

/// One attempt by each. Empty: see `tried`.
Result<PrivateDescriptor> connect_to_candidates(const UniqueId& id, const Patience& patience, std::size_t first,
                                                Tried& tried) {
  tried = {};
  const std::vector<IpAddress> addresses = candidates_of(id);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const IpAddress& address = addresses[(first + i) % addresses.size()];
    PrivateDescriptor socket = connect_tcp(address, id.port);
    int failure = socket ? 0 : errno;
    if (socket) {
      const Patience attempt(kAttemptS, nullptr);
      bool answered = false;
      while (!answered && attempt.now() == Outcome::kReady && patience.now() == Outcome::kReady) {
        pollfd watched = {socket.get(), POLLOUT, 0};
        answered = poll(&watched, 1, kLookMs) > 0;
      }
      if (patience.now() == Outcome::kCancelled) return why_cancelled(patience);
      failure = answered ? connect_result(socket.get()) : ETIMEDOUT;
    }
    if (failure == 0) return socket;
    tried.refused = tried.refused && failure == ECONNREFUSED;
    tried.why +=
        fmt::format("{}{}: {}", tried.why.empty() ? "" : ", ", address.text(id.port), connect_problem(failure));
  }
  return PrivateDescriptor();
}

/// Where the id's maker was not met by the Unix socket: rank 0 of a named root may be late, networks may be down for a while. Rank 0 itself listens
/// already (`is_own`), and would wait for nobody.
Result<PrivateDescriptor> connect_by_tcp(const UniqueId& id, const Patience& patience, bool is_own, std::size_t first) {
  const auto until = Patience::Clock::now() + kNetworkPatience;
  LongWait wait;
  for (;;) {
    Tried tried;
    TUTTI_TRY_ASSIGN(PrivateDescriptor socket, connect_to_candidates(id, patience, first, tried));
    if (socket) {
      send_at_once(socket.get());
      return socket;
    }
    if (is_own && tried.refused)
      return error(Code::kInvalidUsage, fmt::format("rank 0 is not at {}, where it was to be, but on another host: {}",
                                                    describe(id), tried.why));
    if (!id.named && (tried.refused || Patience::Clock::now() >= until)) return nobody_listens(id, tried.why);
    if (const int seconds = wait.is_due())
      log_warn("bootstrap: nobody has answered at {} for {} s: {}", describe(id), seconds, tried.why);
    const Outcome outcome = patience.nap(kNetworkRetryMs);
    if (outcome == Outcome::kTimedOut) return nobody_listens(id, tried.why);
    if (outcome != Outcome::kReady) return why_cancelled(patience);
  }
}

}  // namespace

Error initialisation_aborted() {
  return error(Code::kInvalidUsage, "the communicator was aborted while it was being initialised");
}

Error why_cancelled(const Patience& patience) { return patience.why_cancelled().value_or(initialisation_aborted()); }

Error root_not_reached(const UniqueId& id, Outcome outcome, const Patience& patience) {
  if (outcome == Outcome::kCancelled) return why_cancelled(patience);
  return error(Code::kRemote,
               fmt::format("the process that made the unique id did not answer at {} for {} s: is it stopped?",
                           describe(id), patience.timeout_s()));
}

Result<PrivateDescriptor> connect_with_root(const UniqueId& id, const Patience& patience, bool is_own,
                                            std::size_t first) {
  if (id.named) return connect_by_tcp(id, patience, is_own, first);
  const auto descriptors_until = Patience::Clock::now() + kDescriptorPatience;
  for (;;) {
    PrivateDescriptor socket = connect_unix(unix_address_of(id));
    if (socket) return socket;
    const bool no_descriptor = lacks_descriptor(errno);
    // Between containers with one network a security module may not allow it.
    const bool is_forbidden = (errno == EACCES || errno == EPERM) && !candidates_of(id).empty();
    if (errno == ECONNREFUSED || is_forbidden) return connect_by_tcp(id, patience, false, first);
    if (errno != EAGAIN && !(no_descriptor && Patience::Clock::now() < descriptors_until)) {
      return system_error(fmt::format("connect to {}{}", describe(id), no_descriptor ? " (raise ulimit -n)" : ""));
    }
    const Outcome outcome = patience.nap(kRetryMs);
    if (outcome != Outcome::kReady) return root_not_reached(id, outcome, patience);
  }
}

}  // namespace tutti::comm
