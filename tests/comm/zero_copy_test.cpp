// Sends from where the bytes lie, over this machine's own network: there the kernel copies them at last, which these streams do not mind.
#include "comm/record_link.h"
#include "comm/striped_stream.h"
#include "comm/tcp_socket.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <poll.h>
#include <sys/socket.h>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;
using State = transport::ByteStream::State;
using std::chrono::milliseconds;

constexpr ZeroCopy::Options kAlways = {.from_bytes = 1, .goes_on_if_copied = true};
constexpr std::size_t kNever = ~std::size_t{0};

struct Ends {
  PrivateDescriptor connected;
  PrivateDescriptor accepted;  ///< of another family, where there is IPv6: the kernel's words come as that one's
};

Ends connect_ends() {
  auto listener = listen_tcp(0, Pacing::kNone);
  REQUIRE(listener.ok());
  IpAddress loopback;
  loopback.bytes = {127, 0, 0, 1};
  Ends ends;
  ends.connected = connect_tcp(loopback, listener.value().port, Pacing::kNone);
  pollfd watched = {listener.value().socket.get(), POLLIN, 0};
  REQUIRE(poll(&watched, 1, 10000) == 1);
  ends.accepted = accept_connection(listener.value().socket.get());
  REQUIRE(connect_result(ends.connected.get()) == 0);
  send_at_once(ends.connected.get());
  send_at_once(ends.accepted.get());
  return ends;
}

template <class Condition>
bool comes_true(const Condition& condition) {
  for (const auto until = Clock::now() + milliseconds(10000); Clock::now() < until;) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(Catch::rngSeed());
  std::vector<std::byte> made(count);
  for (std::byte& b : made) b = static_cast<std::byte>(random());
  return made;
}

/// More than this machine's kernel takes for somebody who does not read.
constexpr std::size_t kTooMuch = std::size_t{64} << 20;

/// As much of the bytes as is taken.
std::size_t lend_all(transport::ByteStream& stream, const std::vector<std::byte>& bytes) {
  std::size_t taken = 0;
  for (;;) {
    iovec part = {const_cast<std::byte*>(bytes.data()) + taken, std::min<std::size_t>(bytes.size() - taken, 100000)};
    const auto moved = stream.send_lent({&part, 1});
    REQUIRE(moved.state == State::kOpen);
    if (moved.bytes == 0) return taken;
    taken += moved.bytes;
  }
}

/// Up to `most`, or the end.
std::vector<std::byte> read(transport::ByteStream& stream, std::size_t most) {
  std::vector<std::byte> got(most);
  std::size_t count = 0;
  comes_true([&] {
    while (count < most) {
      iovec room = {got.data() + count, most - count};
      const auto moved = stream.receive({&room, 1});
      count += moved.bytes;
      if (moved.state == State::kEnded) return true;
      if (moved.bytes == 0) return false;
    }
    return true;
  });
  got.resize(count);
  return got;
}

bool are_first(const std::vector<std::byte>& got, const std::vector<std::byte>& sent) {
  return got.size() <= sent.size() && std::memcmp(got.data(), sent.data(), got.size()) == 0;
}

}  // namespace

TEST_CASE("what is lent is not released before the other end has it, and comes as it was", "[comm][zero_copy]") {
  for (const bool from_accepted : {false, true}) {
    INFO((from_accepted ? "from the end that was accepted" : "from the end that has connected"));
    Ends ends = connect_ends();
    TcpStream from(std::move(from_accepted ? ends.accepted : ends.connected), kAlways);
    TcpStream to(std::move(from_accepted ? ends.connected : ends.accepted));
    REQUIRE(from.lends_from() == 1);
    CHECK(from.is_released());
    const std::vector<std::byte> sent = random_bytes(kTooMuch);
    const std::size_t taken = lend_all(from, sent);
    REQUIRE(taken < kTooMuch);
    std::this_thread::sleep_for(milliseconds(50));
    CHECK_FALSE(from.is_released());
    const std::vector<std::byte> got = read(to, taken);
    CHECK(got.size() == taken);
    CHECK(are_first(got, sent));
    CHECK(comes_true([&] { return from.is_released(); }));
    CHECK(from.lends_from() == 1);
  }
}

