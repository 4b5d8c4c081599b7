// SIGPIPE, by which Open MPI would end a rank: its TCP writes to a connection whose other end is gone as to a pipe without a reader, and who does not
// ignore or catch that signal dies of it. A rank that goes on after another one's death may be in such a write when that one dies.
#pragma once

namespace tutti::transport {

/// While there is one in a thread, its broken pipes are MPI's to notice, by an error (EPIPE).
class MpiPipe {
 public:
  /// From now on; elsewhere SIGPIPE ends the process as before. A program that ignores or catches it is left alone. Any number of times.
  static void protect();

  MpiPipe();
  MpiPipe(const MpiPipe&) = delete;
  MpiPipe& operator=(const MpiPipe&) = delete;
  ~MpiPipe();
};

}  // namespace tutti::transport
