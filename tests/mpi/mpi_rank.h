// What ranks of MPI programs that use Tutti have in common: lines of their own for the test, ids, communicators.
#pragma once

#include <mpi.h>
#include <nccl.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace tutti::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline int me = 0;
inline int world = 1;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class... Args>
void say(const char* format, Args... args) {
  char text[2048];
  std::snprintf(text, sizeof(text), format, args...);
  // To the file too: of ranks that outlive another, mpiexec loses what they print.
  const std::string line = "rank " + std::to_string(me) + " " + text + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  const char* const path = std::getenv("TEST_LINES");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::setvbuf(file, nullptr, _IOFBF, 4096);
  std::fputs(line.c_str(), file);
  std::fclose(file);
}

[[noreturn]] inline void fail(const std::string& what) {
  say("FAILED %s", what.c_str());
  std::_Exit(9);
}

inline void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) fail(std::string(what) + ": " + ncclGetLastError(nullptr));
}

inline void expect(bool fine, const std::string& what) {
  if (!fine) fail(what);
}

inline ncclUniqueId share_id(bool with_mpi) {
  ncclUniqueId id;
  if (!with_mpi) {
    tuttiLaunchInfo_t info;
    check(tuttiLaunchDetect(&info), "tuttiLaunchDetect");
    check(tuttiLaunchUniqueId(&info, &id), "tuttiLaunchUniqueId");
    return id;
  }
  if (me == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
  return id;
}

/// Of rank 0, to those who must not use MPI any more; TEST_ID_FILE is where.
inline ncclUniqueId share_id_by_file() {
  const std::string path = std::getenv("TEST_ID_FILE");
  ncclUniqueId id;
  if (me == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::FILE* const file = std::fopen((path + ".new").c_str(), "wb");
    expect(file != nullptr && std::fwrite(&id, sizeof(id), 1, file) == 1 && std::fclose(file) == 0, "write " + path);
    expect(std::rename((path + ".new").c_str(), path.c_str()) == 0, "rename " + path);
    return id;
  }
  for (const auto start = Clock::now(); seconds_since(start) < 30;) {
    if (std::FILE* const file = std::fopen(path.c_str(), "rb")) {
      expect(std::fread(&id, sizeof(id), 1, file) == 1, "read " + path);
      std::fclose(file);
      return id;
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  fail("no " + path);
}

/// Ends the process where the communicator is refused.
inline ncclComm_t join(int ranks, int rank, const ncclUniqueId& id, bool with_mpi) {
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRank(&comm, ranks, id, rank);
  if (result != ncclSuccess) {
    say("refused %d %s", static_cast<int>(result), ncclGetLastError(nullptr));
    if (with_mpi) MPI_Finalize();
    std::exit(0);
  }
  const char* transport = "";
  check(tuttiCommTransport(comm, &transport), "tuttiCommTransport");
  say("transport %s", transport);
  return comm;
}

}  // namespace tutti::test
