// What ranks agree on: MPI where all of them can use one together, TCP otherwise.
#include "comm/network.h"
#include "comm/network_costs.h"

#include <catch2/catch.hpp>

using Catch::Matchers::Contains;
using tutti::Code;
using tutti::comm::agree_on_mpi;
using tutti::comm::MpiGroup;
using tutti::comm::MpiOffer;

namespace {

std::vector<MpiOffer> offers_of(const std::vector<int>& world_ranks, int world_size) {
  std::vector<MpiOffer> offers;
  for (const int world_rank : world_ranks) {
    MpiOffer& offer = offers.emplace_back();
    offer.job = "job-7";
    offer.world_rank = world_rank;
    offer.world_size = world_size;
  }
  return offers;
}

std::string why_tcp(const std::vector<MpiOffer>& offers) {
  const auto group = agree_on_mpi(offers);
  REQUIRE(group.ok());
  CHECK(group.value().world_ranks.empty());
  return group.value().why_none;
}

}  // namespace

TEST_CASE("ranks of one MPI job use MPI, some of them or all, in any order") {
  for (const std::vector<int>& world_ranks : {std::vector<int>{0, 1, 2}, {4, 0}, {2, 1, 0, 4, 3}}) {
    const auto group = agree_on_mpi(offers_of(world_ranks, 5));
    REQUIRE(group.ok());
    CHECK(group.value().world_ranks == world_ranks);
    CHECK(group.value().why_none.empty());
  }
}

TEST_CASE("one rank that cannot is enough for TCP, and is named") {
  auto offers = offers_of({0, 1, 2}, 3);
  offers[2].why_not = "MPI was initialised with MPI_THREAD_FUNNELED";
  CHECK_THAT(why_tcp(offers), Contains("rank 2: MPI was initialised with MPI_THREAD_FUNNELED"));
}

TEST_CASE("ranks of different jobs, and of one process, use TCP") {
  auto offers = offers_of({0, 1, 2}, 3);
  offers[1].job = "job-8";
  CHECK_THAT(why_tcp(offers), Contains("ranks 0 and 1 are of different MPI jobs"));
  offers[1].job = "job-7";
  offers[1].world_size = 4;
  CHECK_THAT(why_tcp(offers), Contains("ranks 0 and 1 are of different MPI jobs"));
  CHECK_THAT(why_tcp(offers_of({0, 1, 1}, 3)), Contains("ranks 1 and 2 are both MPI rank 1"));
  // What no MPI says.
  CHECK_THAT(why_tcp(offers_of({0, 3}, 3)), Contains("different MPI jobs"));
  CHECK_THAT(why_tcp(offers_of({-1, 0}, 3)), Contains("different MPI jobs"));
  CHECK_THAT(why_tcp(offers_of({0, 0}, -5)), Contains("different MPI jobs"));
}

TEST_CASE("whoever insists on MPI in vain fails all ranks, with rank and reason") {
  auto offers = offers_of({0, 1, 2}, 3);
  offers[1].wish = MpiOffer::Wish::kMpi;
  CHECK(agree_on_mpi(offers).ok());
  offers[2].wish = MpiOffer::Wish::kTcp;
  offers[2].why_not = "TUTTI_NET=tcp";
  const auto group = agree_on_mpi(offers);
  REQUIRE(!group.ok());
  CHECK(group.error().code == Code::kInvalidUsage);
  CHECK_THAT(group.error().message, Contains("rank 1 has TUTTI_NET=mpi") && Contains("rank 2: TUTTI_NET=tcp"));
}

TEST_CASE("GPU memory is MPI's where rank 0 wants that and all ranks' MPI takes it, with the reason") {
  using Wish = MpiOffer::CudaWish;
  using Cuda = MpiOffer::Cuda;
  auto offers = offers_of({0, 1, 2}, 3);
  const auto agreed = [&] { return agree_on_mpi(offers).value().cuda; };
  for (MpiOffer& offer : offers) offer.cuda = Cuda::kCan;
  CHECK(!agreed().is_on);
  CHECK_THAT(agreed().why, Contains("TUTTI_CUDA_MPI=1 uses that"));
  offers[1].cuda_wish = Wish::kForce;
  CHECK(!agreed().is_on);
  offers[0].cuda_wish = Wish::kIfItSaysSo;
  CHECK(agreed().is_on);
  offers[2].cuda = Cuda::kCannot;
  CHECK(!agreed().is_on);
  CHECK_THAT(agreed().why, Contains("the MPI of rank 2 says that it does not take GPU memory"));
  offers[1].cuda = Cuda::kUnknown;
  CHECK_THAT(agreed().why, Contains("the MPI of rank 1 cannot be asked"));
  offers[0].cuda_wish = Wish::kForce;
  CHECK(agreed().is_on);
  offers[1].why_not = "MPI was finalised";
  CHECK(!agreed().is_on);
  CHECK_THAT(agreed().why, Contains("the network is TCP; rank 1: MPI was finalised"));
  offers[0].cuda_wish = Wish::kOff;
  CHECK(agreed().why.empty());
}

TEST_CASE("an offer survives the way, and other bytes are none") {
  MpiOffer offer = offers_of({3}, 8)[0];
  offer.wish = MpiOffer::Wish::kMpi;
  offer.cuda_wish = MpiOffer::CudaWish::kForce;
  offer.cuda = MpiOffer::Cuda::kCannot;
  offer.why_not = std::string(300, 'x');
  const tutti::comm::Bytes bytes = encode(offer);
  CHECK(bytes.size() <= 512);
  const auto same = tutti::comm::decode_offer(bytes);
  REQUIRE(same);
  CHECK(same->wish == offer.wish);
  CHECK(same->cuda_wish == offer.cuda_wish);
  CHECK(same->cuda == offer.cuda);
  CHECK(same->why_not == offer.why_not);
  CHECK(same->job == "job-7");
  CHECK(same->world_rank == 3);
  CHECK(same->world_size == 8);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK(!tutti::comm::decode_offer(std::span(bytes).first(size)));
  auto more = bytes;
  more.push_back(0);
  CHECK(!tutti::comm::decode_offer(more));
  for (const std::size_t field : {0, 1, 2}) {
    auto wrong = bytes;
    wrong[field] = 9;
    CHECK(!tutti::comm::decode_offer(wrong));
  }
}

TEST_CASE("a process without MPI says so") {
  const MpiOffer offer = tutti::comm::own_offer();
  CHECK_THAT(offer.why_not, Contains("no MPI library"));
}

TEST_CASE("all plan by the worst that was measured between hosts, or by nothing of it") {
  using tutti::planner::NetworkCosts;
  const NetworkCosts worst = tutti::comm::worst_of({{10, 4, 3}, {30, 5, 2}, {20, 9, 6}});
  CHECK(worst.message_us == 30);
  CHECK(worst.work_us == 9);
  CHECK(worst.gbps == 2);
  CHECK(tutti::comm::worst_of({{10, 4, 3}, {}, {20, 9, 6}}).gbps == 0);
}
