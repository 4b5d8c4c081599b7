// Routes of announce lines between hosts: every line comes to every host once, from one that has it; and which pattern is taken.
#include "comm/line_routes.h"
#include "comm/carriers.h"
#include "comm/far_inputs.h"
#include "comm/mesh.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

using tutti::comm::choose_pattern;
using tutti::comm::LineRoutes;
using Pattern = LineRoutes::Pattern;

namespace {

constexpr int kHostsMax = 33;

/// Runs the rounds; by host the hosts whose lines it has then.
std::vector<std::set<int>> run(int hosts, const LineRoutes& routes) {
  std::vector<std::set<int>> has(static_cast<std::size_t>(hosts));
  for (int host = 0; host < hosts; ++host) has[static_cast<std::size_t>(host)] = {host};
  for (int round = 0; round < routes.rounds(); ++round) {
    const std::vector<std::set<int>> before = has;
    for (int host = 0; host < hosts; ++host) {
      const int to = routes.to(host, round);
      INFO("round " << round << ": " << host << " to " << to);
      const int from = routes.from(host, round);
      if (from != LineRoutes::kNone) REQUIRE(routes.to(from, round) == host);
      if (to == LineRoutes::kNone) continue;
      REQUIRE(to != host);
      REQUIRE(routes.from(to, round) == host);
      for (int of = 0; of < hosts; ++of) {
        if (of == to || routes.round_of(to, of) != round) continue;
        REQUIRE(before[static_cast<std::size_t>(host)].contains(of));
        REQUIRE(has[static_cast<std::size_t>(to)].insert(of).second);
      }
    }
  }
  return has;
}

/// Back from `host` to the one whose lines come to it.
std::vector<int> way(const LineRoutes& routes, int host, int of) {
  std::vector<int> hosts{host};
  while (hosts.back() != of) hosts.push_back(routes.from(hosts.back(), routes.round_of(hosts.back(), of)));
  return hosts;
}

/// With so many ranks on each host, or as many as the list says, whose last number goes on.
std::vector<tutti::comm::Peer> peers_of(int hosts, const std::vector<int>& ranks_per_host) {
  std::vector<tutti::comm::Peer> peers;
  for (int host = 0; host < hosts; ++host) {
    const auto place = std::min(static_cast<std::size_t>(host), ranks_per_host.size() - 1);
    for (int r = 0; r < ranks_per_host[place]; ++r) {
      tutti::comm::Peer& peer = peers.emplace_back();
      peer.rank = static_cast<int>(peers.size()) - 1;
      peer.host = "host-" + std::to_string(host);
    }
  }
  return peers;
}

Pattern first_pattern(int hosts, const std::vector<int>& ranks_per_host) {
  const auto of_ranks = tutti::comm::hosts_of(peers_of(hosts, ranks_per_host));
  return tutti::comm::first_routes(tutti::comm::ranks_of_hosts(of_ranks)).pattern();
}

}  // namespace

TEST_CASE("every host's lines come to every other host once, from one that has them") {
  for (const Pattern pattern : {Pattern::kDirect, Pattern::kDoubling}) {
    for (int hosts = 2; hosts <= kHostsMax; ++hosts) {
      INFO(hosts << " hosts, " << (pattern == Pattern::kDirect ? "direct" : "doubling"));
      const LineRoutes routes(hosts, pattern);
      for (const std::set<int>& of_host : run(hosts, routes)) CHECK(static_cast<int>(of_host.size()) == hosts);
    }
  }
}

TEST_CASE("by a hub lines come to every other host once, in two messages for each but the hub") {
  for (int hosts = 2; hosts <= kHostsMax; ++hosts) {
    for (int hub = 0; hub < hosts; hub += hosts / 2) {
      INFO(hosts << " hosts, by " << hub);
      const LineRoutes routes(hosts, Pattern::kStar, hub);
      for (const std::set<int>& of_host : run(hosts, routes)) CHECK(static_cast<int>(of_host.size()) == hosts);
      int messages = 0;
      for (int round = 0; round < routes.rounds(); ++round)
        for (int host = 0; host < hosts; ++host) {
          const int to = routes.to(host, round);
          messages += to != LineRoutes::kNone ? 1 : 0;
          CHECK((to == LineRoutes::kNone || host == hub || to == hub));
        }
      CHECK(messages == 2 * (hosts - 1));
    }
  }
}

TEST_CASE("lines of doubling hosts take a message for each doubling, others one for each other host") {
  for (const auto& [hosts, rounds] : {std::pair{2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}, {16, 4}}) {
    CHECK(LineRoutes(hosts, Pattern::kDoubling).rounds() == rounds);
    CHECK(LineRoutes(hosts, Pattern::kDirect).rounds() == hosts - 1);
  }
}

