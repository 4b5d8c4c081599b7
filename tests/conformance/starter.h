// Ranks that a launcher starts, as mpirun does. TEST_STARTER names a program that is called with the number of ranks and the command
// line that each of them is to be: this process's own and --member SOCKET. With TEST_LEAVE_MPI they end without MPI_Finalize.
#pragma once

#include "session.h"

#include <sys/types.h>

#include <string>
#include <vector>

namespace tutti::conformance {

/// TEST_STARTER, or "".
std::string starter_program();

class Starter {
 public:
  Starter(const std::string& backend, int ranks);
  Starter(const Starter&) = delete;
  Starter& operator=(const Starter&) = delete;
  /// Kills what is left.
  ~Starter();

  /// Until all ranks have come; a socket for each. "" or what is wrong.
  std::string wait(std::vector<int>& sockets);
  /// Until the program has ended, when all ranks have been sent away. "" or what is wrong.
  std::string end();

 private:
  int ranks_;
  std::string folder_;
  std::string path_;
  std::string problem_;
  int listener_ = -1;
  pid_t child_ = -1;
};

/// The whole life of a process that a launcher started as a rank; its exit status.
int be_member(const SessionOptions& options, const std::string& socket_path, const std::vector<Case>& cases);

}  // namespace tutti::conformance
