#include "comm/private_descriptor.h"

#include "base/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

namespace tutti::comm {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> fds;
};

/// Never destroyed: root threads may outlive static objects.
Registry& registry() {
  static Registry& instance = []() -> Registry& {
    auto* made = new Registry;
    // The lock is held across the fork, so that the child finds the list whole.
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     for (const int fd : registry().fds) close(fd);
                     registry().fds.clear();
                     registry().mutex.unlock();
                   });
    return *made;
  }();
  return instance;
}

}  // namespace

PrivateDescriptor PrivateDescriptor::open(const std::function<int()>& make) {
  Registry& all = registry();
  PrivateDescriptor made;
  const std::lock_guard lock(all.mutex);
  all.fds.reserve(all.fds.size() + 1);
  made.fd_ = above_standard(make());
  if (made.fd_ >= 0) all.fds.push_back(made.fd_);
  return made;
}

void PrivateDescriptor::reset() {
  if (fd_ < 0) return;
  const int saved_errno = errno;
  Registry& all = registry();
  {
    const std::lock_guard lock(all.mutex);
    const auto mine = std::find(all.fds.begin(), all.fds.end(), fd_);
    if (mine != all.fds.end()) {
      *mine = all.fds.back();
      all.fds.pop_back();
      close(fd_);
    }
  }
  fd_ = -1;
  errno = saved_errno;
}

}  // namespace tutti::comm
