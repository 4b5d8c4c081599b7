// The ranks of one communicator, told what to do case by case: threads, forked processes, or all in the caller's thread.
#pragma once

#include "session.h"

#include <memory>
#include <string>

namespace tutti::conformance {

enum class Executor : std::uint8_t { kOneThread, kThreads, kProcesses };

class Crew {
 public:
  virtual ~Crew() = default;
  /// "" or what is wrong. After an abort, or anything wrong, the crew is of no use any more.
  virtual std::string run(const Case& c, int number) = 0;
};

/// Forks, for kProcesses: the caller has not used the library by then.
std::unique_ptr<Crew> make_crew(Executor executor, const SessionOptions& options, int ranks);

}  // namespace tutti::conformance
