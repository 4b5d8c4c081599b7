// What a rank makes of the root's words, and of others that do not come, when time is over.
#include "comm/root_client.h"

#include "comm/mesh.h"
#include "comm/tcp_socket.h"
#include "rank_runs.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using Catch::Contains;
using namespace tutti::comm;

namespace {

Frame next_frame(Connection& connection) {
  for (;;) {
    auto frame = connection.next();
    REQUIRE(frame.ok());
    if (frame.value() && frame.value()->type != FrameType::kSignOfLife) return *std::move(frame).value();
    pollfd watched = {connection.fd(), POLLIN, 0};
    REQUIRE(poll(&watched, 1, 10000) == 1);
    REQUIRE(connection.fill() == Connection::Input::kOpen);
  }
}

/// The test's own words are the root's.
struct PlayedRoot {
  UniqueId id;
  TcpListener listener;

  explicit PlayedRoot(std::optional<TcpListener> own = std::nullopt) {
    auto made = own ? tutti::Result<TcpListener>(*std::move(own)) : listen_tcp();
    REQUIRE(made.ok());
    listener = std::move(made).value();
    id.magic = kUniqueIdMagic;
    id.version = kProtocolVersion;
    id.named = 1;
    id.port = listener.port;
    add_candidate(id, {false, {127, 0, 0, 1}});
  }

  /// Until the rank has its place.
  Connection take_in() const {
    pollfd watched = {listener.socket.get(), POLLIN, 0};
    REQUIRE(poll(&watched, 1, 10000) == 1);
    Connection connection(accept_connection(listener.socket.get()), Connection::kRootPayloadMax);
    const auto greeting = decode_greeting(next_frame(connection).payload);
    REQUIRE(greeting);
    Challenge challenge;
    challenge.version = kProtocolVersion;
    challenge.proof = root_proof(secret_of(id), *greeting, challenge);
    connection.queue(FrameType::kChallenge, encode(challenge));
    REQUIRE(connection.flush());
    REQUIRE(next_frame(connection).type == FrameType::kHello);
    connection.queue(FrameType::kPlace, encode(TreePlace{}));
    REQUIRE(connection.flush());
    return connection;
  }
};

}  // namespace

TEST_CASE("a rank goes on if all are there, though its own time is over by then", "[root]") {
  const rank_runs::NothingLeft nothing_left;
  const PlayedRoot played;
  const bool is_asked = GENERATE(false, true);
  std::atomic<bool> is_over{false};
  std::string why;
  std::jthread rank([&] {  // which ends by itself where a check below breaks off
    const Patience patience(2, nullptr);
    const Patience longest(20, nullptr);
    auto root = RootClient::enter(played.id, patience, 2, self_facts(1));
    if (root.ok() && !is_asked) {
      const auto has_time = [](const Patience& of) { return of.now() == Patience::Outcome::kReady; };
      while (has_time(longest) && (has_time(patience) || !is_over)) usleep(1000);
    }
    const auto complete = root.ok() ? root.value().expect(FrameType::kComplete) : std::move(root).error();
    why = complete.ok() ? "" : complete.error().message;
  });
  {
    Connection connection = played.take_in();
    if (is_asked) CHECK(next_frame(connection).type == FrameType::kLeave);
    connection.queue(FrameType::kComplete, {});
    CHECK(connection.flush());
  }  // this root ends then
  is_over = true;
  rank.join();
  CHECK(why == "");
}

TEST_CASE("a port at which another program ends all connections is told as that", "[root]") {
  const rank_runs::NothingLeft nothing_left;
  const PlayedRoot played;
  std::atomic<bool> is_over{false};
  std::jthread other([&] {
    while (!is_over) {
      pollfd watched = {played.listener.socket.get(), POLLIN, 0};
      if (poll(&watched, 1, 10) == 1) accept_connection(played.listener.socket.get()).reset();
    }
  });
  const Patience patience(0.5, nullptr);
  const auto root = RootClient::enter(played.id, patience, 2, self_facts(1));
  is_over = true;
  REQUIRE_FALSE(root.ok());
  CHECK_THAT(root.error().message,
             Contains(fmt::format("the process at 127.0.0.1:{} has ended each connection", played.id.port)));
}

