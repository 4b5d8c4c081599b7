// Wrong arguments of collectives, send and receive: the code, and a message that names what, which value, and what to
// do.
#include "in_process.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

using tutti::test::check_invalid;
using tutti::test::check_usable;
using tutti::test::Ranks;

namespace {

struct Buffers {
  std::array<float, 256> send{};
  std::array<float, 256> receive{};
};

}  // namespace

TEST_CASE("communicator handles are checked") {
  Buffers b;
  const auto reduce = [&](ncclComm_t comm) {
    return ncclAllReduce(b.send.data(), b.receive.data(), 4, ncclFloat, ncclSum, comm, nullptr);
  };
  check_invalid(reduce(nullptr), {"ncclAllReduce", "comm is NULL"});
  check_invalid(reduce(reinterpret_cast<ncclComm_t>(b.send.data())), {"no communicator of this process"});
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitAll(&comm, 1, nullptr) == ncclSuccess);
  CHECK(reduce(comm) == ncclSuccess);
  REQUIRE(ncclCommDestroy(comm) == ncclSuccess);
  check_invalid(reduce(comm), {"destroyed or aborted already"});
  check_invalid(ncclCommDestroy(comm), {"ncclCommDestroy", "destroyed or aborted already"});
  int count = 0;
  check_invalid(ncclCommCount(comm, &count), {"ncclCommCount"});
}

TEST_CASE("data types, operations, roots and peers are checked") {
  const Ranks ranks(2);
  Buffers b;
  const auto send = b.send.data();
  const auto receive = b.receive.data();
  check_invalid(ncclAllReduce(send, receive, 4, static_cast<ncclDataType_t>(12), ncclSum, ranks[0], nullptr),
                {"datatype is 12", "ncclFloat8e5m2 (11)"});
  check_invalid(ncclAllGather(send, receive, 4, static_cast<ncclDataType_t>(-1), ranks[0], nullptr),
                {"ncclAllGather", "datatype is -1"});
  check_invalid(ncclAllReduce(send, receive, 4, ncclFloat, static_cast<ncclRedOp_t>(-1), ranks[0], nullptr),
                {"op is -1"});
  check_invalid(ncclReduceScatter(send, receive, 4, ncclFloat, static_cast<ncclRedOp_t>(9), ranks[0], nullptr),
                {"op 9", "ncclRedOpCreatePreMulSum"});
  check_invalid(ncclReduce(send, receive, 4, ncclFloat, ncclSum, 2, ranks[0], nullptr), {"root is 2", "0 to 1"});
  check_invalid(ncclBroadcast(send, receive, 4, ncclFloat, -1, ranks[1], nullptr), {"ncclBroadcast", "root is -1"});
  check_invalid(ncclBcast(send, 4, ncclFloat, 5, ranks[1], nullptr), {"ncclBcast", "root is 5"});
  check_invalid(ncclGather(send, receive, 4, ncclFloat, 2, ranks[0], nullptr), {"root is 2"});
  check_invalid(ncclScatter(send, receive, 4, ncclFloat, 2, ranks[0], nullptr), {"root is 2"});
  check_invalid(ncclSend(send, 4, ncclFloat, 2, ranks[0], nullptr), {"peer is 2", "0 to 1"});
  check_invalid(ncclRecv(receive, 4, ncclFloat, -3, ranks[0], nullptr), {"peer is -3"});
  check_usable(ranks);
}

TEST_CASE("NULL buffers are for count 0 and for ranks that need none") {
  const Ranks ranks(1);
  float x = 3;
  check_invalid(ncclAllReduce(nullptr, &x, 1, ncclFloat, ncclSum, ranks[0], nullptr),
                {"sendbuff is NULL", "count is 1"});
  check_invalid(ncclAllReduce(&x, nullptr, 1, ncclFloat, ncclSum, ranks[0], nullptr), {"recvbuff is NULL"});
  check_invalid(ncclSend(nullptr, 1, ncclFloat, 0, ranks[0], nullptr), {"sendbuff is NULL"});
  check_invalid(ncclRecv(nullptr, 1, ncclFloat, 0, ranks[0], nullptr), {"recvbuff is NULL"});
  check_invalid(ncclReduce(&x, nullptr, 1, ncclFloat, ncclSum, 0, ranks[0], nullptr),
                {"recvbuff is NULL", "only the root needs"});
  check_invalid(ncclBcast(nullptr, 7, ncclFloat, 0, ranks[0], nullptr),
                {"ncclBcast: buff is NULL, but count is 7; NULL is for count 0"});
  check_invalid(ncclAllGather(nullptr, &x, 1, ncclFloat, ranks[0], nullptr), {"sendcount is 1", "for sendcount 0"});
  check_invalid(ncclReduceScatter(&x, &x, SIZE_MAX, ncclFloat, ncclSum, ranks[0], nullptr), {"recvcount is 1844"});
  CHECK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, ranks[0], nullptr) == ncclSuccess);
  CHECK(ncclAlltoAll(nullptr, nullptr, 0, ncclFloat, ranks[0], nullptr) == ncclSuccess);

  const Ranks two(2);
  std::array<float, 2> values{1, 2};
  float total = -1;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  CHECK(ncclReduce(&values[0], &total, 1, ncclFloat, ncclSum, 0, two[0], nullptr) == ncclSuccess);
  CHECK(ncclReduce(&values[1], nullptr, 1, ncclFloat, ncclSum, 0, two[1], nullptr) == ncclSuccess);
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  CHECK(total == 3);
}

