// PrivateDescriptor: a descriptor that forked children do not keep. If a child kept a copy of a bootstrap socket, the
// death of its owner would not close the connection, and nobody would notice it.
#pragma once

#include <cerrno>
#include <functional>
#include <utility>

namespace tutti::comm {

/// Thread-safe as a whole: a fork at any moment finds every open PrivateDescriptor in the registry and closes it in the
/// child. Objects that the child inherits must not be used there.
class PrivateDescriptor {
 public:
  PrivateDescriptor() = default;
  PrivateDescriptor(PrivateDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~PrivateDescriptor() { reset(); }

  /// `make` returns a new descriptor or -1 with errno, which stays; it must not block: forks wait for it.
  static PrivateDescriptor open(const std::function<int()>& make);

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

/// Of a call that makes one: this process or its host has none left, for the moment at least.
constexpr bool lacks_descriptor(int failure) {
  return failure == EMFILE || failure == ENFILE || failure == ENOBUFS || failure == ENOMEM;
}

}  // namespace tutti::comm
