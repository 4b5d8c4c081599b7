#include "base/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace tutti {

int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int saved_errno = errno;
  close(fd);
  errno = saved_errno;
  return moved;
}

void Descriptor::reset(int fd) {
  if (fd_ >= 0 && fd_ != fd) {
    const int saved_errno = errno;
    close(fd_);  // Not repeated after EINTR: Linux has released the descriptor by then.
    errno = saved_errno;
  }
  fd_ = fd;
}

}  // namespace tutti
