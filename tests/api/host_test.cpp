// Host streams and events under nccl calls, and the explanation of plans.
#include "in_process.h"

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

using tutti::test::check_invalid;
using tutti::test::Ranks;

namespace {

struct Stream {
  Stream() { REQUIRE(tuttiStreamCreate(&handle) == ncclSuccess); }
  ~Stream() { CHECK(tuttiStreamDestroy(handle) == ncclSuccess); }
  cudaStream_t handle = nullptr;
};

}  // namespace

TEST_CASE("ranks on streams of their own meet without a group") {
  constexpr int kRanks = 3;
  constexpr int kCount = 1001;
  const Ranks ranks(kRanks);
  std::array<Stream, kRanks> streams;
  std::vector<std::vector<int>> data(kRanks);
  for (int call = 1; call <= 5; ++call) {
    for (int r = 0; r < kRanks; ++r) {
      auto& mine = data[static_cast<std::size_t>(r)];
      mine.resize(kCount);
      for (int i = 0; i < kCount; ++i) mine[static_cast<std::size_t>(i)] = call * 100 + r * 7 + i;
      REQUIRE(ncclAllReduce(mine.data(), mine.data(), kCount, ncclInt, ncclSum, ranks[r],
                            streams[static_cast<std::size_t>(r)].handle) == ncclSuccess);
    }
    for (int r = 0; r < kRanks; ++r) {
      REQUIRE(tuttiStreamSynchronize(streams[static_cast<std::size_t>(r)].handle) == ncclSuccess);
      CHECK(tuttiStreamQuery(streams[static_cast<std::size_t>(r)].handle) == ncclSuccess);
      for (int i = 0; i < kCount; ++i)
        REQUIRE(data[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)] == 3 * (call * 100 + i) + 21);
    }
  }
}

TEST_CASE("an event orders one stream after another") {
  const Ranks ranks(2);
  Stream first;
  Stream second;
  Stream third;
  tuttiEvent_t event = nullptr;
  REQUIRE(tuttiEventCreate(&event) == ncclSuccess);
  CHECK(tuttiEventQuery(event) == ncclSuccess);
  CHECK(tuttiEventSynchronize(event) == ncclSuccess);
  int a = 1;
  int b = 2;
  int copy = 0;
  // Rank 0's call cannot end before rank 1's is given; the event after it is not complete until then.
  REQUIRE(ncclAllReduce(&a, &a, 1, ncclInt, ncclSum, ranks[0], first.handle) == ncclSuccess);
  REQUIRE(tuttiEventRecord(event, first.handle) == ncclSuccess);
  REQUIRE(tuttiStreamWaitEvent(third.handle, event) == ncclSuccess);
  CHECK(tuttiEventQuery(event) == ncclInProgress);
  CHECK(tuttiStreamQuery(first.handle) == ncclInProgress);
  const Ranks one(1);
  REQUIRE(ncclAllReduce(&a, &copy, 1, ncclInt, ncclSum, one[0], third.handle) == ncclSuccess);
  REQUIRE(ncclAllReduce(&b, &b, 1, ncclInt, ncclSum, ranks[1], second.handle) == ncclSuccess);
  REQUIRE(tuttiStreamSynchronize(third.handle) == ncclSuccess);
  CHECK(copy == 3);
  CHECK(tuttiEventQuery(event) == ncclSuccess);
  REQUIRE(tuttiStreamSynchronize(second.handle) == ncclSuccess);
  CHECK(b == 3);
  CHECK(tuttiEventDestroy(event) == ncclSuccess);
  CHECK(tuttiEventDestroy(event) == ncclInvalidArgument);
}

TEST_CASE("a stream that is destroyed before its group ends is named, and the communicator goes on") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess);
  cudaStream_t stream = nullptr;
  REQUIRE(tuttiStreamCreate(&stream) == ncclSuccess);
  const float in = 2;
  float out = 0;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  CHECK(ncclAllReduce(&in, &out, 1, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
  REQUIRE(tuttiStreamDestroy(stream) == ncclSuccess);
  check_invalid(ncclGroupEnd(), {"was destroyed after the call was made"});
  CHECK(out == 0);
  CHECK(ncclAllReduce(&in, &out, 1, ncclFloat, ncclSum, comm, nullptr) == ncclSuccess);
  CHECK(out == 2);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("stream and event handles are checked") {
  cudaStream_t stream = nullptr;
  check_invalid(tuttiStreamCreate(nullptr), {"tuttiStreamCreate", "stream is NULL"});
  check_invalid(tuttiEventCreate(nullptr), {"event is NULL"});
  CHECK(tuttiStreamSynchronize(nullptr) == ncclInvalidArgument);
  CHECK(tuttiStreamQuery(reinterpret_cast<cudaStream_t>(&stream)) == ncclInvalidArgument);
  CHECK(tuttiEventQuery(nullptr) == ncclInvalidArgument);
  REQUIRE(tuttiStreamCreate(&stream) == ncclSuccess);
  CHECK(tuttiEventRecord(nullptr, stream) == ncclInvalidArgument);
  CHECK(tuttiStreamWaitEvent(stream, nullptr) == ncclInvalidArgument);
  CHECK(tuttiStreamDestroy(stream) == ncclSuccess);
  check_invalid(tuttiStreamDestroy(stream), {"tuttiStreamDestroy"});
}

TEST_CASE("a plan is explained, in as much room as there is") {
  const Ranks ranks(4);
  std::size_t needed = 0;
  REQUIRE(tuttiExplain(ranks[2], tuttiAllReduce, 1000, ncclFloat, ncclSum, 0, nullptr, 0, &needed) == ncclSuccess);
  REQUIRE(needed > 20);
  std::vector<char> text(needed, 'x');
  REQUIRE(tuttiExplain(ranks[2], tuttiAllReduce, 1000, ncclFloat, ncclSum, 0, text.data(), text.size(), nullptr) ==
          ncclSuccess);
  CHECK(std::strlen(text.data()) == needed - 1);
  std::vector<char> part(10, 'x');
  REQUIRE(tuttiExplain(ranks[2], tuttiAllReduce, 1000, ncclFloat, ncclSum, 0, part.data(), part.size(), &needed) ==
          ncclSuccess);
  CHECK(std::string(part.data()) == std::string(text.data(), 9));
  check_invalid(
      tuttiExplain(ranks[0], static_cast<tuttiCollective_t>(10), 1, ncclFloat, ncclSum, 0, nullptr, 0, nullptr),
      {"collective is 10"});
  check_invalid(tuttiExplain(ranks[0], tuttiBroadcast, 1, ncclFloat, ncclSum, 4, nullptr, 0, nullptr), {"root is 4"});
  check_invalid(tuttiExplain(ranks[0], tuttiAllReduce, 1, ncclFloat, ncclSum, 0, nullptr, 5, nullptr),
                {"text is NULL", "size is 5"});
}
