#include "base/descriptor.h"

#include <unistd.h>

#include <cerrno>

namespace tutti {

void Descriptor::reset(int fd) {
  if (fd_ >= 0 && fd_ != fd) {
    const int saved_errno = errno;
    close(fd_);  // Not repeated after EINTR: Linux has released the descriptor by then.
    errno = saved_errno;
  }
  fd_ = fd;
}

}  // namespace tutti
