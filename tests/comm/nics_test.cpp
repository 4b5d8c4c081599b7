// By which interface a rank is reached: the order in which it tells them, what the system says of them, and who takes which.
#include "comm/nics.h"
#include "comm/rank_endpoint.h"
#include "tests/temporary_folder.h"

#include <catch2/catch.hpp>

#include <sched.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace tutti::comm;

namespace {

constexpr int kFar = Nic::kUnknownDistance;

IpAddress v4(std::uint8_t network, std::uint8_t host = 1) { return {false, {10, network, 0, host}}; }
IpAddress v6(std::uint8_t network) { return {true, {0xfd, network}}; }

struct Case {
  Interface interface;
  Nic nic;
};

/// "eth1 eth0 | eth2": those that take turns, and the others.
std::string order_of(const std::vector<Case>& cases) {
  std::vector<Interface> interfaces;
  std::vector<Nic> nics;
  for (const Case& one : cases) {
    interfaces.push_back(one.interface);
    nics.push_back(one.nic);
  }
  const ToldInterfaces told = in_order(interfaces, nics);
  REQUIRE(told.interfaces.size() == cases.size());
  std::string text;
  for (std::size_t i = 0; i < told.interfaces.size(); ++i) {
    if (i > 0) text += i == told.abreast ? " | " : " ";
    text += told.interfaces[i].name + (told.interfaces[i].address.v6 ? "-6" : "");
  }
  return text;
}

/// `machine`: a folder that looks like one.
std::vector<Nic> look(const TemporaryFolder& machine, const std::vector<std::string>& names) {
  std::vector<Interface> interfaces;
  for (const std::string& name : names) interfaces.push_back({name, v4(1)});
  return look_at_nics(machine.path(), interfaces);
}

}  // namespace

TEST_CASE("interfaces of which nothing sets one apart take turns, in the order of their networks", "[nics]") {
  CHECK(in_order({}, {}).abreast == 0);
  CHECK(order_of({{{"eth0", v4(1)}, {}}}) == "eth0");
  CHECK(order_of({{{"eth0", v4(2)}, {}}, {{"eth1", v4(1)}, {}}}) == "eth1 eth0");
  CHECK(order_of(
            {{{"a", v4(2)}, {true, 1000, 10}}, {{"b", v4(3)}, {true, 1000, 10}}, {{"c", v4(1)}, {true, 1000, 10}}}) ==
        "c a b");
}

TEST_CASE("of interfaces as fast as each other the nearest take turns", "[nics]") {
  const std::vector<Case> four = {{{"a", v4(1)}, {true, 100000, 21}},
                                  {{"b", v4(2)}, {true, 100000, 10}},
                                  {{"c", v4(3)}, {true, 100000, kFar}},
                                  {{"d", v4(4)}, {true, 100000, 10}}};
  CHECK(order_of(four) == "b d | a c");
}

TEST_CASE("what is clearly slower waits for the others to fail, however near it is", "[nics]") {
  CHECK(order_of({{{"slow", v4(1)}, {true, 1000, 10}}, {{"fast", v4(2)}, {true, 100000, 21}}}) == "fast | slow");
  CHECK(order_of({{{"half", v4(1)}, {true, 50000, 10}}, {{"fast", v4(2)}, {true, 100000, 10}}}) == "fast | half");
  CHECK(order_of({{{"more", v4(1)}, {true, 60000, 10}}, {{"fast", v4(2)}, {true, 100000, 10}}}) == "more fast");
  CHECK(order_of({{{"unknown", v4(1)}, {true, 0, 10}}, {{"known", v4(2)}, {true, 10, 10}}}) == "known | unknown");
}

TEST_CASE("kinds are not mixed: hardware goes before what the kernel imitates, at whatever speed", "[nics]") {
  // What docker and the like leave on a virtual machine, whose own interface tells no speed.
  CHECK(order_of({{{"br-12", v4(1)}, {false, 10000, kFar}}, {{"ens3", v4(2)}, {true, 0, kFar}}}) == "ens3 | br-12");
  // No cable; and no network.
  CHECK(order_of({{{"eth0", v4(1), false, false}, {true, 1000, 10}}, {{"eth1", v4(2)}, {true, 1000, 10}}}) ==
        "eth1 | eth0");
  CHECK(order_of({{{"lo", {false, {127, 0, 0, 1}}, true}, {}}, {{"docker0", v4(2)}, {false, 10000, kFar}}}) ==
        "docker0 | lo");
}

TEST_CASE("an interface has one turn, whatever addresses it has, by IPv4 where there is any", "[nics]") {
  CHECK(
      order_of({{{"a", v4(1)}, {}}, {{"a", v4(9)}, {}}, {{"b", v4(2)}, {}}, {{"a", v6(1)}, {}}, {{"b", v6(2)}, {}}}) ==
      "a b | a a-6 b-6");
  CHECK(order_of({{{"b", v6(2)}, {}}, {{"a", v6(1)}, {}}}) == "a-6 b-6");
  CHECK(order_of({{{"fast", v6(1)}, {true, 100000, 10}}, {{"slow", v4(1)}, {true, 10, 10}}}) == "slow | fast-6");
}