TEST_CASE("counts that overflow are refused") {
  const Ranks ranks(2);
  Buffers b;
  check_invalid(ncclAllReduce(b.send.data(), b.receive.data(), SIZE_MAX, ncclInt8, ncclSum, ranks[0], nullptr),
                {"count is 18446744073709551615", "largest count: 9223372036854775807"});
  check_invalid(ncclAllReduce(b.send.data(), b.receive.data(), SIZE_MAX / 8, ncclDouble, ncclSum, ranks[0], nullptr),
                {"count is", "float64"});
  check_invalid(ncclAllGather(b.send.data(), b.receive.data(), SIZE_MAX / 8, ncclFloat, ranks[0], nullptr),
                {"2 block(s)"});
  check_usable(ranks);
}

TEST_CASE("buffers overlap only exactly in place") {
  const Ranks ranks(2);
  std::array<float, 64> x{};
  float* const p = x.data();
  check_invalid(ncclAllReduce(p, p + 3, 8, ncclFloat, ncclSum, ranks[0], nullptr),
                {"overlap by 20 bytes", "recvbuff == sendbuff"});
  check_invalid(ncclAllReduce(p + 3, p, 8, ncclFloat, ncclSum, ranks[0], nullptr), {"overlap by 20 bytes"});
  check_invalid(ncclAllGather(p, p, 8, ncclFloat, ranks[1], nullptr),
                {"sendbuff == recvbuff + 32 bytes", "rank 1's block"});
  check_invalid(ncclReduceScatter(p, p, 8, ncclFloat, ncclSum, ranks[1], nullptr), {"recvbuff == sendbuff + 32 bytes"});
  check_invalid(ncclAlltoAll(p, p + 1, 8, ncclFloat, ranks[0], nullptr), {"recvbuff == sendbuff"});
  check_invalid(ncclGather(p + 1, p, 8, ncclFloat, 0, ranks[0], nullptr), {"overlap by 32 bytes", "rank 0's block"});
  check_invalid(ncclScatter(p, p + 9, 8, ncclFloat, 0, ranks[0], nullptr), {"overlap by 28 bytes"});
  check_invalid(ncclBroadcast(p, p + 1, 8, ncclFloat, 0, ranks[0], nullptr), {"overlap by 28 bytes"});

  SECTION("neighbours and exact places are fine") {
    std::array<float, 32> y{};
    float* const q = y.data();
    REQUIRE(ncclGroupStart() == ncclSuccess);
    CHECK(ncclAllReduce(p, p + 8, 8, ncclFloat, ncclSum, ranks[0], nullptr) == ncclSuccess);
    CHECK(ncclAllReduce(q, q, 8, ncclFloat, ncclSum, ranks[1], nullptr) == ncclSuccess);
    CHECK(ncclAllGather(p + 16, p + 16, 8, ncclFloat, ranks[0], nullptr) == ncclSuccess);
    CHECK(ncclAllGather(q + 16, q + 8, 8, ncclFloat, ranks[1], nullptr) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
  }
  SECTION("a buffer that this rank does not use may lie anywhere") {
    std::array<float, 32> y{};
    REQUIRE(ncclGroupStart() == ncclSuccess);
    CHECK(ncclBroadcast(p, p, 8, ncclFloat, 0, ranks[0], nullptr) == ncclSuccess);
    CHECK(ncclBroadcast(y.data() + 1, y.data(), 8, ncclFloat, 0, ranks[1], nullptr) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
  }
  check_usable(ranks);
}

TEST_CASE("streams are NULL or host streams that live") {
  const Ranks ranks(1);
  float x = 1;
  const auto reduce = [&](cudaStream_t stream) {
    return ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, ranks[0], stream);
  };
  check_invalid(reduce(reinterpret_cast<cudaStream_t>(&x)), {"is not a host stream", "tuttiStreamCreate"});
  check_invalid(reduce(reinterpret_cast<cudaStream_t>(std::uintptr_t{2})), {"is not a host stream"});
  cudaStream_t stream = nullptr;
  REQUIRE(tuttiStreamCreate(&stream) == ncclSuccess);
  CHECK(reduce(stream) == ncclSuccess);
  CHECK(tuttiStreamDestroy(stream) == ncclSuccess);
  check_invalid(reduce(stream), {"is not a host stream"});
}

TEST_CASE("PreMulSum operations belong to their communicator and type") {
  const Ranks ranks(1);
  ncclRedOp_t op = ncclSum;
  float scale = 2;
  float x = 3;
  double y = 3;
  check_invalid(ncclRedOpCreatePreMulSum(nullptr, &scale, ncclFloat, ncclScalarHostImmediate, ranks[0]),
                {"op is NULL"});
  check_invalid(ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat, ncclScalarHostImmediate, ranks[0]),
                {"scalar is NULL"});
  check_invalid(ncclRedOpCreatePreMulSum(&op, &scale, static_cast<ncclDataType_t>(40), ncclScalarDevice, ranks[0]),
                {"datatype is 40"});
  check_invalid(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, static_cast<ncclScalarResidence_t>(2), ranks[0]),
                {"residence is 2"});
  check_invalid(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, ncclScalarDevice, nullptr), {"comm is NULL"});
  REQUIRE(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, ncclScalarHostImmediate, ranks[0]) == ncclSuccess);
  CHECK(op >= ncclNumOps);
  CHECK(ncclAllReduce(&x, &x, 1, ncclFloat, op, ranks[0], nullptr) == ncclSuccess);
  CHECK(x == 6);
  check_invalid(ncclAllReduce(&y, &y, 1, ncclDouble, op, ranks[0], nullptr), {"was made for float32", "float64"});
  const Ranks others(1);
  check_invalid(ncclAllReduce(&x, &x, 1, ncclFloat, op, others[0], nullptr), {"none of this communicator's"});
  check_invalid(ncclRedOpDestroy(op, others[0]), {"none of this communicator's"});
  check_invalid(ncclRedOpDestroy(ncclMax, ranks[0]), {"op is 2"});
  CHECK(ncclRedOpDestroy(op, ranks[0]) == ncclSuccess);
  check_invalid(ncclRedOpDestroy(op, ranks[0]), {"destroyed already"});
  check_invalid(ncclAllReduce(&x, &x, 1, ncclFloat, op, ranks[0], nullptr), {"destroyed already"});
}