TEST_CASE("ranks that do not meet are waited for as long as they may take to be reached", "[root]") {
  const rank_runs::NothingLeft nothing_left;
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const Patience patience(20, nullptr);
  auto root = RootClient::enter(id.value(), patience, 2, self_facts(0));
  REQUIRE(root.ok());
  auto listening = open_mesh_listener();
  REQUIRE(listening.ok());
  Mesh mesh(0, 2, secret_of(id.value()), listening.value().listener, std::chrono::milliseconds(200));
  const rank_runs::Stopwatch watch;
  const auto met = mesh.meet({{1, Purpose::kWatch, nullptr}}, patience, root.value());
  REQUIRE_FALSE(met.ok());
  CHECK_THAT(met.error().message, Contains("rank 0 was not reached by rank 1"));
  CHECK(watch.seconds() < 10);
  (void)root.value().leave(met.error());
  end_bootstrap(id.value());
}

namespace {

/// At one address of the loopback: each other may have the same port.
TcpListener listen_at(std::uint8_t last_byte, std::uint16_t port) {
  TcpListener made{
      PrivateDescriptor::open([] { return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }), port};
  sockaddr_storage address = {};
  socklen_t bytes = to_kernel({false, {127, 0, 0, last_byte}}, port, address);
  const int yes = 1;
  REQUIRE(setsockopt(made.socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
  REQUIRE(bind(made.socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
  REQUIRE(listen(made.socket.get(), 8) == 0);
  REQUIRE(getsockname(made.socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  made.port = ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return made;
}

}  // namespace

TEST_CASE("another program at one of the id's addresses keeps nobody from the root at another one", "[root]") {
  const rank_runs::NothingLeft nothing_left;
  enum class Answer { kOther, kFalseProof, kEnd };
  const Answer answer = GENERATE(Answer::kOther, Answer::kFalseProof, Answer::kEnd);
  PlayedRoot played(listen_at(2, 0));
  const TcpListener other = listen_at(1, played.listener.port);
  add_candidate(played.id, {false, {127, 0, 0, 2}});  // behind that of the other program
  std::jthread program([&](const std::stop_token& over) {
    std::vector<Connection> kept;
    while (!over.stop_requested()) {
      pollfd watched = {other.socket.get(), POLLIN, 0};
      if (poll(&watched, 1, 10) != 1) continue;
      PrivateDescriptor socket = accept_connection(other.socket.get());
      if (answer == Answer::kEnd) continue;
      if (answer == Answer::kOther) (void)!write(socket.get(), "HTTP/1.1 400 Bad Request\r\n", 26);
      Connection& connection = kept.emplace_back(std::move(socket), Connection::kRootPayloadMax);
      if (answer == Answer::kFalseProof)
        connection.queue(FrameType::kChallenge, encode(Challenge{kProtocolVersion, {}, {}}));
      connection.flush();
    }
  });
  std::string why;
  std::jthread rank([&] {
    const Patience patience(10, nullptr);
    const auto root = RootClient::enter(played.id, patience, 2, self_facts(1));
    why = root.ok() ? "" : root.error().message;
  });
  { const Connection connection = played.take_in(); }
  rank.join();
  CHECK(why == "");
}

TEST_CASE("what has cancelled a rank's wait for others is told", "[root]") {
  const rank_runs::NothingLeft nothing_left;
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const std::function<bool()> hopeless = [] { return true; };
  const std::function<tutti::Error()> why = [] { return tutti::error(tutti::Code::kRemote, "rank 7 has died"); };
  const Patience cancelled(20, nullptr, &hopeless, &why);
  const Patience patience(20, nullptr);
  auto root = RootClient::enter(id.value(), patience, 2, self_facts(0));
  REQUIRE(root.ok());
  auto listening = open_mesh_listener();
  REQUIRE(listening.ok());
  Mesh mesh(0, 2, secret_of(id.value()), listening.value().listener);
  const auto met = mesh.meet({{1, Purpose::kWatch, nullptr}}, cancelled, root.value());
  REQUIRE_FALSE(met.ok());
  CHECK(met.error().message == "rank 7 has died");
  (void)root.value().leave(met.error());
  end_bootstrap(id.value());
}
