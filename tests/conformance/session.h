// One rank of the library's backends: its communicator, buffers and stream, and a case's calls, step by step.
#pragma once

#include "case.h"

#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tutti::conformance {

/// How all ranks of a backend are set up.
struct SessionOptions {
  bool shared_buffers = false;  ///< from ncclMemAlloc
  bool stream = false;          ///< a host stream instead of NULL
  std::string route;            ///< what the explanation of a call must hold where the backend is meant to carry it
  int ranks_per_host = 0;       ///< so many on each of several hosts; 0: all on one. TEST_RANKS_PER_HOST goes before it
  std::string transport;        ///< what must carry the data between hosts; empty: whatever does
};

class Session {
 public:
  Session(const SessionOptions& options, int rank, int ranks);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  static constexpr int kCallsInARow = 2;
  static constexpr int kRounds = 2;
  static std::uint64_t count_of(const Case& c);

  ncclComm_t* comm() { return &comm_; }
  /// "" or what is wrong, as of everything below.
  std::string start();
  std::string join(const ncclUniqueId& id);
  /// Before a case: its schedule and its operation.
  std::string begin(const Case& c, int number);
  void fill(int round);
  std::string issue(int call);
  std::string wait();
  std::string check(int round);
  /// After a case: what only this rank can find wrong, when no peer waits for it.
  std::string end();
  /// Whatever the others do.
  std::string abort();

 private:
  struct Buffers {
    std::byte* first = nullptr;   ///< the input, and the output in place
    std::byte* second = nullptr;  ///< the output
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::size_t input_bytes = 0;
    std::size_t output_bytes = 0;
  };

  std::string set_schedule();
  std::string check_route();
  void place(Buffers& b) const;
  std::string check(int call, int number) const;
  std::string fine(ncclResult_t result, const char* what) const;

  SessionOptions options_;
  int rank_;
  int ranks_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Case case_;
  int number_ = 0;
  ncclRedOp_t op_ = ncclSum;
  const algorithm::Algorithm* set_ = nullptr;
  schedule::Request set_for_;
  Buffers buffers_[kCallsInARow];
};

}  // namespace tutti::conformance
