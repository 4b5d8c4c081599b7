// Strangers at the root: they delay no rank, get nothing and leave nothing.
#include "comm/bootstrap.h"
#include "comm/unix_socket.h"
#include "rank_runs.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <cerrno>
#include <cstring>

using namespace rank_runs;
using tutti::comm::BootstrapArgs;
using tutti::comm::PrivateDescriptor;
using tutti::comm::UniqueId;

namespace {

/// Nobody listens there: ranks go on to TCP.
constexpr char kNobody[] = "unix:@tutti-test-nobody";

PrivateDescriptor stranger(const UniqueId& id, const std::string& bytes) {
  PrivateDescriptor socket = tutti::comm::connect_unix(id.address);
  REQUIRE(socket);
  REQUIRE(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  return socket;
}

bool is_closed_soon(int socket) {
  const Stopwatch watch;
  char byte = 0;
  while (watch.seconds() < 5) {
    const ssize_t got = recv(socket, &byte, 1, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
    usleep(1000);
  }
  return false;
}

}  // namespace

TEST_CASE("strangers delay nobody and get nothing", "[bootstrap]") {
  const NothingLeft nothing_left;
  {
    const UniqueId id = new_id();
    const std::string header("TUTI\x01\0\0\0", 8);
    const PrivateDescriptor silent = stranger(id, "");
    const PrivateDescriptor half = stranger(id, header + std::string("\x24\0\0\0ab", 6));
    const PrivateDescriptor garbage = stranger(id, "GET / HTTP/1.1\r\nHost: box\r\n\r\n");
    const PrivateDescriptor huge = stranger(id, header + "\xff\xff\xff\x7f" + std::string(5000, 'x'));
    const PrivateDescriptor no_greeting = stranger(id, std::string("TUTI\x06\0\0\0\0\0\0\0", 12));
    // A good greeting, then a hello whose proof is wrong.
    PrivateDescriptor liar = stranger(id, header + std::string("\x24\0\0\0", 4) + std::string(36, 'n'));
    const std::string hello = std::string("TUTI\x03\0\0\0\x50\0\0\0", 12) + std::string(80, 'p');
    REQUIRE(send(liar.get(), hello.data(), hello.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(hello.size()));
    // Another version, of which nobody here has the secret.
    PrivateDescriptor newer = stranger(id, header + std::string("\x24\0\0\0\x4d\0\0\0", 8) + std::string(32, 'n'));
    REQUIRE(send(newer.get(), hello.data(), hello.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(hello.size()));
    CHECK(is_closed_soon(newer.get()));
    CHECK(is_closed_soon(garbage.get()));
    CHECK(is_closed_soon(huge.get()));
    CHECK(is_closed_soon(no_greeting.get()));
    const Stopwatch watch;
    auto outcomes = run_threads(id, all_ranks(4), 4);
    check_all_work(outcomes);
    CHECK(watch.seconds() < 1);
    CHECK(is_closed_soon(silent.get()));
    CHECK(is_closed_soon(half.get()));
  }
}

TEST_CASE("a crowd of silent strangers cannot keep ranks out", "[bootstrap]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  std::vector<PrivateDescriptor> crowd;
  for (int i = 0; i < 400; ++i) {
    PrivateDescriptor socket = tutti::comm::connect_unix(id.address);
    if (socket) crowd.push_back(std::move(socket));
  }
  REQUIRE(crowd.size() > 300);
  const Stopwatch watch;
  auto outcomes = run_threads(id, all_ranks(3), 3);
  check_all_work(outcomes);
  CHECK(watch.seconds() < 1.5);
}

TEST_CASE("a crowd at one of the root's doors keeps no rank waiting for as long as the heartbeat", "[bootstrap]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  UniqueId by_tcp = id;
  std::memcpy(by_tcp.address, kNobody, sizeof(kNobody));
  // Those who say nothing are soon gone, also for ranks that come by the same door; those who greet do not stand in the other one.
  const bool greets = GENERATE(false, true);
  const std::string greeting = std::string("TUTI\x01\0\0\0\x24\0\0\0", 12) + std::string(36, 'n');
  std::vector<PrivateDescriptor> crowd;
  for (int i = 0; i < 700; ++i) {
    PrivateDescriptor socket = tutti::comm::connect_unix(id.address);
    if (!socket) continue;
    if (greets) (void)send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);  // it may be out again
    crowd.push_back(std::move(socket));
  }
  REQUIRE(crowd.size() > 600);
  auto outcomes =
      run_threads(greets ? by_tcp : id, all_ranks(3), 3, [](BootstrapArgs& args) { args.heartbeat_s = 0.8; });
  check_all_work(outcomes);
}
