// Connections that are made when they are needed, driven by hand: two ranks of a communicator, each with what its watch's thread would do.
#include "comm/late_ties.h"

#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace {

using tutti::comm::LateMeeting;
using tutti::comm::LateTies;
using tutti::comm::Meetings;
using tutti::comm::RankEndpoint;
using tutti::comm::Secret;

/// One of two ranks.
struct Side {
  std::unique_ptr<LateTies> ties;
  std::vector<std::string> failures;

  void look() const {
    std::vector<pollfd> watched;
    ties->add_to(watched);
    poll(watched.data(), watched.size(), 1);
    ties->serve(watched);
  }
};

struct Two {
  Side sides[2];
  std::uint16_t ports[2] = {};

  Two() {
    LateMeeting meetings[2];
    std::vector<RankEndpoint> endpoints(2);
    for (int rank = 0; rank < 2; ++rank) {
      auto listener = tutti::comm::listen_tcp();
      REQUIRE(listener.ok());
      ports[rank] = endpoints[rank].port = listener.value().port;
      endpoints[rank].addresses.push_back({false, {127, 0, 0, 1}});
      meetings[rank].listener = std::move(listener).value();
    }
    for (int rank = 0; rank < 2; ++rank) {
      LateMeeting& meeting = meetings[rank];
      meeting.meetings = std::make_unique<Meetings>(rank, 2, Secret{}, meeting.listener.socket);
      meeting.endpoints = endpoints;
      LateTies::Args args;
      args.rank = rank;
      args.meeting = std::move(meeting);
      args.missing = {rank != 0, rank != 1};
      args.on_failure = [this, rank](int, const tutti::Error& why) { sides[rank].failures.push_back(why.message); };
      args.given_up = [] { return false; };
      sides[rank].ties = std::make_unique<LateTies>(std::move(args));
      sides[rank].ties->set_wake([] {});
    }
  }
};

std::vector<LateTies::News> news_of(Side& side) { return side.ties->take_news(); }

/// Looks at both until rank 0 has its connection; rank 1 may not have seen that yet.
std::vector<LateTies::News> connect_first(Two& two) {
  two.sides[0].ties->want(1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!two.sides[0].ties->has_news() && std::chrono::steady_clock::now() < end) {
    two.sides[1].look();
    two.sides[0].look();
  }
  return news_of(two.sides[0]);
}

TEST_CASE("what a rank has sent before it left comes by a connection that the other had yet to take") {
  Two two;
  const auto made = connect_first(two);
  REQUIRE(made.size() == 1);
  REQUIRE(made[0].sockets.size() == 1);
  REQUIRE(send(made[0].sockets[0].get(), "data", 4, MSG_NOSIGNAL) == 4);
  // Rank 1's thread has not looked since; rank 0's goodbye comes by another way.
  two.sides[1].ties->note_left(0, 7);

  const auto heard = news_of(two.sides[1]);
  REQUIRE(heard.size() == 2);
  REQUIRE(heard[0].sockets.size() == 1);
  char data[5] = {};
  const timeval limit{5, 0};
  setsockopt(heard[0].sockets[0].get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  CHECK(recv(heard[0].sockets[0].get(), data, 4, MSG_WAITALL) == 4);
  CHECK(std::string(data) == "data");
  CHECK(heard[1].sockets.empty());
  CHECK(heard[1].last_call == 7);
}

TEST_CASE("a rank is tried for 30 s, or four fifths of TUTTI_TIMEOUT_S; without signs of life by that alone") {
  using std::chrono::seconds;
  CHECK(Meetings::reach_time(10, 1800) == seconds(30));
  CHECK(Meetings::reach_time(10, 5) == seconds(4));
  CHECK(Meetings::reach_time(10, 0) == seconds(30));
  CHECK(Meetings::reach_time(0, 1800) == seconds(1440));
  CHECK(Meetings::reach_time(0, 0) >= std::chrono::hours(24));
}

/// A stranger's connection, and what connect() has said.
struct Caller {
  tutti::comm::PrivateDescriptor socket =
      tutti::comm::PrivateDescriptor::open([] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  int failure = 0;

  explicit Caller(std::uint16_t port) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) failure = errno;
    const timeval limit{5, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  /// Nothing has come, and the other side has closed it.
  bool is_closed() const {
    char byte = 0;
    const ssize_t got = recv(socket.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
};

TEST_CASE("who seeks a rank that is about to leave is refused at once") {
  bool woken = false;
  Two two;
  two.sides[1].ties->set_wake([&] { woken = true; });
  const Caller taken_in(two.ports[1]);
  REQUIRE(taken_in.failure == 0);
  for (int look = 0; look < 5; ++look) two.sides[1].look();
  const Caller waiting(two.ports[1]);
  REQUIRE(waiting.failure == 0);
  two.sides[1].ties->close_doors();
  CHECK(woken);  // the listener is there until poll() of its thread returns
  CHECK(taken_in.is_closed());
  CHECK(waiting.is_closed());
  CHECK(Caller(two.ports[1]).failure == ECONNREFUSED);
}

TEST_CASE("a rank that has left is not connected with") {
  Two two;
  two.sides[0].ties->note_left(1, 3);
  two.sides[0].ties->want(1);
  for (int look = 0; look < 50; ++look) {
    two.sides[0].look();
    two.sides[1].look();
  }
  const auto heard = news_of(two.sides[0]);
  REQUIRE(heard.size() == 1);
  CHECK(heard[0].sockets.empty());
  CHECK(heard[0].last_call == 3);
  CHECK(two.sides[0].failures.empty());
  CHECK_FALSE(two.sides[1].ties->has_news());
}

}  // namespace
