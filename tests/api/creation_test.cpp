// Making communicators: ranks, ids, configurations, devices; what is not supported; queries.
#include "in_process.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

using tutti::test::check_invalid;
using tutti::test::check_refused;
using tutti::test::check_usable;
using tutti::test::Ranks;

namespace {

ncclUniqueId make_id() {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  return id;
}

ncclResult_t init_with(const std::function<void(ncclConfig_t&)>& change, ncclComm_t* comm) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  change(config);
  return ncclCommInitRankConfig(comm, 1, make_id(), 0, &config);
}

}  // namespace

TEST_CASE("ranks and ids are checked") {
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  check_invalid(ncclGetUniqueId(nullptr), {"uniqueId is NULL"});
  check_invalid(ncclCommInitRank(nullptr, 1, id, 0), {"ncclCommInitRank", "comm is NULL"});
  check_invalid(ncclCommInitRank(&comm, 0, id, 0), {"nranks is 0"});
  check_invalid(ncclCommInitRank(&comm, 4, id, 4), {"rank is 4", "0 to 3"});
  check_invalid(ncclCommInitRank(&comm, 4, id, -1), {"rank is -1"});
  ncclUniqueId wrong;
  std::memset(&wrong, 0, sizeof(wrong));
  check_invalid(ncclCommInitRank(&comm, 1, wrong, 0), {"unique id", "empty", "128 bytes"});
  std::memset(&wrong, 0x5a, sizeof(wrong));
  CHECK(ncclCommInitRank(&comm, 1, wrong, 0) == ncclInvalidArgument);
  ncclUniqueId ids[2] = {id, make_id()};
  check_invalid(ncclCommInitRankScalable(&comm, 1, 0, 0, ids, nullptr), {"nId is 0"});
  check_invalid(ncclCommInitRankScalable(&comm, 1, 0, 2, ids, nullptr), {"nId is 2", "nranks (1)"});
  check_invalid(ncclCommInitRankScalable(&comm, 1, 0, 1, nullptr, nullptr), {"commIds is NULL"});
  CHECK(comm == nullptr);
}

TEST_CASE("ncclCommInitAll checks its devices and takes any") {
  ncclComm_t comms[2] = {};
  const int negative[2] = {0, -5};
  const int any[2] = {6, 6};
  check_invalid(ncclCommInitAll(nullptr, 1, nullptr), {"ncclCommInitAll", "comm is NULL"});
  check_invalid(ncclCommInitAll(comms, 0, nullptr), {"ndev is 0"});
  check_invalid(ncclCommInitAll(comms, INT_MAX, nullptr), {"ndev is 2147483647", "1 to 16384"});
  check_invalid(ncclCommInitAll(comms, 2, negative), {"devlist[1] is -5"});
  REQUIRE(ncclCommInitAll(comms, 2, any) == ncclSuccess);
  int device = -1;
  CHECK(ncclCommCuDevice(comms[1], &device) == ncclSuccess);
  CHECK(device == 0);
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
}

TEST_CASE("a communicator that ends in the group that was to make another one of it is named") {
  for (const bool blocking : {true, false}) {
    for (const int color : {0, NCCL_SPLIT_NOCOLOR}) {
      CAPTURE(blocking, color);
      ncclComm_t parent = nullptr, child = nullptr, other = nullptr;
      REQUIRE(init_with([&](ncclConfig_t& c) { c.blocking = blocking ? 1 : 0; }, &parent) % ncclInProgress == 0);
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) REQUIRE(ncclCommGetAsyncError(parent, &state) == ncclSuccess);
      REQUIRE(ncclGroupStart() == ncclSuccess);
      CHECK(ncclCommSplit(parent, color, 0, &child, nullptr) == ncclSuccess);
      CHECK(ncclCommInitRank(&other, 1, make_id(), 0) == ncclSuccess);
      CHECK((blocking ? ncclCommAbort(parent) : ncclCommDestroy(parent)) == ncclSuccess);
      check_invalid(ncclGroupEnd(), {"destroyed or aborted after another one was to be made of it"});
      for (const ncclComm_t comm : {child, other}) {
        if (comm == nullptr) continue;
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
        CHECK(state == ncclInvalidArgument);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
      }
    }
  }
}

