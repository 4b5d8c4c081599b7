// What calls over hosts take at least: what must leave and enter a host, counted against schedules' definitions by hand.
#include "comm/host_bounds.h"

#include <catch2/catch.hpp>

using namespace tutti;
using comm::Bound;
using comm::bound_over_hosts;
using comm::Crossing;
using comm::crossing;

namespace {

schedule::Request request(Collective collective, int ranks, int root = 0) { return {collective, ranks, root, 0}; }

planner::BetweenHosts two_hosts(double gbps = 0) {
  planner::BetweenHosts between;
  between.gbps = gbps;
  between.binding = "{ranks 0-6} | {ranks 7-14}: eth0 -> network 10";
  between.hosts = {{"a", 10, 20, 0}, {"b", 40, 40, 0}};
  return between;
}

const std::vector<std::vector<int>> kHosts{{0, 1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12, 13, 14}};
constexpr std::uint64_t kMegabyte = 1'000'000;

}  // namespace

TEST_CASE("what crosses a host's edge follows from the collective", "[host-bounds]") {
  const auto is = [](Crossing found, std::uint64_t leaving, std::uint64_t entering) {
    return found.leaving == leaving && found.entering == entering;
  };
  const std::vector<int>& seven = kHosts[0];
  CHECK(is(crossing(request(Collective::kAllReduce, 15), seven), 1, 1));
  CHECK(is(crossing(request(Collective::kAllGather, 15), seven), 7, 8));
  CHECK(is(crossing(request(Collective::kReduceScatter, 15), seven), 8, 7));
  CHECK(is(crossing(request(Collective::kAllToAll, 15), seven), 56, 56));
  CHECK(is(crossing(request(Collective::kBroadcast, 15, 3), seven), 1, 0));
  CHECK(is(crossing(request(Collective::kBroadcast, 15, 9), seven), 0, 1));
  CHECK(is(crossing(request(Collective::kReduce, 15, 3), seven), 0, 1));
  CHECK(is(crossing(request(Collective::kReduce, 15, 9), seven), 1, 0));
  CHECK(is(crossing(request(Collective::kGather, 15, 3), seven), 0, 8));
  CHECK(is(crossing(request(Collective::kGather, 15, 9), seven), 7, 0));
  CHECK(is(crossing(request(Collective::kScatter, 15, 3), seven), 8, 0));
  CHECK(is(crossing(request(Collective::kScatter, 15, 9), seven), 0, 7));
  CHECK(is(crossing(request(Collective::kAllReduce, 7), seven), 0, 0));
}

TEST_CASE("the partition binds an all-reduce, the host's own links where they allow less", "[host-bounds]") {
  const Bound all_reduce = bound_over_hosts(request(Collective::kAllReduce, 15), kMegabyte, two_hosts(5), kHosts);
  CHECK(all_reduce.links_us == Approx(200));
  CHECK(all_reduce.links == "links of the hosts: {ranks 0-6} | {ranks 7-14}: eth0 -> network 10 allow 5 GB/s");
  CHECK(all_reduce.memory_us == 0);
  // All 15 MB at 30 GB/s.
  CHECK(bound_over_hosts(request(Collective::kAllGather, 15), kMegabyte, two_hosts(20), kHosts).links_us ==
        Approx(750));
  const Bound gather = bound_over_hosts(request(Collective::kAllGather, 15), kMegabyte, two_hosts(1000), kHosts);
  CHECK(gather.links_us == Approx(700));
  CHECK(gather.links == "links of the hosts: a has to send 7000000 B, and has 10 GB/s");
  const Bound all_to_all = bound_over_hosts(request(Collective::kAllToAll, 15), kMegabyte, two_hosts(), kHosts);
  CHECK(all_to_all.links_us == Approx(5600));
  const Bound scatter = bound_over_hosts(request(Collective::kScatter, 15, 8), kMegabyte, two_hosts(), kHosts);
  CHECK(scatter.links == "links of the hosts: a has to receive 7000000 B, and has 20 GB/s");
}

TEST_CASE("the memory of the host that has most to do for what it has binds", "[host-bounds]") {
  planner::BetweenHosts between = two_hosts();
  between.hosts[0].memory_gbps = 7;
  between.hosts[1].memory_gbps = 16;
  const Bound bound = bound_over_hosts(request(Collective::kAllReduce, 15), kMegabyte, between, kHosts);
  CHECK(bound.bytes == 14 * kMegabyte);
  CHECK(bound.memory_us == Approx(2000));
  CHECK(bound.memory_host == "a");
}

TEST_CASE("what is not known binds nothing", "[host-bounds]") {
  const Bound bound = bound_over_hosts(request(Collective::kAllReduce, 15), kMegabyte, {}, kHosts);
  CHECK(bound.us() == 0);
  CHECK(bound.over_hosts);
  CHECK_THAT(comm::describe(bound), Catch::Contains("not known"));
}