TEST_CASE("operations that were destroyed leave their places to others") {
  const Ranks ranks(1);
  const auto made = [&](float scale) {
    ncclRedOp_t op = ncclSum;
    REQUIRE(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, ncclScalarHostImmediate, ranks[0]) == ncclSuccess);
    return op;
  };
  const auto times = [&](ncclRedOp_t op) {
    float x = 3;
    CHECK(ncclAllReduce(&x, &x, 1, ncclFloat, op, ranks[0], nullptr) == ncclSuccess);
    return x / 3;
  };
  const ncclRedOp_t kept = made(2);
  std::set<int> numbers;
  for (int i = 0; i < 1000; ++i) {
    const ncclRedOp_t one = made(4);
    const ncclRedOp_t other = made(8);
    numbers.insert({one, other});
    if (i % 100 == 0) CHECK((times(one) == 4 && times(other) == 8 && times(kept) == 2));
    REQUIRE(ncclRedOpDestroy(one, ranks[0]) == ncclSuccess);
    REQUIRE(ncclRedOpDestroy(other, ranks[0]) == ncclSuccess);
  }
  CHECK(times(kept) == 2);
  CHECK(numbers.size() == 2);
}

TEST_CASE("an operation of another communicator is refused where both have made some") {
  float x = 3;
  const auto made = [&](const Ranks& ranks, float scale) {
    ncclRedOp_t op = ncclSum;
    REQUIRE(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, ncclScalarHostImmediate, ranks[0]) == ncclSuccess);
    return op;
  };
  const auto sum = [&](ncclRedOp_t op, const Ranks& ranks) {
    return ncclAllReduce(&x, &x, 1, ncclFloat, op, ranks[0], nullptr);
  };
  const auto first = std::make_unique<Ranks>(1);
  const Ranks second(1);
  const ncclRedOp_t op = made(*first, 2);
  const ncclRedOp_t other = made(second, 4);
  check_invalid(sum(op, second), {"none of this communicator's"});
  check_invalid(sum(other, *first), {"none of this communicator's"});
  check_invalid(ncclRedOpDestroy(op, second[0]), {"none of this communicator's"});
  CHECK(sum(other, second) == ncclSuccess);
  CHECK(x == 12);
  std::size_t needed = 0;
  CHECK(tuttiExplain(second[0], tuttiAllReduce, 1, ncclFloat, other, 0, nullptr, 0, &needed) == ncclSuccess);
  // Nor is it a later communicator's.
  REQUIRE(ncclCommDestroy((*first)[0]) == ncclSuccess);
  const Ranks later(1);
  made(later, 8);
  check_invalid(sum(op, later), {"none of this communicator's"});
}