TEST_CASE("configurations are checked, and read as far as their version knows") {
  ncclComm_t comm = nullptr;
  const auto refused = [&](const std::function<void(ncclConfig_t&)>& change, const std::vector<std::string>& parts) {
    check_invalid(init_with(change, &comm), parts);
    CHECK(comm == nullptr);
  };
  refused([](ncclConfig_t& c) { c.magic = 7; }, {"not initialised", "NCCL_CONFIG_INITIALIZER"});
  refused([](ncclConfig_t& c) { c.size = 8; }, {"not initialised", "size 8"});
  refused([](ncclConfig_t& c) { c.blocking = 2; }, {"config.blocking is 2", "0 to 1"});
  refused([](ncclConfig_t& c) { c.cgaClusterSize = 9; }, {"config.cgaClusterSize is 9"});
  refused([](ncclConfig_t& c) { c.minCTAs = 0; }, {"config.minCTAs is 0", "at least 1"});
  refused([](ncclConfig_t& c) { c.maxCTAs = -1; }, {"config.maxCTAs is -1"});
  refused([](ncclConfig_t& c) { c.minCTAs = 8, c.maxCTAs = 4; }, {"minCTAs is 8", "maxCTAs 4"});
  refused([](ncclConfig_t& c) { c.splitShare = 3; }, {"config.splitShare is 3"});
  refused([](ncclConfig_t& c) { c.collnetEnable = -1; }, {"config.collnetEnable is -1"});
  refused([](ncclConfig_t& c) { c.CTAPolicy = 64; }, {"config.CTAPolicy is 64"});
  refused([](ncclConfig_t& c) { c.nvlsCTAs = 0; }, {"config.nvlsCTAs is 0"});
  refused([](ncclConfig_t& c) { c.nvlinkCentricSched = 2; }, {"config.nvlinkCentricSched is 2"});

  const auto accepted = [&](const std::function<void(ncclConfig_t&)>& change) {
    const ncclResult_t result = init_with(change, &comm);
    INFO(ncclGetLastError(nullptr));
    REQUIRE(result == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  };
  accepted([](ncclConfig_t&) {});
  accepted([](ncclConfig_t& c) {
    c.commName = "mine", c.netName = "Socket", c.trafficClass = 3, c.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  });
  accepted([](ncclConfig_t& c) { c.trafficClass = -1; });  // none, to NCCL's plug-ins
  // Older than the field: not read, whatever lies there.
  accepted([](ncclConfig_t& c) { c.version = 22707, c.nvlinkCentricSched = 77; });
  accepted([](ncclConfig_t& c) { c.version = 21403, c.minCTAs = -9, c.commName = reinterpret_cast<const char*>(8); });
  accepted([](ncclConfig_t& c) { c.size = 24, c.nvlsCTAs = -9; });
  // Newer than this library: longer, with fields that it does not know.
  struct Newer {
    ncclConfig_t known;
    int more[16];
  } newer = {NCCL_CONFIG_INITIALIZER, {}};
  newer.known.size = sizeof(newer);
  newer.known.version = 23007;
  REQUIRE(ncclCommInitRankConfig(&comm, 1, make_id(), 0, &newer.known) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("tuttiConfig_t is checked") {
  ncclComm_t comm = nullptr;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.reproducible = 5;
  check_invalid(tuttiCommInitRank(&comm, 1, make_id(), 0, &config), {"tuttiCommInitRank", "config.reproducible is 5"});
  config.reproducible = 1;
  config.name = "exact";
  config.magic = 0;
  check_invalid(tuttiCommInitRank(&comm, 1, make_id(), 0, &config), {"TUTTI_CONFIG_INITIALIZER"});
  config.magic = TUTTI_CONFIG_MAGIC;
  REQUIRE(tuttiCommInitRank(&comm, 1, make_id(), 0, &config) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
  REQUIRE(tuttiCommInitRank(&comm, 1, make_id(), 0, nullptr) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("a thread can ask for host memory, and not for CUDA without it") {
  // Where there is a GPU, it is no mistake.
  if (tuttiSetDevice(tuttiDeviceCuda) != ncclSuccess) {
    check_refused(tuttiSetDevice(tuttiDeviceCuda), ncclInvalidUsage,
                  {"tuttiSetDevice", "GPU memory was asked for", "tuttiDeviceHost"});
  }
  check_invalid(tuttiSetDevice(static_cast<tuttiDevice_t>(3)), {"device is 3"});
  CHECK(tuttiSetDevice(tuttiDeviceHost) == ncclSuccess);
  check_usable(Ranks(2));
  CHECK(tuttiSetDevice(tuttiDeviceAuto) == ncclSuccess);
}

TEST_CASE("splits are checked") {
  const Ranks ranks(1);
  ncclComm_t child = nullptr;
  check_invalid(ncclCommSplit(nullptr, 0, 0, &child, nullptr), {"ncclCommSplit", "comm is NULL"});
  check_invalid(ncclCommSplit(ranks[0], 0, 0, nullptr, nullptr), {"newcomm is NULL"});
  check_invalid(ncclCommSplit(ranks[0], -2, 0, &child, nullptr), {"color is -2", "NCCL_SPLIT_NOCOLOR"});
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 0;
  check_invalid(ncclCommSplit(ranks[0], 0, 0, &child, &config), {"NCCL_CONFIG_INITIALIZER"});
  check_usable(ranks);
}

TEST_CASE("a finalized communicator takes no more operations") {
  const Ranks ranks(1);
  float x = 1;
  const auto sum = [&] { return ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, ranks[0], nullptr); };
  REQUIRE(sum() == ncclSuccess);
  REQUIRE(ncclCommFinalize(ranks[0]) == ncclSuccess);
  const std::vector<std::string> words = {"ncclCommFinalize", "ncclCommDestroy"};
  check_refused(sum(), ncclInvalidUsage, {"ncclAllReduce: ", words[0], words[1]});
  REQUIRE(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(&x, 1, ncclFloat, 0, ranks[0], nullptr) == ncclSuccess);
  CHECK(ncclRecv(&x, 1, ncclFloat, 0, ranks[0], nullptr) == ncclSuccess);
  check_refused(ncclGroupEnd(), ncclInvalidUsage, words);
  ncclComm_t child = nullptr;
  check_refused(ncclCommSplit(ranks[0], 0, 0, &child, nullptr), ncclInvalidUsage, words);
  CHECK(child == nullptr);
  int count = 0;
  CHECK(ncclCommCount(ranks[0], &count) == ncclSuccess);
  ncclResult_t state = ncclInternalError;
  CHECK(ncclCommGetAsyncError(ranks[0], &state) == ncclSuccess);
  CHECK(state == ncclSuccess);
  CHECK(ncclCommFinalize(ranks[0]) == ncclSuccess);

  const Ranks two(2);
  int excluded = 1;
  for (int r = 0; r < 2; ++r) REQUIRE(ncclCommFinalize(two[r]) == ncclSuccess);
  check_refused(ncclCommShrink(two[0], &excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidUsage, words);
}

TEST_CASE("who finalizes a communicator that does not block does not wait for its calls") {
  ncclComm_t comms[2] = {};
  cudaStream_t streams[2] = {};
  const ncclUniqueId id = make_id();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < 2; ++r) CHECK(ncclCommInitRankConfig(&comms[r], 2, id, r, &config) % ncclInProgress == 0);
  CHECK(ncclGroupEnd() % ncclInProgress == 0);
  const auto state_of = [](ncclComm_t comm) {
    ncclResult_t state = ncclInternalError;
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    return state;
  };
  const auto settled = [&](ncclComm_t comm) {
    while (state_of(comm) == ncclInProgress) std::this_thread::yield();
    return state_of(comm);
  };
  int ones[2] = {1, 1};
  const auto sum = [&](int r) { return ncclAllReduce(&ones[r], &ones[r], 1, ncclInt, ncclSum, comms[r], streams[r]); };
  for (int r = 0; r < 2; ++r) {
    REQUIRE(settled(comms[r]) == ncclSuccess);
    REQUIRE(tuttiStreamCreate(&streams[r]) == ncclSuccess);
  }
  CHECK(sum(0) == ncclSuccess);
  CHECK(ncclCommFinalize(comms[0]) == ncclInProgress);  // rank 1 is this thread, too
  CHECK(state_of(comms[0]) == ncclInProgress);
  check_refused(sum(0), ncclInvalidUsage, {"ncclCommFinalize was the communicator's last operation"});
  CHECK(sum(1) == ncclSuccess);
  CHECK(ncclCommFinalize(comms[1]) % ncclInProgress == 0);
  for (int r = 0; r < 2; ++r) {
    CHECK(settled(comms[r]) == ncclSuccess);
    CHECK(ones[r] == 2);
    CHECK(ncclCommDestroy(comms[r]) == ncclSuccess);
    CHECK(tuttiStreamDestroy(streams[r]) == ncclSuccess);
  }
}

TEST_CASE("queries need somewhere to put their answer") {
  const Ranks ranks(1);
  check_invalid(ncclGetVersion(nullptr), {"version is NULL"});
  check_invalid(ncclCommCount(ranks[0], nullptr), {"count is NULL"});
  check_invalid(ncclCommUserRank(ranks[0], nullptr), {"rank is NULL"});
  check_invalid(ncclCommCuDevice(ranks[0], nullptr), {"device is NULL"});
  check_invalid(ncclCommGetAsyncError(ranks[0], nullptr), {"asyncError is NULL"});
  CHECK(ncclCommFinalize(nullptr) == ncclSuccess);
  CHECK(ncclCommDestroy(nullptr) == ncclSuccess);
  CHECK(ncclCommAbort(nullptr) == ncclSuccess);
  int version = 0;
  CHECK(ncclGetVersion(&version) == ncclSuccess);
  CHECK(version == 22809);
  CHECK(std::string(tuttiGetVersionString()) == "Tutti " TUTTI_PROJECT_VERSION " (NCCL API 2.28.9)");
}

TEST_CASE("what a group makes is not there before its end, and the refusal says so") {
  ncclComm_t comm = nullptr;
  ncclComm_t child = nullptr;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  REQUIRE(ncclCommInitAll(&comm, 1, nullptr) == ncclSuccess);
  check_refused(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclInvalidUsage,
                {"still initialising", "what this group makes is ready after ncclGroupEnd"});
  check_refused(ncclGroupEnd(), ncclInvalidUsage, {"ncclCommSplit", "still initialising"});
  CHECK(child == nullptr);
  CHECK(ncclCommAbort(comm) == ncclSuccess);
}

TEST_CASE("what a failed group was to make of this process's ranks leaves nothing behind") {
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  const auto threads = entries("/proc/self/task");
  const auto descriptors = entries("/proc/self/fd");
  for (const bool simulates : {false, true}) {
    ncclComm_t comms[2] = {};
    REQUIRE(ncclGroupStart() == ncclSuccess);
    REQUIRE(ncclCommInitAll(comms, 2, nullptr) == ncclSuccess);
    if (simulates) {
      CHECK(ncclGroupSimulateEnd(nullptr) == ncclSuccess);
    } else {
      check_invalid(ncclCommInitAll(comms, 0, nullptr), {"ndev is 0"});
      check_invalid(ncclGroupEnd(), {"ndev is 0"});
    }
    for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
  }
  // Threads of communicators before may end meanwhile.
  const auto is_left = [&] { return entries("/proc/self/task") > threads || entries("/proc/self/fd") > descriptors; };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (is_left() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK_FALSE(is_left());
}

TEST_CASE("a call in the moment in which its communicator becomes ready is made or refused") {
  for (int i = 0; i < 800; ++i) {
    ncclComm_t comm = nullptr;
    REQUIRE(init_with([](ncclConfig_t& c) { c.blocking = 0; }, &comm) % ncclInProgress == 0);
    int in = 5, out = 0;
    ncclResult_t result = ncclInvalidUsage;
    while (result == ncclInvalidUsage) result = ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, comm, nullptr);
    REQUIRE(result == ncclSuccess);
    REQUIRE(out == 5);
    REQUIRE(ncclCommDestroy(comm) == ncclSuccess);
  }
}
