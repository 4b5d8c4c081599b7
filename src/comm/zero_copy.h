// ZeroCopy: sends of a TCP socket from where the bytes lie (MSG_ZEROCOPY). The kernel keeps their pages until the other host has acknowledged
// them, and says so in the socket's error queue. Where it copies after all, since the other end is on this machine or the card cannot
// collect what it sends, it says that, too, and the socket goes back to copies: both ways together cost more than one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <sys/socket.h>
#include <sys/types.h>

namespace tutti::comm {

class ZeroCopy {
 public:
  struct Options {
    std::size_t from_bytes = 0;      ///< TUTTI_ZEROCOPY_BYTES; 0: none
    bool goes_on_if_copied = false;  ///< for tests: on one machine all is copied
  };

  /// `socket` lives longer. nullptr: nobody wants it, or this kernel or socket has no such sends.
  static std::unique_ptr<ZeroCopy> open(int socket, Options options);
  /// A socket that is closed sends what it has. If some of that is not released this one drops it, and its connection ends in an error: what
  /// lies there may be written by now.
  ~ZeroCopy();
  ZeroCopy(const ZeroCopy&) = delete;
  ZeroCopy& operator=(const ZeroCopy&) = delete;

  /// The largest number when it has gone back to copies.
  std::size_t from_bytes() const { return from_bytes_; }
  /// sendmsg, from where the bytes lie. -1 and errno: nothing was taken; whatever it is but EAGAIN, a copy may be.
  ssize_t send(const msghdr& message, int flags);
  /// Whether all that was taken may be written again.
  bool is_released();

  /// Sends so far.
  std::uint64_t sends() const { return sends_; }

 private:
  ZeroCopy(int socket, Options options)
      : socket_(socket), goes_on_if_copied_(options.goes_on_if_copied), from_bytes_(options.from_bytes) {}
  void take_words();
  bool take_word();
  void note_copied();

  const int socket_;
  const bool goes_on_if_copied_;
  std::size_t from_bytes_;
  std::uint64_t sends_ = 0;
  std::uint64_t released_ = 0;  ///< of them
  std::uint64_t bytes_ = 0;     ///< sent so
};

}  // namespace tutti::comm