TEST_CASE("a wrong call in a group fails the group, and nothing of it runs") {
  const Ranks ranks(2);
  std::array<int, 2> x{1, 1};
  REQUIRE(ncclGroupStart() == ncclSuccess);
  CHECK(ncclAllReduce(&x[0], &x[0], 1, ncclInt, ncclSum, ranks[0], nullptr) == ncclSuccess);
  CHECK(ncclAllReduce(&x[1], &x[1], 1, static_cast<ncclDataType_t>(99), ncclSum, ranks[1], nullptr) ==
        ncclInvalidArgument);
  check_invalid(ncclGroupEnd(), {"ncclAllReduce", "datatype is 99"});
  CHECK_THAT(ncclGetLastError(ranks[0]), Catch::Contains("ncclGroupEnd: ncclAllReduce: datatype is 99"));
  CHECK(x == std::array<int, 2>{1, 1});
  check_usable(ranks);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  CHECK(ncclGetLastError(nullptr) == std::string("ncclGroupEnd without ncclGroupStart"));
}

TEST_CASE("the reason is kept for the communicator and for the thread") {
  const Ranks ranks(2);
  float x = 0;
  CHECK(ncclBroadcast(&x, &x, 1, ncclFloat, 7, ranks[1], nullptr) == ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(ranks[1]), Catch::Contains("root is 7"));
  CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains("root is 7"));
  CHECK_THAT(ncclGetLastError(ranks[0]), !Catch::Contains("root is 7"));
  // As two arguments of one call.
  const char* const first = ncclGetLastError(ranks[1]);
  const char* const second = ncclGetLastError(ranks[0]);
  CHECK_THAT(first, Catch::Contains("root is 7"));
  CHECK_THAT(second, !Catch::Contains("root is 7"));
}

TEST_CASE("group simulation needs an initialised struct, and closes the group in any case") {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  info.magic = 1;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  check_invalid(ncclGroupSimulateEnd(&info), {"NCCL_SIM_INFO_INITIALIZER"});
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  info = NCCL_SIM_INFO_INITIALIZER;
  info.size = 8;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  check_invalid(ncclGroupSimulateEnd(&info), {"size 8"});
  info = NCCL_SIM_INFO_INITIALIZER;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  CHECK(ncclGroupSimulateEnd(&info) == ncclSuccess);
  CHECK(info.estimatedTime >= 0);
}

// Of later versions; no header of ours declares them.
extern "C" {
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* grown,
                           ncclConfig_t* config);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, std::size_t offset, int peer, void** pointer);
}

TEST_CASE("functions of later versions refuse, and leave the communicator as it is") {
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitAll(&comm, 1, nullptr) == ncclSuccess);
  ncclComm_t grown = nullptr;
  void* pointer = nullptr;
  const auto refused = [](ncclResult_t code, const char* function, const char* version) {
    CHECK(code == ncclInvalidUsage);
    const std::string reason = ncclGetLastError(nullptr);
    INFO(reason);
    CHECK(reason.find(std::string(function) + " came with NCCL " + version) == 0);
    CHECK(reason.find("2.28.9") != std::string::npos);
  };
  refused(ncclCommResume(comm), "ncclCommResume", "2.30");
  refused(pncclCommGrow(comm, 2, nullptr, 1, &grown, nullptr), "ncclCommGrow", "2.29");
  refused(ncclGetPeerDevicePointer(nullptr, 0, 0, &pointer), "ncclGetPeerDevicePointer", "2.29");
  CHECK(grown == nullptr);
  float value = 3;
  CHECK(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr) == ncclSuccess);
  REQUIRE(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("a configuration of a later version is read as far as it is known") {
  struct {
    ncclConfig_t known;
    int later[6];
  } config = {NCCL_CONFIG_INITIALIZER, {-1, -1, -1, -1, -1, -1}};
  config.known.size = sizeof(config);
  config.known.version = NCCL_VERSION(2, 30, 7);
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRankConfig(&comm, 1, id, 0, &config.known) == ncclSuccess);
  config.known.blocking = 7;
  check_invalid(ncclCommInitRankConfig(&comm, 1, id, 0, &config.known), {"config.blocking is 7"});
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}
