// What ranks map of each other's shared memory: it stays where it is as long as its owner keeps it, and no longer.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;

constexpr std::size_t kBytes = 4 << 20;

std::string with_comm(const Member& m, const std::function<std::string(ncclComm_t)>& body) {
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
  CREW_TRY(body(comm));
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Where shared memory is mapped here.
std::set<std::uintptr_t> mappings() {
  std::set<std::uintptr_t> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:tutti-shared") != std::string::npos) found.insert(std::stoull(line, nullptr, 16));
  }
  return found;
}

float* allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (ncclMemAlloc(&memory, bytes) != ncclSuccess) return nullptr;
  return static_cast<float*>(memory);
}

/// In place, of so many bytes of the buffer.
std::string sum(const Member& m, ncclComm_t comm, float* data, std::size_t bytes) {
  if (data == nullptr) return "there is no buffer";
  const std::size_t count = bytes / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 1000 + m.rank);
  CREW_TRY(fine(ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
  const int others = m.ranks * (m.ranks - 1) / 2;
  for (std::size_t i = 0; i < count; ++i) {
    const auto wanted = static_cast<float>(m.ranks * (i % 1000) + others);
    if (data[i] != wanted) return "element " + std::to_string(i) + " is " + std::to_string(data[i]);
  }
  return "";
}

/// What a rank frees afterwards no other one has let go of before.
std::string meet(ncclComm_t comm) { return crew::usable(comm); }

/// Of memory that nobody maps.
std::string churn(int times) {
  for (int i = 0; i < times; ++i) {
    float* const other = allocate(4096);
    if (other == nullptr) return "ncclMemAlloc";
    CREW_TRY(fine(ncclMemFree(other), "ncclMemFree"));
  }
  return "";
}

/// "" if what is mapped is what was: `kept`.
std::string still(const std::set<std::uintptr_t>& kept) {
  const std::set<std::uintptr_t> now = mappings();
  if (now == kept) return "";
  return std::to_string(now.size()) + " mappings, elsewhere than the " + std::to_string(kept.size()) + " before";
}

bool refuse(unsigned call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

TEST_CASE("what is mapped of others stays where it is while they free other memory") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      float* const first = allocate(kBytes);
      float* const second = allocate(kBytes / 2);
      const auto both = [&]() -> std::string {
        CREW_TRY(sum(m, comm, first, 1 << 20));
        CREW_TRY(sum(m, comm, second, 512 << 10));
        return meet(comm);
      };
      CREW_TRY(both());
      const std::set<std::uintptr_t> kept = mappings();
      if (kept.size() < 4) return "nothing is mapped of the others";
      for (int round = 0; round < 5; ++round) {
        // One rank, or all; and what nobody has mapped, or all have.
        if (round % 2 == 0 || m.rank == 1) CREW_TRY(churn(7));
        CREW_TRY(both());
        CREW_TRY(still(kept));
        float* const third = allocate(1 << 20);
        CREW_TRY(sum(m, comm, third, 1 << 20));
        CREW_TRY(fine(ncclMemFree(third), "ncclMemFree"));
        CREW_TRY(both());
        CREW_TRY(still(kept));
      }
      CREW_TRY(meet(comm));
      CREW_TRY(fine(ncclMemFree(first), "ncclMemFree"));
      return fine(ncclMemFree(second), "ncclMemFree");
    });
  }));
}

TEST_CASE("what all have freed nobody keeps past the next call, whatever that is") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      for (int round = 0; round < 4; ++round) {
        float* const data = allocate(kBytes);
        CREW_TRY(sum(m, comm, data, kBytes));
        CREW_TRY(meet(comm));
        if (mappings().size() < 2) return "nothing is mapped of the others";
        CREW_TRY(meet(comm));
        CREW_TRY(fine(ncclMemFree(data), "ncclMemFree"));
        if (round % 2 == 1) CREW_TRY(churn(100));  // more than are remembered
        float one = 1;
        CREW_TRY(fine(ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
        CREW_TRY(still({}));
      }
      return "";
    });
  }));
}

TEST_CASE("a file that grows is read as far as it goes by communicators that have not mapped it yet") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t first) -> std::string {
      ncclComm_t second = nullptr;
      CREW_TRY(fine(ncclCommSplit(first, 0, m.rank, &second, nullptr), "ncclCommSplit"));
      const int file = memfd_create("reach-test", MFD_CLOEXEC);
      ncclComm_t third = nullptr;  // is made when the file has grown the second time
      for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{8} << 20, std::size_t{16} << 20}) {
        if (ftruncate(file, static_cast<off_t>(bytes)) != 0) return "ftruncate";
        void* memory = nullptr;
        CREW_TRY(fine(tuttiMemImport(file, &memory, nullptr), "tuttiMemImport"));
        if (bytes == 16 << 20) CREW_TRY(fine(ncclCommSplit(first, 0, m.rank, &third, nullptr), "ncclCommSplit"));
        auto* const end = static_cast<float*>(memory) + (bytes - (1 << 20)) / sizeof(float);
        CREW_TRY(sum(m, bytes == 1 << 20 ? first : bytes == 8 << 20 ? second : third, end, 1 << 20));
        CREW_TRY(sum(m, first, end, 1 << 20));
      }
      close(file);
      CREW_TRY(fine(ncclCommDestroy(third), "ncclCommDestroy of the third"));
      return fine(ncclCommDestroy(second), "ncclCommDestroy of the second");
    });
  }));
}

TEST_CASE("a file that was shortened before others have mapped it is an error, and kills nobody") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      const int file = memfd_create("reach-test", MFD_CLOEXEC);
      void* memory = nullptr;
      if (ftruncate(file, kBytes) != 0) return "ftruncate";
      CREW_TRY(fine(tuttiMemImport(file, &memory, nullptr), "tuttiMemImport"));
      CREW_TRY(meet(comm));
      // The root itself touches nothing of it. What is there may be used.
      if (m.rank == 0 && ftruncate(file, kBytes / 2) != 0) return "ftruncate";
      const auto broadcast = [&](std::size_t bytes) {
        return ncclBroadcast(memory, memory, bytes, ncclInt8, 0, comm, nullptr);
      };
      CREW_TRY(fine(broadcast(kBytes / 2), "ncclBroadcast"));
      CREW_TRY(crew::refused(
          broadcast(kBytes), ncclInvalidUsage,
          {"cannot reach the buffers of rank 0", "the file has only 2097152 bytes, and 4194304", "it was shortened"}));
      close(file);
      return fine(tuttiMemFree(memory), "tuttiMemFree");
    });
  }));
}

TEST_CASE("where a filter lets processes read each other's memory and not write it, data goes another way") {
  setenv("TUTTI_SINGLE_COPY_MIN_BYTES", "1", 1);
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    if (!refuse(SYS_process_vm_writev)) return "";
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      for (const std::size_t bytes : {std::size_t{128} << 10, std::size_t{2} << 20}) {
        std::vector<float> data(bytes / sizeof(float), static_cast<float>(m.rank + 1));
        CREW_TRY(
            fine(ncclBroadcast(data.data(), data.data(), data.size(), ncclFloat, 0, comm, nullptr), "a broadcast"));
        if (std::ranges::count(data, 1.0F) != static_cast<std::ptrdiff_t>(data.size())) return "wrong values";
        CREW_TRY(sum(m, comm, data.data(), bytes));
      }
      return "";
    });
  }));
  unsetenv("TUTTI_SINGLE_COPY_MIN_BYTES");
}