TEST_CASE("the system says which interfaces are hardware, how fast and how near they are", "[nics]") {
  const TemporaryFolder machine;
  const std::string net = "sys/class/net/";
  int processor = 0;
  std::vector<Nic> nics;
  std::vector<Nic> of_one_node;
  std::thread([&] {
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    while (!CPU_ISSET(processor, &all)) ++processor;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
    machine.write_line("sys/devices/system/node/online", "0,2");
    machine.write_line("sys/devices/system/node/node0/cpulist", "100000");
    machine.write_line("sys/devices/system/node/node2/cpulist", std::to_string(processor));
    machine.write_line("sys/devices/system/node/node2/distance", "21 10");
    machine.write_line(net + "near/speed", "100000");
    machine.write_line(net + "near/device/numa_node", "2");
    machine.write_line(net + "far/speed", "100000");
    machine.write_line(net + "far/device/numa_node", "0");
    machine.write_line(net + "virtual/speed", "-1");
    machine.write_line(net + "virtual/device/numa_node", "-1");
    machine.write_line(net + "veth/speed", "10000");
    machine.write_line(net + "bond/lower_far/speed", "");
    machine.write_line(net + "vlan/lower_bond/speed", "");
    machine.write_line(net + "bridge/lower_veth/speed", "");
    machine.write_line(net + "loop/lower_loop/speed", "");
    nics = look(machine, {"near", "far", "virtual", "veth", "bond", "vlan", "bridge", "loop", "gone"});
    // A machine of one node, which not all its devices name.
    machine.write_line("sys/devices/system/node/online", "2");
    machine.write_line("sys/devices/system/node/node2/distance", "10");
    of_one_node = look(machine, {"near", "virtual"});
  }).join();
  CHECK(nics[0] == Nic{true, 100000, 10});
  CHECK(nics[1] == Nic{true, 100000, 21});
  CHECK(nics[2] == Nic{true, 0, kFar});
  CHECK(nics[3] == Nic{false, 10000, kFar});
  CHECK(nics[4] == Nic{true, 0, 21});
  CHECK(nics[5] == Nic{true, 0, 21});
  CHECK(nics[6] == Nic{});
  CHECK(nics[7] == Nic{});
  CHECK(nics[8] == Nic{});
  CHECK(of_one_node[0] == Nic{true, 100000, kFar});
  CHECK(of_one_node[1] == Nic{true, 0, kFar});
  // Nothing to choose, nothing to look at.
  CHECK(look(machine, {"near", "near"}) == std::vector<Nic>(2));
}

TEST_CASE("ranks of a host that tell the same interfaces take them by turns", "[nics]") {
  const auto told = [](std::vector<IpAddress> addresses, std::uint8_t abreast) {
    RankEndpoint endpoint;
    endpoint.addresses = std::move(addresses);
    endpoint.abreast = abreast;
    return endpoint;
  };
  // Ranks by turns on two hosts, each with two networks and a slow one; the last two sit beside other NICs.
  std::vector<RankEndpoint> all;
  for (int rank = 0; rank < 6; ++rank) {
    const auto host = static_cast<std::uint8_t>(1 + rank % 2);
    all.push_back(told({v4(1, host), v4(2, host), v4(9, host)}, 2));
  }
  all.push_back(told({v4(3, 1), v4(4, 1), v4(1, 1)}, 2));
  all.push_back(told({v4(5, 2)}, 1));
  take_turns(all, {0, 1, 0, 1, 0, 1, 0, 1});
  for (int rank = 0; rank < 6; ++rank) {
    const auto host = static_cast<std::uint8_t>(1 + rank % 2);
    const bool second = rank / 2 % 2 == 1;
    INFO(rank);
    CHECK(all[static_cast<std::size_t>(rank)].addresses ==
          std::vector<IpAddress>{v4(second ? 2 : 1, host), v4(second ? 1 : 2, host), v4(9, host)});
  }
  CHECK(all[6].addresses == std::vector<IpAddress>{v4(3, 1), v4(4, 1), v4(1, 1)});
  CHECK(all[7].addresses == std::vector<IpAddress>{v4(5, 2)});
}

TEST_CASE("how many addresses are abreast travels with them, and no more than there are", "[nics]") {
  RankEndpoint endpoint;
  endpoint.addresses = {v4(1), v4(2)};
  for (const int abreast : {0, 1, 2, 3}) {
    endpoint.abreast = static_cast<std::uint8_t>(abreast);
    const auto same = decode_endpoint(encode(endpoint));
    INFO(abreast);
    REQUIRE(same.has_value() == (abreast == 1 || abreast == 2));
    if (same) CHECK(same->abreast == abreast);
  }
}
