// Runs the bootstrap on ranks that are threads or forked processes, and counts what a process holds.
#pragma once

#include "comm/bootstrap.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace rank_runs {

/// Its root is this process's.
tutti::comm::UniqueId new_id();

/// What one rank's call returned.
struct Outcome {
  bool ok = false;
  tutti::Code code = tutti::Code::kSuccess;
  std::string message;
  tutti::comm::BootstrapResult result;
  double seconds = 0;
};

using Arguments = std::function<void(tutti::comm::BootstrapArgs&)>;

/// 4096 bytes per local rank.
std::size_t control_bytes(int local_ranks);

Outcome run_rank(const tutti::comm::UniqueId& id, int rank, int ranks, const Arguments& change = {});

/// One thread per entry of `numbers`, the entry is its rank.
std::vector<Outcome> run_threads(const tutti::comm::UniqueId& id, const std::vector<int>& numbers, int ranks,
                                 const Arguments& change = {});

std::vector<int> all_ranks(int ranks);

/// Every one of them, and closes what it got.
void check_all_work(std::vector<Outcome>& outcomes);

/// Forks; the child's exit status is 0 if `body` returned an empty text, which is printed otherwise.
pid_t spawn(const std::function<std::string()>& body);
bool ended_well(pid_t child);

/// A process that has made a unique id, and has its root; killed at the end of its scope.
struct Maker {
  tutti::comm::UniqueId id;
  pid_t pid = -1;

  Maker();
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;
  ~Maker();
};

/// Writes a mark of this rank and waits until the marks of all local ranks are there. Empty, or what is wrong.
std::string meet_in_control(const tutti::comm::BootstrapResult& result, int rank);

int open_descriptors();
int live_threads();
/// Threads and sockets of a root end a moment after the ranks have their answer.
bool settles_to(int descriptors, int threads, double patience_s);

/// Checks at the end of its scope that no descriptor and no thread was left behind since the beginning.
class NothingLeft {
 public:
  explicit NothingLeft(double patience_s = 3);
  NothingLeft(const NothingLeft&) = delete;
  NothingLeft& operator=(const NothingLeft&) = delete;
  ~NothingLeft();

 private:
  double patience_s_;
  int descriptors_;
  int threads_;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Of the seconds that `run` returns the least, of up to five runs until there are fewer than `enough_s`: on a busy machine a thread may stand still
/// for as long.
template <class Run>
double least_of_a_few(double enough_s, Run run) {
  double least_s = run();
  for (int more = 4; more > 0 && least_s >= enough_s; --more) least_s = std::min(least_s, run());
  return least_s;
}

}  // namespace rank_runs
