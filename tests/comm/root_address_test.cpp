// What a rank makes of the addresses of its unique id, where no root answers.
#include "comm/root_address.h"

#include "comm/tcp_socket.h"

#include <catch2/catch.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>

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
