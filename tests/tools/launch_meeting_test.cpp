// tutti/launch.h: calls for an id that cannot be had leave nothing behind, and wait for no listener.
#include "tests/temporary_folder.h"

#include <tutti/launch.h>

#include <catch2/catch.hpp>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

/// Listens at a path, with no place left for a caller.
class FullListener {
 public:
  explicit FullListener(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
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
