// tutti/launch.h: calls for an id that cannot be had leave nothing behind, and wait for no listener.
#include "tests/temporary_folder.h"

#include <tutti/launch.h>

#include <catch2/catch.hpp>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

/// While there is one, this process has no descriptor left.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit now = before_;
    const int lowest = dup(0);
    close(lowest);
    now.rlim_cur = static_cast<rlim_t>(lowest);
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// Listens at a path, with no place left for a caller.
class FullListener {
 public:
  explicit FullListener(const std::string& path) {
    const sockaddr_un address = address_of(path);
    const auto* const place = reinterpret_cast<const sockaddr*>(&address);
    sockets_.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    REQUIRE(bind(sockets_[0], place, sizeof(address)) == 0);
    REQUIRE(listen(sockets_[0], 0) == 0);
    do {
      sockets_.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    } while (connect(sockets_.back(), place, sizeof(address)) == 0);
    REQUIRE(errno == EAGAIN);
  }
  ~FullListener() {
    for (const int socket : sockets_) close(socket);
  }

 private:
  std::vector<int> sockets_;
};

}  // namespace

TEST_CASE("a rank that has no place to meet the others leaves no thread") {
  unsetenv("TUTTI_RENDEZVOUS");
  const tuttiLaunchInfo_t of_two_hosts{0, 2, 0, 1, TUTTI_LAUNCHER_MPIRUN, "two hosts"};
  const auto before = threads();
  ncclUniqueId id;
  CHECK(tuttiLaunchUniqueId(&of_two_hosts, &id) == ncclInvalidUsage);
  CHECK(threads() == before);
}

TEST_CASE("who listens where ranks meet, and lets nobody in, holds nobody up") {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/meeting";
  const FullListener full(place + ".0");
  setenv("TUTTI_RENDEZVOUS", ("file:" + place).c_str(), 1);
  setenv("TUTTI_RENDEZVOUS_TIMEOUT_S", "0.2", 1);
  ncclUniqueId id;
  const tuttiLaunchInfo_t rank_1{1, 2, 1, 2, TUTTI_LAUNCHER_TORCHRUN, "full"};
  const ncclResult_t fetched = tuttiLaunchUniqueId(&rank_1, &id);
  unsetenv("TUTTI_RENDEZVOUS");
  unsetenv("TUTTI_RENDEZVOUS_TIMEOUT_S");
  CHECK(fetched == ncclRemoteError);
  CHECK(std::string(ncclGetLastError(nullptr)).find("lets nobody in") != std::string::npos);
}

TEST_CASE("where rank 0 has no descriptor left it says so of ranks that did not get the id") {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/meeting";
  setenv("TUTTI_RENDEZVOUS", ("file:" + place).c_str(), 1);
  setenv("TUTTI_RENDEZVOUS_TIMEOUT_S", "0.5", 1);
  const sockaddr_un address = address_of(place + ".0");
  const int caller = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  std::atomic<bool> is_over{false};
  std::thread rank_1([&] {
    while (!std::filesystem::exists(address.sun_path) && !is_over) std::this_thread::yield();
    const NoDescriptors none;
    // The listener's name is there before it listens.
    while (connect(caller, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 && !is_over)
      std::this_thread::yield();
    while (!is_over) std::this_thread::yield();
  });
  ncclUniqueId id;
  const tuttiLaunchInfo_t rank_0{0, 2, 0, 2, TUTTI_LAUNCHER_TORCHRUN, "no descriptors"};
  const ncclResult_t made = tuttiLaunchUniqueId(&rank_0, &id);
  is_over = true;
  rank_1.join();
  close(caller);
  unsetenv("TUTTI_RENDEZVOUS");
  unsetenv("TUTTI_RENDEZVOUS_TIMEOUT_S");
  CHECK(made == ncclRemoteError);
  CHECK(std::string(ncclGetLastError(nullptr)).find("raise ulimit -n") != std::string::npos);
}
