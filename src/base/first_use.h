// What a process makes at its first use, by whichever thread comes first: the library's own threads make things while the program forks ranks,
// and a copy of a process in which something was half made would wait forever for a thread that it has not got. A `static` of a function is no
// place for what such a thread may be the first to need.
#pragma once

namespace tutti {

/// While there is one, nothing else is made, and no process is forked: who forks waits. It is not to be taken twice by a thread.
class FirstUse {
 public:
  FirstUse();
  ~FirstUse();
  FirstUse(const FirstUse&) = delete;
  FirstUse& operator=(const FirstUse&) = delete;
};

}  // namespace tutti
