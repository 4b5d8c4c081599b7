// What a rank makes of the addresses of its unique id, where no root answers.
#include "comm/root_address.h"

#include <catch2/catch.hpp>

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
