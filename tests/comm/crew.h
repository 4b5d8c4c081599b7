// A crew: ranks that are forked processes using the public API only, some of which get killed or go wrong on purpose.
#pragma once

#include <nccl.h>

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace crew {

/// What a rank's process knows.
struct Member {
  int rank = 0;
  int ranks = 0;
  const ncclUniqueId* ids = nullptr;  ///< made by the parent, which is no rank
};

/// Runs in the child; returns "" or what is wrong.
using Body = std::function<std::string(const Member&)>;

struct Ending {
  bool killed = false;  ///< by SIGKILL
  int signal = 0;       ///< of any other signal
  std::string wrong;    ///< what the body returned
};

/// Forks `ranks` processes and waits for them all; a rank that takes longer than `limit_s` is ended by SIGALRM.
std::vector<Ending> run(int ranks, const Body& body, unsigned limit_s = 30, int id_count = 2);

/// Fails the current Catch2 test with every rank's complaint. Ranks in `victims` must have been killed, others not.
void check(const std::vector<Ending>& endings, const std::vector<int>& victims = {});

/// Memory that all processes forked afterwards share, zero-filled.
void* shared_page();

double now_s();

/// This process's descriptors and threads, and all files of /dev/shm.
struct Belongings {
  int descriptors, threads, files;
  static Belongings count();
  /// "" or what is there that was not before; waits a little for threads to end.
  std::string grown_since(const Belongings& before) const;
};
std::string left_behind(const Belongings& before);
/// Of this process's memory.
long resident_kb();

/// "" if `result` is ncclSuccess, else what, the code and ncclGetLastError.
std::string fine(ncclResult_t result, const char* what);
/// "" if `result` is `wanted` and the last error holds all of `parts`.
std::string refused(ncclResult_t result, ncclResult_t wanted, const std::vector<std::string>& parts,
                    ncclComm_t comm = nullptr);
/// "" or why the rank has no communicator of all of them, made with that one of the ids.
std::string init(const Member& m, ncclComm_t* comm, int id = 0);
/// A sum over the communicator comes out right.
std::string usable(ncclComm_t comm);

}  // namespace crew

/// Leaves the body with the complaint, if there is one.
#define CREW_TRY(expression)                                        \
  do {                                                              \
    if (std::string crew_wrong = (expression); !crew_wrong.empty()) \
      return std::to_string(__LINE__) + ": " + crew_wrong;          \
  } while (false)
