// The interface that a connection goes through, by real sockets of this machine.
#include "comm/own_port.h"
#include "comm/interfaces.h"
#include "comm/tcp_socket.h"

#include <catch2/catch.hpp>

#include <poll.h>

#include <algorithm>

using namespace tutti;
using comm::IpAddress;
using comm::Port;
using comm::port_of;

namespace {

struct Connected {
  comm::TcpListener listener;
  comm::PrivateDescriptor ours;
  comm::PrivateDescriptor theirs;

  explicit Connected(const IpAddress& to) {
    auto made = comm::listen_tcp();
    REQUIRE(made.ok());
    listener = std::move(made).value();
    ours = comm::connect_tcp(to, listener.port);
    REQUIRE(ours);
    pollfd both[] = {{listener.socket.get(), POLLIN, 0}, {ours.get(), POLLOUT, 0}};
    REQUIRE(poll(&both[0], 1, 5000) == 1);
    REQUIRE(poll(&both[1], 1, 5000) == 1);
    theirs = comm::accept_connection(listener.socket.get());
    REQUIRE(theirs);
  }
};

}  // namespace

TEST_CASE("a connection of this machine with itself is by its loopback, whatever address it has", "[port]") {
  const auto interfaces = comm::list_interfaces();
  REQUIRE(interfaces.ok());
  for (const comm::Interface& interface : interfaces.value()) {
    if (interface.address.v6) continue;
    INFO(interface.name << " " << interface.address.text());
    const Connected pair(interface.address);
    for (const int socket : {pair.ours.get(), pair.theirs.get()}) {
      const Port port = port_of(socket, "");
      CHECK(port.interface == interface.name);
      CHECK(port.loopback);
      CHECK(port.megabits == 0);
    }
  }
}

TEST_CASE("what is no connection has no interface", "[port]") {
  CHECK(port_of(-1, "") == Port{});
  auto listener = comm::listen_tcp();
  REQUIRE(listener.ok());
  CHECK(port_of(listener.value().socket.get(), "") == Port{});
}
