// Which addresses other hosts are told: the rules of NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY. And what a root's name stands for.
#include "comm/interfaces.h"

#include "comm/named_root.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

using namespace tutti::comm;
using Catch::Contains;

namespace {

IpAddress v4(std::uint8_t last) { return {false, {10, 0, 0, last}}; }
IpAddress v6(std::uint8_t last) { return {true, {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}}; }

const Interface kLoopback{"lo", {false, {127, 0, 0, 1}}, true};
const Interface kLoopback6{"lo", {true, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, true};

/// In the kernel's order, as on a machine with containers and guests.
const std::vector<Interface> kMachine = {
    kLoopback,          kLoopback6,        {"eth0", v6(1)}, {"eth0", v4(1)},  {"eth1", v4(2)},
    {"docker0", v4(3)}, {"virbr0", v4(4)}, {"ib0", v4(5)},  {"eth10", v4(6)},
};

/// "eth0 10.0.0.1, ..." of those that are left, or "error: ...".
std::string left(std::string_view rule, std::string_view family = "", const std::vector<Interface>& all = kMachine) {
  const auto chosen = choose_interfaces(all, rule, family);
  return chosen.ok() ? describe(chosen.value()) : "error: " + chosen.error().message;
}

}  // namespace

TEST_CASE("without a rule loopback, docker and virbr are left out, and IPv4 comes first", "[interfaces]") {
  CHECK(left("") == "eth0 10.0.0.1, eth1 10.0.0.2, ib0 10.0.0.5, eth10 10.0.0.6, eth0 fd00::1");
}

TEST_CASE("networks within a host are told where there is no other, loopback last", "[interfaces]") {
  CHECK(left("", "", {kLoopback, {"docker0", v4(3)}, {"virbr0", v4(4)}}) ==
        "docker0 10.0.0.3, virbr0 10.0.0.4, lo 127.0.0.1");
  CHECK(left("", "", {kLoopback6, kLoopback}) == "lo 127.0.0.1, lo ::1");
  CHECK(left("", "", {}) == "none");
}

TEST_CASE("a rule names prefixes or whole names, and leaves out what it names after ^", "[interfaces]") {
  CHECK(left("eth1") == "eth1 10.0.0.2, eth10 10.0.0.6");
  CHECK(left("=eth1") == "eth1 10.0.0.2");
  CHECK(left("ib,eth0") == "eth0 10.0.0.1, ib0 10.0.0.5, eth0 fd00::1");
  CHECK(left("=ib0,eth1") == "eth1 10.0.0.2, ib0 10.0.0.5");
  CHECK_THAT(left("=eth"),
             Contains("error: NCCL_SOCKET_IFNAME==eth leaves no network interface") && Contains("ib0 10.0.0.5"));
  // What is left out by default is not, once there is a rule. Loopback, which other hosts have too, is the last to be tried.
  CHECK(left("^eth") == "docker0 10.0.0.3, virbr0 10.0.0.4, ib0 10.0.0.5, lo 127.0.0.1, lo ::1");
  CHECK(left("^eth1,lo,docker,virbr") == "eth0 10.0.0.1, ib0 10.0.0.5, eth0 fd00::1");
  CHECK(left("^=eth1") ==
        "eth0 10.0.0.1, docker0 10.0.0.3, virbr0 10.0.0.4, ib0 10.0.0.5, eth10 10.0.0.6, eth0 fd00::1, lo 127.0.0.1, "
        "lo ::1");
  CHECK(left("^=eth1,lo,eth,docker0,virbr0") == "eth0 10.0.0.1, ib0 10.0.0.5, eth10 10.0.0.6, eth0 fd00::1");
  CHECK_THAT(left("^e,l,d,v,i"), Contains("error: NCCL_SOCKET_IFNAME=^e,l,d,v,i leaves no"));
}

TEST_CASE("a family admits no addresses of the other one", "[interfaces]") {
  CHECK(left("", "af_inet") == "eth0 10.0.0.1, eth1 10.0.0.2, ib0 10.0.0.5, eth10 10.0.0.6");
  CHECK(left("", "af_inet6") == "eth0 fd00::1");
  CHECK(left("^eth", "af_inet6") == "lo ::1");
  CHECK(left("", "af_inet6", {kLoopback6, {"eth0", v4(1)}}) == "lo ::1");
  CHECK_THAT(left("ib", "af_inet6"),
             Contains("error: NCCL_SOCKET_IFNAME=ib with NCCL_SOCKET_FAMILY=AF_INET6 leaves no"));
  CHECK_THAT(left("", "af_inet", {kLoopback6}),
             Contains("error: NCCL_SOCKET_FAMILY=AF_INET leaves no") && Contains("lo ::1"));
}

TEST_CASE("an id has all addresses that it has room for", "[interfaces]") {
  UniqueId id;
  id.port = 1;
  for (const IpAddress& address : {v6(1), v6(2), v6(3), v4(1), v4(2)}) add_candidate(id, address);
  CHECK(candidates_of(id) == std::vector<IpAddress>{v6(1), v6(2), v4(1)});
}

TEST_CASE("a named root's address is of the family that is asked for", "[interfaces]") {
  const auto addresses = [](const char* place) {
    const auto id = make_named_id({.place = place, .from = "NCCL_COMM_ID"});
    return id.ok() ? describe(id.value()) : "error: " + id.error().message;
  };
  CHECK(addresses("10.0.0.7:4711") == "10.0.0.7:4711");
  CHECK(addresses("[fd00::7]:4711") == "[fd00::7]:4711");
  setenv("NCCL_SOCKET_FAMILY", "AF_INET6", 1);
  const std::string refused = addresses("10.0.0.7:4711");
  const std::string taken = addresses("[fd00::7]:4711");
  unsetenv("NCCL_SOCKET_FAMILY");
  CHECK_THAT(refused, Contains("error: NCCL_COMM_ID names the host 10.0.0.7: "));
  CHECK(taken == "[fd00::7]:4711");
}

TEST_CASE("a named root is at no link-local address, as those are not used", "[interfaces]") {
  for (const char* const place : {"[fe80::7]:4711", "[fe80::7%lo]:4711"}) {
    const auto id = make_named_id({.place = place, .from = "NCCL_COMM_ID"});
    REQUIRE_FALSE(id.ok());
    CHECK(id.error().code == tutti::Code::kInvalidUsage);
    CHECK_THAT(id.error().message, Contains("NCCL_COMM_ID") && Contains("link-local"));
  }
}

TEST_CASE("a named root's port is counted on from there, and ends with the last one", "[interfaces]") {
  const auto at = [](std::uint16_t offset) {
    const auto id = make_named_id({.place = "10.0.0.7:65530", .from = "HERE", .port_offset = offset});
    return id.ok() ? describe(id.value()) : "error: " + id.error().message;
  };
  CHECK(at(5) == "10.0.0.7:65535");
  for (const std::uint16_t offset : {6, 7, 65535})
    CHECK_THAT(at(offset), Contains("error: HERE: \"10.0.0.7:65530\"") && Contains("65535"));
}
