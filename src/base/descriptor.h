// Descriptor: the owner of one file descriptor; moves, never copies, closes at the end.
#pragma once

#include <utility>

namespace tutti {

/// `fd`, or, where a program was started without stdin, stdout or stderr and it is one of these numbers, a copy above them:
/// whatever the program prints, or the log, would go into it otherwise. Takes `fd`; keeps errno. -1 stays -1.
int above_standard(int fd);

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// The caller owns the descriptor from now on.
  int release() { return std::exchange(fd_, -1); }
  /// Closes what is owned and owns `fd` instead. Keeps errno.
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace tutti