TEST_CASE("a host on the way of others' lines has its own go by the rest of that way") {
  // So who waits for a line knows which of those on its way has not come (Bridge::whom_it_waits_for).
  for (const Pattern pattern : {Pattern::kDirect, Pattern::kDoubling, Pattern::kStar}) {
    for (int hosts = 2; hosts <= kHostsMax; ++hosts) {
      const LineRoutes routes(hosts, pattern);
      for (int host = 0; host < hosts; ++host) {
        for (int of = 0; of < hosts; ++of) {
          const std::vector<int> all = way(routes, host, of);
          for (auto between = all.begin(); between != all.end(); ++between)
            REQUIRE(way(routes, host, *between) == std::vector<int>(all.begin(), between + 1));
        }
      }
    }
  }
}

TEST_CASE("many hosts double from the start, and few that have many ranks to carry do not") {
  for (const int hosts : {2, 9, 16}) CHECK(first_pattern(hosts, {1}) == Pattern::kDirect);  // all connect with all
  for (const int hosts : {17, 24, 64, 1000}) CHECK(first_pattern(hosts, {1}) == Pattern::kDoubling);
  for (const int hosts : {2, 3, 8, 32, 112}) CHECK(first_pattern(hosts, {8}) == Pattern::kDirect);
  for (const int hosts : {120, 128, 2048}) CHECK(first_pattern(hosts, {8}) == Pattern::kDoubling);
  CHECK(first_pattern(13, {2}) == Pattern::kDirect);
  CHECK(first_pattern(13, {1, 2}) == Pattern::kDoubling);  // the first host's rank would carry to twelve
}

TEST_CASE("a rank's connections from the start grow with the logarithm of the number of hosts") {
  for (const auto& [hosts, per_host] : {std::pair<int, std::vector<int>>{64, {1}},
                                        {100, {1}},
                                        {1000, {1}},
                                        {13, {1, 2}},
                                        {64, {8}},
                                        {128, {8}},
                                        {100, {3, 1, 8}}}) {
    INFO(hosts << " hosts of " << per_host.front() << " ranks and more");
    const std::vector<tutti::comm::Peer> peers = peers_of(hosts, per_host);
    const int doublings = LineRoutes(hosts, Pattern::kDoubling).rounds();
    std::vector<std::vector<tutti::comm::Ties>> all;
    for (int rank = 0; rank < static_cast<int>(peers.size()); ++rank) {
      all.push_back(tutti::comm::ties_of(rank, peers, false));
      // Two more for the network's measurement.
      CHECK(std::ranges::count_if(all.back(), &tutti::comm::Ties::data) <= 2 * doublings + 2);
    }
    bool alike = true;
    for (std::size_t a = 0; a < all.size(); ++a)
      for (std::size_t b = 0; b < all.size(); ++b) alike = alike && all[a][b].data == all[b][a].data;
    CHECK(alike);
  }
}

TEST_CASE("lines are passed on where messages cost more than ways through the network") {
  CHECK(choose_pattern(2, {15, 8, 1}, 1, true) == Pattern::kDirect);
  CHECK(choose_pattern(3, {0.5, 8, 1}, 1, true) == Pattern::kDirect);
  CHECK(choose_pattern(4, {5, 6, 1}, 1, true) == Pattern::kDoubling);
  CHECK(choose_pattern(4, {50, 6, 1}, 1, true) == Pattern::kDirect);
  CHECK(choose_pattern(16, {50, 6, 1}, 1, true) == Pattern::kDirect);
  CHECK(choose_pattern(16, {30, 6, 1}, 1, true) == Pattern::kDoubling);
}

TEST_CASE("lines go by a hub where hosts share cores, and that takes fewer messages") {
  for (const int sharers : {1, 2}) CHECK(choose_pattern(2, {0.5, 3, 1}, sharers, true) == Pattern::kDirect);
  CHECK(choose_pattern(3, {0.5, 3, 1}, 1, true) == Pattern::kDirect);
  CHECK(choose_pattern(3, {0.5, 3, 1}, 2, true) == Pattern::kStar);
  CHECK(choose_pattern(3, {0.5, 3, 1}, 2, false) == Pattern::kDirect);
  CHECK(choose_pattern(3, {7, 2.2, 1}, 2, true) == Pattern::kStar);
  CHECK(choose_pattern(3, {50, 3, 1}, 2, true) == Pattern::kDirect);
  CHECK(choose_pattern(4, {0.5, 3, 1}, 2, true) == Pattern::kDoubling);
  CHECK(choose_pattern(5, {0.5, 3, 1}, 3, true) == Pattern::kStar);
  CHECK(choose_pattern(8, {0.5, 3, 1}, 4, true) == Pattern::kStar);
}

