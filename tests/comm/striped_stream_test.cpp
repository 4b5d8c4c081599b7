#include "comm/striped_stream.h"
#include "comm/tcp_socket.h"

#include <catch2/catch.hpp>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

namespace tutti::comm {
namespace {

struct Ends {
  std::vector<PrivateDescriptor> here, there;
};

Ends connected(std::size_t count) {
  Ends ends;
  for (std::size_t i = 0; i < count; ++i) {
    int both[2] = {-1, -1};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both) == 0);
    ends.here.push_back(PrivateDescriptor::open([&] { return both[0]; }));
    ends.there.push_back(PrivateDescriptor::open([&] { return both[1]; }));
  }
  return ends;
}

/// Waits for nothing: what is to come must be where the descriptor points.
bool is_readable(const StripedStream& stream) {
  std::byte one{};
  return recv(stream.descriptor(), &one, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

TEST_CASE("bytes over several sockets come whole and in order, whatever their parts", "[comm]") {
  std::mt19937 random(Catch::rngSeed());
  for (const std::size_t sockets : {1, 2, 3, 16}) {
    INFO(sockets << " sockets, seed " << Catch::rngSeed());
    Ends ends = connected(sockets);
    StripedStream from(std::move(ends.here));
    StripedStream to(std::move(ends.there));
    const std::size_t total = 40 * StripedStream::kStripeBytes + 17;
    std::vector<std::byte> sent(total), got(total);
    for (std::byte& b : sent) b = static_cast<std::byte>(random());
    std::size_t out = 0, in = 0;
    const auto parts_of = [&](std::vector<std::byte>& memory, std::size_t at) {
      std::array<iovec, 3> parts{};
      for (iovec& part : parts) {
        const std::size_t bytes = std::min<std::size_t>(random() % (random() % 4 == 0 ? 200000 : 100), total - at);
        part = {memory.data() + at, bytes};
        at += bytes;
      }
      return parts;
    };
    for (int look = 0; in < total && look < 1000000; ++look) {
      const auto moved = from.send(parts_of(sent, out));
      REQUIRE(moved.state == transport::ByteStream::State::kOpen);
      out += moved.bytes;
      REQUIRE(out >= in);
      if (out > in) CHECK(is_readable(to));
      in += to.receive(parts_of(got, in)).bytes;
      REQUIRE(in <= out);
    }
    CHECK(in == total);
    CHECK(got == sent);
  }
}

TEST_CASE("what several sockets carry is taken in before their end is seen", "[comm]") {
  Ends ends = connected(3);
  StripedStream from(std::move(ends.here));
  StripedStream to(std::move(ends.there));
  std::vector<std::byte> memory(2 * StripedStream::kStripeBytes + 5, std::byte{7});
  std::array<iovec, 1> part{{{memory.data(), memory.size()}}};
  REQUIRE(from.send(part).bytes == memory.size());
  from.finish();
  std::vector<std::byte> got(memory.size() + 1);
  std::array<iovec, 1> room{{{got.data(), got.size()}}};
  CHECK(to.receive(room).bytes == memory.size());
  std::array<iovec, 1> more{{{got.data(), 1}}};
  const auto end = to.receive(more);
  CHECK(end.bytes == 0);
  CHECK(end.state == transport::ByteStream::State::kEnded);
}

std::string congestion_control(int socket) {
  constexpr std::size_t kNameMax = 16;
  char name[kNameMax] = {};
  socklen_t bytes = sizeof(name);
  REQUIRE(getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0);
  return {name, strnlen(name, bytes)};
}

/// As long as it takes, which on one host is no time.
PrivateDescriptor accepted(int listener) {
  pollfd watched = {listener, POLLIN, 0};
  REQUIRE(poll(&watched, 1, 10000) == 1);
  return accept_connection(listener);
}

TEST_CASE("a connection for data is shown to what lies between while nothing goes by it", "[comm]") {
  IpAddress loopback;
  loopback.bytes = {127, 0, 0, 1};
  auto listener = listen_tcp(0, Pacing::kNone);
  REQUIRE(listener.ok());
  PrivateDescriptor here = connect_tcp(loopback, listener.value().port, Pacing::kNone);
  const PrivateDescriptor there = accepted(listener.value().socket.get());
  const TcpStream stream(std::move(here));
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    CHECK(getsockopt(stream.descriptor(), level, name, &value, &bytes) == 0);
    return value;
  };
  CHECK(option(SOL_SOCKET, SO_KEEPALIVE) == 1);
  CHECK(option(IPPROTO_TCP, TCP_KEEPIDLE) == 60);
}

TEST_CASE("connections are paced by the system unless they stay on it", "[comm]") {
  IpAddress loopback;
  loopback.bytes = {127, 0, 0, 1};
  auto usual = listen_tcp();
  auto unpaced = listen_tcp(0, Pacing::kNone);
  REQUIRE((usual.ok() && unpaced.ok()));
  PrivateDescriptor as_usual = connect_tcp(loopback, usual.value().port);
  const PrivateDescriptor usual_there = accepted(usual.value().socket.get());
  const std::string of_system = congestion_control(as_usual.get());
  CHECK(congestion_control(usual_there.get()) == of_system);
  // What does not pace is nobody's to replace.
  const std::string not_paced = of_system.starts_with("bbr") ? "reno" : of_system;

  for (const bool one_system : {true, false}) {
    PrivateDescriptor here = connect_tcp(loopback, unpaced.value().port, Pacing::kNone);
    PrivateDescriptor there = accepted(unpaced.value().socket.get());
    REQUIRE(connect_result(here.get()) == 0);
    CHECK(round_trip_us(here.get()).has_value());
    for (PrivateDescriptor* const end : {&here, &there}) {
      CHECK(congestion_control(end->get()) == not_paced);
      const int socket = end->get();
      TcpStream stream(std::move(*end));
      stream.settle_pacing(one_system);
      // A machine that is busy may have seen no round trip of less than a millisecond.
      if (one_system && round_trip_us(socket).value_or(1000) < 1000) CHECK(congestion_control(socket) == not_paced);
      if (!one_system) CHECK(congestion_control(socket) == of_system);
    }
  }
}

}  // namespace
}  // namespace tutti::comm
