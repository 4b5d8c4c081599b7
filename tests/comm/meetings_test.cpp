// Meetings of two ranks, driven by hand: which address is tried first, and a listener that can take nobody in. And whom
// a rank has to meet when those between have gone.
#include "comm/meetings.h"

#include "comm/rank_endpoint.h"
#include "comm/tcp_socket.h"
#include "comm/watch_graph.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace tutti::comm;

namespace {

using Clock = std::chrono::steady_clock;

constexpr IpAddress kAddress{false, {127, 0, 0, 1}};
constexpr IpAddress kOther{false, {127, 0, 0, 3}};

/// Listens at one address of the loopback; port 0: a free one.
PrivateDescriptor listen_at(const IpAddress& address, std::uint16_t& port) {
  PrivateDescriptor made =
      PrivateDescriptor::open([] { return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  sockaddr_storage where;
  socklen_t bytes = to_kernel(address, port, where);
  REQUIRE(bind(made.get(), reinterpret_cast<const sockaddr*>(&where), bytes) == 0);
  REQUIRE(listen(made.get(), 16) == 0);
  REQUIRE(getsockname(made.get(), reinterpret_cast<sockaddr*>(&where), &bytes) == 0);
  port = ntohs(reinterpret_cast<const sockaddr_in&>(where).sin_port);
  return made;
}

/// Rank 1 listens, rank 0 connects with it.
struct TwoRanks {
  std::uint16_t port = 0;
  PrivateDescriptor listener;
  std::uint16_t unused = 0;
  PrivateDescriptor own = listen_at(kAddress, unused);
  Meetings from{0, 2, Secret{}, own};
  Meetings to{1, 2, Secret{}, listener};
  std::vector<Connection> made;

  explicit TwoRanks(const IpAddress& address = kAddress) : listener(listen_at(address, port)) {
    from.begin({.expects = [](const Meetings::Key&) { return false; },
                .on_made = [this](const Meetings::Key&, Connection one) { made.push_back(std::move(one)); }});
    to.begin(
        {.expects = [](const Meetings::Key&) { return true; }, .on_made = [](const Meetings::Key&, Connection) {}});
  }

  static std::vector<pollfd> look(Meetings& at) {
    std::vector<pollfd> watched;
    at.add_to(watched);
    poll(watched.data(), watched.size(), 1);
    at.serve(watched);
    return watched;
  }

  /// Until rank 0 has so many, or 10 s are over. `meanwhile` is called between looks.
  template <class Meanwhile>
  bool have(std::size_t count, const Meanwhile& meanwhile) {
    for (const auto end = Clock::now() + std::chrono::seconds(10); made.size() < count && Clock::now() < end;) {
      look(from);
      meanwhile();
      look(to);
    }
    return made.size() == count;
  }
};

}  // namespace

TEST_CASE("a connection is first tried by an address that has answered before", "[meetings]") {
  TwoRanks ranks;
  // Somebody else has the same port at the address that comes first, and closes whatever comes.
  const PrivateDescriptor other = listen_at(kOther, ranks.port);
  int came = 0;
  const auto close_others = [&] {
    while (const PrivateDescriptor guest = accept_connection(other.get())) ++came;
  };
  ListenPlace there;
  there.port = ranks.port;
  there.addresses = {kOther, kAddress};
  ranks.from.seek({1, Purpose::kData}, there);
  REQUIRE(ranks.have(1, close_others));
  CHECK(came == 1);
  // Of another rank of that host, or for another purpose.
  ranks.from.seek({1, Purpose::kWatch}, there);
  REQUIRE(ranks.have(2, close_others));
  CHECK(came == 1);
}

TEST_CASE("what a rank said to another is worth nothing on another connection", "[meetings]") {
  TwoRanks ranks;
  int made_there = 0;
  ranks.to.begin({.expects = [](const Meetings::Key&) { return true; },
                  .on_made = [&](const Meetings::Key&, Connection) { ++made_there; }});
  // Between the two, somebody listens who passes everything on and keeps what rank 0 says.
  std::uint16_t port = 0;
  const PrivateDescriptor between = listen_at(kOther, port);
  PrivateDescriptor guest;
  PrivateDescriptor there;
  std::string said;
  const auto pass_on = [&] {
    if (!guest) {
      guest = accept_connection(between.get());
      if (!guest) return;
      there = connect_tcp(kAddress, ranks.port);
    }
    char part[4096];
    if (const ssize_t got = recv(guest.get(), part, sizeof(part), MSG_DONTWAIT); got > 0) {
      said.append(part, static_cast<std::size_t>(got));
      REQUIRE(send(there.get(), part, static_cast<std::size_t>(got), MSG_NOSIGNAL) == got);
    }
    if (const ssize_t got = recv(there.get(), part, sizeof(part), MSG_DONTWAIT); got > 0)
      REQUIRE(send(guest.get(), part, static_cast<std::size_t>(got), MSG_NOSIGNAL) == got);
  };
  ListenPlace place;
  place.port = port;
  place.addresses = {kOther};
  ranks.from.seek({1, Purpose::kData}, place);
  REQUIRE(ranks.have(1, pass_on));
  for (int look = 0; look < 100 && made_there == 0; ++look) {
    pass_on();
    TwoRanks::look(ranks.to);
  }
  REQUIRE(made_there == 1);
  for (int replay = 0; replay < 3; ++replay) {
    const PrivateDescriptor stranger = connect_tcp(kAddress, ranks.port);
    pollfd connected = {stranger.get(), POLLOUT, 0};
    REQUIRE(poll(&connected, 1, 1000) == 1);
    REQUIRE(send(stranger.get(), said.data(), said.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(said.size()));
    bool sent_away = false;
    for (const auto end = Clock::now() + std::chrono::seconds(5); !sent_away && Clock::now() < end;) {
      TwoRanks::look(ranks.to);
      char part[4096];
      const ssize_t got = recv(stranger.get(), part, sizeof(part), MSG_DONTWAIT);
      sent_away = got == 0 || (got < 0 && errno == ECONNRESET);
    }
    CHECK(sent_away);
    CHECK(made_there == 1);
  }
  CHECK(ranks.to.is_idle());
  // The ranks themselves can still connect.
  place.port = ranks.port;
  place.addresses = {kAddress};
  ranks.from.seek({1, Purpose::kWatch}, place);
  CHECK(ranks.have(2, [] {}));
}

TEST_CASE("a crowd of silent strangers cannot keep a rank out of another one's port", "[meetings]") {
  TwoRanks ranks;
  std::vector<PrivateDescriptor> crowd;
  for (int stranger = 0; stranger < 300; ++stranger) {
    crowd.push_back(connect_tcp(kAddress, ranks.port));
    if (stranger % 8 == 7) TwoRanks::look(ranks.to);  // the listener's queue is short
  }
  ListenPlace there;
  there.port = ranks.port;
  there.addresses = {kAddress};
  const auto start = Clock::now();
  ranks.from.seek({1, Purpose::kData}, there);
  CHECK(ranks.have(1, [] {}));
  CHECK(Clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a crowd of strangers leaves its descriptors to the process", "[meetings]") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 400;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  {
    TwoRanks ranks;
    std::vector<PrivateDescriptor> crowd;
    for (int stranger = 0; stranger < 100; ++stranger) {
      crowd.push_back(connect_tcp(kAddress, ranks.port));
      if (stranger % 8 == 7) TwoRanks::look(ranks.to);
    }
    std::vector<pollfd> watched;
    ranks.to.add_to(watched);
    CHECK(watched.size() <= 1 + 400 / 16);
    ListenPlace there;
    there.port = ranks.port;
    there.addresses = {kAddress};
    ranks.from.seek({1, Purpose::kData}, there);
    CHECK(ranks.have(1, [] {}));
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("who drops an attempt that the other side may have taken in greets before it goes", "[meetings]") {
  TwoRanks ranks;
  ListenPlace there;
  there.port = ranks.port;
  there.addresses = {kAddress};
  ranks.from.seek({1, Purpose::kData}, there);
  std::vector<pollfd> watched;
  ranks.from.add_to(watched);
  pollfd connected = {watched.back().fd, POLLOUT, 0};
  REQUIRE(poll(&connected, 1, 1000) == 1);
  ranks.from.forget(1);
  Connection heard(accept_connection(ranks.listener.get()), Connection::kStrangerPayloadMax);
  REQUIRE(heard.fd() >= 0);
  CHECK(heard.fill() == Connection::Input::kClosed);
  const auto frame = heard.next();
  REQUIRE(frame.ok());
  REQUIRE(frame.value());
  CHECK(frame.value()->type == FrameType::kGreeting);
}

TEST_CASE("sockets of a pair take addresses abreast by turns, and leave out those that do not answer", "[meetings]") {
  const IpAddress any{};
  TwoRanks ranks(any);
  ListenPlace there;
  there.port = ranks.port;
  there.addresses = {kOther, kAddress, {false, {127, 0, 0, 4}}};
  there.abreast = 2;
  const auto met_at = [&](Purpose purpose) {
    const std::size_t before = ranks.made.size();
    ranks.from.seek({1, purpose}, there);
    REQUIRE(ranks.have(before + 1, [] {}));
    return *peer_ip(ranks.made.back().fd());
  };
  // What has answered first is no better.
  for (int round = 0; round < 2; ++round) {
    CHECK(met_at(data_socket(0)) == kOther);
    CHECK(met_at(data_socket(1)) == kAddress);
    CHECK(met_at(data_socket(2)) == kOther);
    CHECK(met_at(Purpose::kWatch) == kOther);
  }
  // Nobody can connect with a broadcast address: the next one is taken.
  const IpAddress nowhere{false, {255, 255, 255, 255}};
  there.addresses = {nowhere, kAddress, kOther};
  CHECK(met_at(data_socket(0)) == kAddress);
  CHECK(met_at(data_socket(1)) == kAddress);
  CHECK(met_at(data_socket(2)) == kAddress);
}

TEST_CASE("a listener that can take nobody in rests, and goes on when it can", "[meetings]") {
  TwoRanks ranks;
  ListenPlace there;
  there.port = ranks.port;
  there.addresses = {kAddress};
  ranks.from.seek({1, Purpose::kData}, there);
  TwoRanks::look(ranks.from);  // has its socket now
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = fcntl(ranks.own.get(), F_DUPFD, 0);
  close(next);
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto first = TwoRanks::look(ranks.to);
  CHECK_FALSE(ranks.to.starved(std::chrono::seconds(1)));
  const auto starved = ranks.to.starved({});
  REQUIRE(starved);
  CHECK_THAT(starved->message, Catch::Contains("Too many open files") && Catch::Contains("ulimit -n"));
  int looked = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(50); Clock::now() < end; usleep(1000))
    looked += TwoRanks::look(ranks.to).front().fd >= 0 ? 1 : 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(first.front().fd == ranks.listener.get());
  CHECK(first.front().revents != 0);
  CHECK(looked == 0);  // the listener is readable all the time: to poll it would be to spin
  CHECK(ranks.have(1, [] {}));
  CHECK_FALSE(ranks.to.starved({}));
}

TEST_CASE("who has no descriptor to seek another rank with says so, not that the network is to blame", "[meetings]") {
  TwoRanks ranks;
  ListenPlace there;
  there.port = ranks.port;
  there.addresses = {kAddress};
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = fcntl(ranks.own.get(), F_DUPFD, 0);
  close(next);
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  ranks.from.seek({1, Purpose::kData}, there);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  TwoRanks::look(ranks.from);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(ranks.from.starved({}));
  const auto why = ranks.from.not_reached();
  REQUIRE(why);
  CHECK_THAT(why->message, Catch::Contains("rank 1") && Catch::Contains("(Too many open files)") &&
                               Catch::Contains("ulimit -n") && !Catch::Contains("NCCL_SOCKET_IFNAME"));
  CHECK(ranks.have(1, [] {}));
  CHECK_FALSE(ranks.from.starved({}));
}

TEST_CASE("a ring is whole where somebody is connected, or nobody is left, on both sides", "[watch]") {
  using Ranks = std::vector<int>;
  std::set<int> connected = {1, 2, 4, 8, 12, 16, 18, 19};
  std::set<int> unreached;
  WatchGraph graph(0, 20);
  const auto ring = [&] {
    return graph.ring([&](int rank) { return connected.contains(rank); },
                      [&](int rank) { return unreached.contains(rank); });
  };
  CHECK(ring().whole);
  CHECK(ring().wanted.empty());
  CHECK(graph.note({2, PeerLife::kEnded}));
  CHECK_FALSE(graph.note({2, PeerLife::kLeft}));
  CHECK(ring().whole);
  CHECK(graph.note({1, PeerLife::kLeft}));
  CHECK_FALSE(ring().whole);
  CHECK(ring().wanted == Ranks{3});
  // Rank 4, which is connected, will do where rank 3 is not reached.
  unreached = {3};
  CHECK(ring().whole);
  CHECK(ring().wanted == Ranks{3});
  for (const int rank : {4, 8, 12, 16, 18, 19}) CHECK(graph.note({rank, PeerLife::kEnded}));
  CHECK(ring().wanted == Ranks{3, 5, 17});
  unreached = {3, 5};
  CHECK(ring().wanted == Ranks{3, 5, 6, 7, 17});
  connected = {7};
  unreached = {3, 5, 6, 17, 15, 14};
  CHECK_FALSE(ring().whole);
  for (int rank = 1; rank < 20; ++rank) graph.note({rank, PeerLife::kLeft, 1});
  CHECK(ring().whole);
  CHECK(ring().wanted.empty());
  // Of the last one nobody knows whether it is there.
  WatchGraph last(0, 20);
  for (int rank = 1; rank < 19; ++rank) last.note({rank, PeerLife::kLeft, 1});
  const WatchGraph::Ring left = last.ring([](int) { return false; }, [](int) { return true; });
  CHECK_FALSE(left.whole);
  CHECK(left.wanted == Ranks{19});
}