TEST_CASE("memory that is written again as soon as it is released never changes what was sent", "[comm][zero_copy]") {
  std::mt19937 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (const std::size_t sockets : {1, 3}) {
    INFO(sockets << " sockets");
    std::vector<PrivateDescriptor> here, there;
    for (std::size_t i = 0; i < sockets; ++i) {
      Ends ends = connect_ends();
      here.push_back(std::move(ends.connected));
      there.push_back(std::move(ends.accepted));
    }
    StripedStream from(std::move(here), kAlways);
    StripedStream to(std::move(there));
    std::vector<std::byte> memory(300000), got(300000);
    for (int round = 0; round < 400; ++round) {
      const std::size_t bytes = 1 + random() % (random() % 2 == 0 ? memory.size() : 5000);
      const auto value = static_cast<std::byte>(round);
      std::fill_n(memory.begin(), bytes, value);
      std::size_t out = 0, in = 0;
      const bool is_over = comes_true([&] {
        for (int look = 0; look < 100; ++look) {
          iovec part = {memory.data() + out, bytes - out};
          if (out < bytes) out += (random() % 4 == 0 ? from.send({&part, 1}) : from.send_lent({&part, 1})).bytes;
          if (out == bytes && from.is_released()) std::fill_n(memory.begin(), bytes, std::byte(~round));
          iovec room = {got.data() + in, std::min<std::size_t>(bytes - in, 1 + random() % 60000)};
          if (in < bytes && random() % 4 == 0) in += to.receive({&room, 1}).bytes;
          if (in == bytes && from.is_released()) return true;
        }
        return false;
      });
      REQUIRE(is_over);
      REQUIRE(std::all_of(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(bytes),
                          [&](std::byte b) { return b == value; }));
    }
  }
}

TEST_CASE("the kernel's words about such sends are not taken for the end of a connection", "[comm][zero_copy]") {
  Ends ends = connect_ends();
  const int socket = ends.connected.get();
  TcpStream from(std::move(ends.connected), kAlways);
  TcpStream to(std::move(ends.accepted));
  const std::vector<std::byte> sent = random_bytes(30000);
  iovec part = {const_cast<std::byte*>(sent.data()), sent.size()};
  REQUIRE(from.send_lent({&part, 1}).bytes == sent.size());
  REQUIRE(comes_true([&] {
    pollfd watched = {socket, POLLIN, 0};
    return poll(&watched, 1, 0) == 1 && (watched.revents & POLLERR) != 0;
  }));
  std::byte one{};
  iovec room = {&one, 1};
  CHECK(from.receive({&room, 1}).state == State::kOpen);
  CHECK(from.send_lent({&part, 1}).bytes == sent.size());
  CHECK(comes_true([&] { return from.is_released(); }));
  pollfd watched = {socket, POLLIN, 0};
  CHECK(poll(&watched, 1, 0) == 0);
  CHECK(read(to, 2 * sent.size()).size() == 2 * sent.size());
}

TEST_CASE("where the kernel copies after all, a socket goes back to copies", "[comm][zero_copy]") {
  Ends ends = connect_ends();
  TcpStream from(std::move(ends.connected), {.from_bytes = 1});
  TcpStream to(std::move(ends.accepted));
  const std::vector<std::byte> sent = random_bytes(kTooMuch);
  iovec part = {const_cast<std::byte*>(sent.data()), 1000};
  REQUIRE(from.send_lent({&part, 1}).bytes == 1000);
  REQUIRE(comes_true([&] { return from.is_released(); }));
  CHECK(from.lends_from() == kNever);
  REQUIRE(lend_all(from, sent) < kTooMuch);
  CHECK(from.is_released());  // though nobody reads
  CHECK(are_first(read(to, 1000), sent));
}

TEST_CASE("a socket that knows no such sends, and a length of zero, copy", "[comm][zero_copy]") {
  int both[2] = {-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both) == 0);
  const TcpStream unix_stream(PrivateDescriptor::open([&] { return both[0]; }), kAlways);
  CHECK(unix_stream.lends_from() == kNever);
  close(both[1]);
  Ends ends = connect_ends();
  CHECK(TcpStream(std::move(ends.connected), {.from_bytes = 0}).lends_from() == kNever);
}

