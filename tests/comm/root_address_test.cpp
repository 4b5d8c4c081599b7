// What a rank makes of the addresses of its unique id, where no root answers.
#include "comm/root_address.h"

#include "comm/bootstrap.h"
#include "comm/tcp_socket.h"
#include "rank_runs.h"

#include <catch2/catch.hpp>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>

using Catch::Contains;
using namespace tutti::comm;

TEST_CASE("an address that refuses says nothing of another one, which may be down for a while", "[root]") {
  UniqueId id;
  std::strcpy(id.address, "unix:@tutti-nobody");
  id.port = 1;
  const auto seconds_to_reach = [&id] {
    const auto start = std::chrono::steady_clock::now();
    const auto reached = connect_with_root(id, Patience(1.5, nullptr));
    REQUIRE_FALSE(reached.ok());
    CHECK_THAT(reached.error().message, Contains("nobody listens") && Contains("127.0.0.1:1: Connection refused"));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  add_candidate(id, {false, {127, 0, 0, 1}});
  CHECK(seconds_to_reach() < 1);
  add_candidate(id, {false, {224, 0, 0, 1}});  // no host's: unreachable
  CHECK(seconds_to_reach() > 1);
}

TEST_CASE("rank 0 does not wait for itself at an address that is another host's", "[root]") {
  UniqueId id;
  id.named = 1;
  id.port = 1;
  add_candidate(id, {false, {127, 0, 0, 1}});
  const Patience patience(20, nullptr);
  const auto start = std::chrono::steady_clock::now();
  const auto reached = connect_with_root(id, patience, true);
  REQUIRE_FALSE(reached.ok());
  CHECK(reached.error().code == tutti::Code::kInvalidUsage);
  CHECK_THAT(reached.error().message, Contains("rank 0") && Contains("127.0.0.1:1: Connection refused"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a port at which nobody listens is refused, though the system has chosen it for who connects", "[root]") {
  const PrivateDescriptor alone =
      PrivateDescriptor::open([] { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  socklen_t bytes = sizeof(own);
  REQUIRE(bind(alone.get(), address, bytes) == 0);
  REQUIRE(getsockname(alone.get(), address, &bytes) == 0);
  REQUIRE(connect(alone.get(), address, bytes) == 0);  // with itself
  CHECK(connect_result(alone.get()) == ECONNREFUSED);
}

TEST_CASE("what has cancelled a wait for the root is told", "[root]") {
  UniqueId id;
  id.named = 1;
  id.port = 1;
  add_candidate(id, {false, {127, 0, 0, 1}});
  const std::function<bool()> hopeless = [] { return true; };
  const std::function<tutti::Error()> why = [] { return tutti::error(tutti::Code::kRemote, "rank 7 has died"); };
  const auto reached = connect_with_root(id, Patience(20, nullptr, &hopeless, &why));
  REQUIRE_FALSE(reached.ok());
  CHECK(reached.error().message == "rank 7 has died");
}

TEST_CASE("ports that have run out are told as that, not as an address that cannot be assigned", "[root]") {
  CHECK_THAT(connect_problem(EADDRNOTAVAIL),
             Contains(std::strerror(EADDRNOTAVAIL)) && Contains("net.ipv4.ip_local_port_range"));
  CHECK(connect_problem(ECONNREFUSED) == std::strerror(ECONNREFUSED));
}

namespace {

/// As a security module may that keeps containers apart.
bool forbid_unix_sockets() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(steps), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

TEST_CASE("where a rank may not use the Unix socket of its id's maker it comes by TCP", "[root][forks]") {
  const rank_runs::NothingLeft nothing_left;
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  CHECK(rank_runs::ended_well(rank_runs::spawn([&id]() -> std::string {
    if (!forbid_unix_sockets()) return "";  // this system has no such filters
    const auto reached = connect_with_root(id.value(), Patience(5, nullptr));
    if (!reached.ok()) return reached.error().message;
    return peer_ip(reached.value().get()) ? "" : "not by TCP";
  })));
  end_bootstrap(id.value());
}