TEST_CASE("what comes at last goes to the call's own place, once it has come") {
  using tutti::comm::FarInputs;
  FarInputs inputs;
  constexpr std::size_t kBytes = 100;
  constexpr std::uint32_t kFirst = FarInputs::kSumOfAll, kLast = kFirst + FarInputs::kPartsMax - 1;
  std::byte first[kBytes];
  std::byte last[kBytes];
  inputs.expect(7, kFirst, kBytes, first);
  inputs.expect(7, kLast, kBytes, last);
  CHECK(inputs.of(7, kFirst, kBytes) == nullptr);
  CHECK(inputs.place_for(7, 1, kBytes, 7) != nullptr);
  CHECK(inputs.place_for(7, kFirst, kBytes, 7) == first);
  CHECK(inputs.place_for(7, kLast, kBytes, 7) == last);
  CHECK(inputs.place_for(7, kLast, kBytes + 1, 7) == nullptr);
  inputs.note_arrived(7, 1);
  inputs.note_arrived(7, kLast);
  CHECK(inputs.of(7, kFirst, kBytes) == nullptr);
  CHECK(inputs.of(7, kLast, kBytes) == last);
  inputs.note_arrived(7, kFirst);
  CHECK(inputs.of(7, kFirst, kBytes) == first);
  // The next call's, of which none is expected, and what there is not.
  for (const std::uint32_t part : {kFirst, kLast}) CHECK(inputs.place_for(8, part, kBytes, 8) == nullptr);
  CHECK(inputs.place_for(7, kLast + 1, kBytes, 7) == nullptr);
}

TEST_CASE("inputs that were read give their place to the next ones, inputs ahead of a call another") {
  using tutti::comm::FarInputs;
  FarInputs inputs;
  constexpr std::size_t kBytes = 100;
  std::byte* const first = inputs.place_for(1, 3, kBytes, 1);
  REQUIRE(first != nullptr);
  CHECK(inputs.of(1, 3, kBytes) == nullptr);
  inputs.note_arrived(1, 3);
  CHECK(inputs.of(1, 3, kBytes) == first);
  CHECK(inputs.of(1, 3, kBytes + 1) == nullptr);
  // This rank is still in call 1.
  std::byte* const ahead = inputs.place_for(2, 3, kBytes, 1);
  REQUIRE(ahead != nullptr);
  CHECK(ahead != first);
  CHECK(inputs.of(1, 3, kBytes) == first);
  inputs.note_arrived(2, 3);
  // A third one is sent by nobody before call 2 has begun here.
  CHECK(inputs.place_for(3, 3, kBytes, 1) == nullptr);
  CHECK(inputs.place_for(3, 3, kBytes, 2) == first);
  CHECK(inputs.of(2, 3, kBytes) == ahead);
  // Nobody is ahead: the same place again and again, across the end of the numbers.
  const std::uint32_t last = ~std::uint32_t{0};
  std::byte* const before = inputs.place_for(last, 4, kBytes, last);
  CHECK(inputs.place_for(0, 4, kBytes, 0) == before);
  CHECK(inputs.place_for(5, 3, FarInputs::kBytesMax + 1, 5) == nullptr);
  CHECK(inputs.place_for(5, FarInputs::kPartsMax, kBytes, 5) == nullptr);
  // A longer one has room, too.
  for (std::uint32_t number = 5; const std::size_t bytes : {std::size_t{1}, FarInputs::kBytesMax, kBytes}) {
    std::byte* const place = inputs.place_for(number, 5, bytes, number);
    REQUIRE(place != nullptr);
    std::fill_n(place, bytes, std::byte{2});  // AddressSanitizer would see the end of the one before
    inputs.note_arrived(number, 5);
    CHECK(inputs.of(number, 5, bytes) == place);
    ++number;
  }
}

TEST_CASE("longer sums travel with the lines where ranks' threads are the network") {
  using tutti::comm::far_limits;
  using tutti::comm::FarInputs;
  const tutti::planner::NetworkCosts network{.message_us = 5, .work_us = 4, .gbps = 4};
  for (const bool one_system : {false, true}) {
    const std::size_t longest = one_system ? FarInputs::kBytesMax : FarInputs::kOverNetworkMax;
    CHECK(far_limits(2, Pattern::kDirect, network, true, one_system).sums == longest);
    CHECK(far_limits(2, Pattern::kDirect, network, true, one_system).gathers == FarInputs::kOverNetworkMax);
    CHECK(far_limits(4, Pattern::kStar, network, true, one_system).sums <= longest);
    CHECK(far_limits(3, Pattern::kStar, network, true, one_system).passed_on == (one_system ? 48 << 10 : 0));
    CHECK(far_limits(5, Pattern::kStar, network, true, one_system).passed_on == (one_system ? 8 << 10 : 0));
    CHECK(far_limits(3, Pattern::kDirect, network, true, one_system).passed_on == 0);
    CHECK(far_limits(4, Pattern::kDoubling, network, true, one_system).sums <= FarInputs::kOverNetworkMax);
    CHECK(far_limits(4, Pattern::kDoubling, network, false, one_system).sums == 0);
  }
}