namespace {

/// Leaves less of the socket's optmem than the kernel needs for a word: a filter that lets all pass has the rest.
void use_up_optmem(int socket) {
  constexpr unsigned kMost = 4095;
  std::vector<sock_filter> loads(kMost, sock_filter BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0));
  const auto fits = [&](unsigned count) {
    std::vector<sock_filter> filter(loads.begin(), loads.begin() + count);
    filter.push_back(sock_filter BPF_STMT(BPF_RET | BPF_K, ~0u));
    const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
    const int none = 0;
    (void)setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none));
    return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0;
  };
  unsigned least = 0;
  unsigned most = kMost;
  while (most - least > 1) {
    const unsigned middle = (least + most) / 2;
    (fits(middle) ? least : most) = middle;
  }
  REQUIRE(fits(least));
}

}  // namespace

TEST_CASE("what the kernel has no room to tell of goes by a copy", "[comm][zero_copy]") {
  Ends ends = connect_ends();
  use_up_optmem(ends.connected.get());
  const std::vector<std::byte> sent = random_bytes(kTooMuch);
  iovec part = {const_cast<std::byte*>(sent.data()), 1000};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const auto zero_copy = ZeroCopy::open(ends.connected.get(), kAlways);
  REQUIRE(zero_copy);
  CHECK(zero_copy->send(message, MSG_DONTWAIT) == -1);
  CHECK(errno == ENOBUFS);
  CHECK(zero_copy->sends() == 0);

  TcpStream from(std::move(ends.connected), kAlways);
  TcpStream to(std::move(ends.accepted));
  const std::size_t taken = lend_all(from, sent);
  CHECK(taken > 0);
  CHECK(from.is_released());  // though nobody reads
  CHECK(are_first(read(to, taken), sent));
}

TEST_CASE("a stream that is given up sends nothing of what may be written now", "[comm][zero_copy]") {
  Ends ends = connect_ends();
  auto from = std::make_unique<TcpStream>(std::move(ends.connected), kAlways);
  TcpStream to(std::move(ends.accepted));
  std::vector<std::byte> memory = random_bytes(kTooMuch);
  const std::vector<std::byte> sent = memory;
  const std::size_t taken = lend_all(*from, memory);
  from.reset();
  std::ranges::fill(memory, std::byte{0});
  const std::vector<std::byte> got = read(to, kTooMuch);
  CHECK(got.size() < taken);
  CHECK(are_first(got, sent));
}

TEST_CASE("records that are lent and others come in order, and the link waits for what was lent", "[comm][zero_copy]") {
  Ends ends = connect_ends();
  std::vector<std::byte> from_memory(8), to_memory(std::size_t{1} << 20);
  RecordLink from(std::make_unique<TcpStream>(std::move(ends.connected), kAlways), from_memory);
  RecordLink to(std::make_unique<TcpStream>(std::move(ends.accepted)), to_memory);
  std::vector<std::byte> payload = random_bytes(to_memory.size());
  const std::vector<std::byte> sent = payload;
  std::mt19937 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  std::size_t end = 0;
  while (end < payload.size()) {
    Record record;
    record.bytes = static_cast<std::uint32_t>(
        std::min<std::size_t>(payload.size() - end, random() % 3 == 0 ? random() % 200 : random() % 50000));
    record.offset = end;
    random() % 2 == 0 ? from.lend(record, payload.data() + end) : from.queue(record, payload.data() + end);
    end += record.bytes;
  }
  while (from.send()) {
  }
  REQUIRE(comes_true([&] {
    from.send();
    if (from.is_sent() && from.is_released()) std::ranges::fill(payload, std::byte{0});
    to.receive();
    return from.is_sent() && from.is_released() && to_memory == sent;
  }));
  CHECK(to.state() == RecordLink::State::kOpen);

  Record record;
  record.bytes = static_cast<std::uint32_t>(to_memory.size());
  for (int i = 0; i < 64; ++i) from.lend(record, sent.data());
  while (from.send()) {
  }
  REQUIRE_FALSE(from.is_sent());
  CHECK_FALSE(from.is_released());
}

}  // namespace tutti::comm
