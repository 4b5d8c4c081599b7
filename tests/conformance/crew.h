// The ranks of one communicator, told what to do case by case: threads, forked or started processes, or all in the caller's thread.
#pragma once

#include "session.h"

#include <memory>
#include <string>

namespace tutti::conformance {

enum class Executor : std::uint8_t { kOneThread, kThreads, kProcesses, kStarted };

class Crew {
 public:
  virtual ~Crew() = default;
  /// "" or what is wrong. After an abort, or anything wrong, the crew is of no use any more.
  virtual std::string run(const Case& c, int number) = 0;
  /// All ranks are sent away. "" or what is wrong with how they ended.
  virtual std::string end() { return ""; }
};

/// Forks, for kProcesses: the caller has not used the library by then. `backend`: whose members are started.
std::unique_ptr<Crew> make_crew(Executor executor, const std::string& backend, const SessionOptions& options,
                                int ranks);

}  // namespace tutti::conformance
