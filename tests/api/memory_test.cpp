// Shared memory, registered buffers and windows through the public API.
#include "in_process.h"

#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

using tutti::test::check_invalid;
using tutti::test::check_refused;
using tutti::test::Ranks;

TEST_CASE("allocations are zero, aligned, and freed once") {
  void* p = nullptr;
  check_invalid(ncclMemAlloc(nullptr, 8), {"ncclMemAlloc", "ptr is NULL"});
  REQUIRE(ncclMemAlloc(&p, 100000) == ncclSuccess);
  CHECK(reinterpret_cast<std::uintptr_t>(p) % NCCL_WIN_REQUIRED_ALIGNMENT == 0);
  for (int i = 0; i < 100000; i += 999) CHECK(static_cast<char*>(p)[i] == 0);
  CHECK(ncclMemFree(static_cast<char*>(p) + 4096) == ncclInvalidArgument);
  CHECK(ncclMemFree(p) == ncclSuccess);
  CHECK(ncclMemFree(p) == ncclInvalidArgument);
  REQUIRE(ncclMemAlloc(&p, 0) == ncclSuccess);
  CHECK(p != nullptr);
  CHECK(ncclMemFree(p) == ncclSuccess);
  CHECK(ncclMemFree(nullptr) == ncclSuccess);
}

TEST_CASE("an import is the same memory") {
  void* p = nullptr;
  void* q = nullptr;
  int fd = -1;
  std::size_t bytes = 0;
  REQUIRE(tuttiMemAlloc(&p, 5000, &fd) == ncclSuccess);
  REQUIRE(fd >= 0);
  REQUIRE(tuttiMemImport(fd, &q, &bytes) == ncclSuccess);
  CHECK(bytes >= 5000);
  CHECK(q != p);
  CHECK(close(fd) == 0);
  static_cast<int*>(p)[77] = 1234;
  CHECK(static_cast<int*>(q)[77] == 1234);
  CHECK(tuttiMemFree(p) == ncclSuccess);
  CHECK(static_cast<int*>(q)[77] == 1234);
  CHECK(tuttiMemFree(q) == ncclSuccess);
  check_invalid(tuttiMemImport(-1, &q, nullptr), {"tuttiMemImport", "fd is -1"});
  check_invalid(tuttiMemImport(0, nullptr, nullptr), {"ptr is NULL"});
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(tuttiMemImport(ends[0], &q, nullptr) == ncclInvalidArgument);
  CHECK(q == nullptr);
  close(ends[0]);
  close(ends[1]);
  check_invalid(tuttiMemImport(ends[0], &q, nullptr), {"tuttiMemAlloc"});  // closed
  const int read_only = open("/proc/self/exe", O_RDONLY);
  REQUIRE(read_only >= 0);
  check_invalid(tuttiMemImport(read_only, &q, nullptr), {"for reading and writing"});
  close(read_only);
}

TEST_CASE("registrations are handles of their communicator") {
  const Ranks ranks(1);
  const Ranks others(1);
  char buffer[64];
  void* handle = nullptr;
  void* second = nullptr;
  check_invalid(ncclCommRegister(ranks[0], nullptr, 64, &handle), {"buff is NULL"});
  check_invalid(ncclCommRegister(ranks[0], buffer, 0, &handle), {"size is 0"});
  check_invalid(ncclCommRegister(ranks[0], buffer, SIZE_MAX, &handle), {"size is 18446744073709551615"});
  check_invalid(ncclCommRegister(ranks[0], buffer, 64, nullptr), {"handle is NULL"});
  check_invalid(ncclCommRegister(nullptr, buffer, 64, &handle), {"comm is NULL"});
  REQUIRE(ncclCommRegister(ranks[0], buffer, 64, &handle) == ncclSuccess);
  REQUIRE(ncclCommRegister(ranks[0], buffer, 64, &second) == ncclSuccess);
  CHECK(handle != second);
  check_invalid(ncclCommDeregister(others[0], handle), {"another communicator"});
  CHECK(ncclCommDeregister(ranks[0], handle) == ncclSuccess);
  check_invalid(ncclCommDeregister(ranks[0], handle), {"deregistered already"});
  check_invalid(ncclCommDeregister(ranks[0], buffer), {"is no registration"});
  CHECK(ncclCommDeregister(ranks[0], nullptr) == ncclSuccess);
  // The slot is used again, under another handle.
  void* third = nullptr;
  REQUIRE(ncclCommRegister(ranks[0], buffer, 64, &third) == ncclSuccess);
  CHECK(third != handle);
  check_invalid(ncclCommDeregister(ranks[0], handle), {"deregistered already"});
  CHECK(ncclCommDeregister(ranks[0], third) == ncclSuccess);
  CHECK(ncclCommDeregister(ranks[0], second) == ncclSuccess);
}

TEST_CASE("windows are checked, and are no plain registrations") {
  const Ranks ranks(1);
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  REQUIRE(ncclMemAlloc(&memory, 8192) == ncclSuccess);
  check_invalid(ncclCommWindowRegister(ranks[0], static_cast<char*>(memory) + 16, 64, &window, NCCL_WIN_DEFAULT),
                {"4096", "ncclMemAlloc"});
  check_invalid(ncclCommWindowRegister(ranks[0], memory, 8192, &window, 6), {"winFlags is 0x6"});
  check_invalid(ncclCommWindowRegister(ranks[0], memory, 8192, nullptr, 0), {"win is NULL"});
  REQUIRE(ncclCommWindowRegister(ranks[0], memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess);
  check_invalid(ncclCommDeregister(ranks[0], window), {"is no registration"});
  CHECK(ncclCommWindowDeregister(ranks[0], window) == ncclSuccess);
  check_invalid(ncclCommWindowDeregister(ranks[0], window), {"win", "deregistered already"});
  CHECK(ncclCommWindowDeregister(ranks[0], nullptr) == ncclSuccess);
  CHECK(ncclMemFree(memory) == ncclSuccess);
}

TEST_CASE("memory is registered once the communicator is there") {
  void* memory = nullptr;
  void* handle = nullptr;
  ncclWindow_t window = nullptr;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2] = {};
  REQUIRE(ncclMemAlloc(&memory, 4096) == ncclSuccess);
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  REQUIRE(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config) == ncclInProgress);
  check_refused(ncclCommRegister(comms[0], memory, 4096, &handle), ncclInvalidUsage, {"still initialising"});
  check_refused(ncclCommWindowRegister(comms[0], memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC), ncclInvalidUsage,
                {"still initialising"});
  CHECK(handle == nullptr);
  CHECK(window == nullptr);
  REQUIRE(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config) == ncclInProgress);
  for (ncclComm_t comm : comms) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) REQUIRE(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    REQUIRE(state == ncclSuccess);
    CHECK(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess);
    CHECK(ncclCommWindowDeregister(comm, window) == ncclSuccess);
  }
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
  CHECK(ncclMemFree(memory) == ncclSuccess);
}
