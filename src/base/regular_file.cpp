#include "base/regular_file.h"

#include "base/descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace tutti {

Result<std::string> read_regular_file(const std::string& path, const std::string& what, std::size_t bytes_max) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return system_error(what);
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return system_error(what);
  if (!S_ISREG(facts.st_mode)) return error(Code::kSystem, what + ": not a regular file");
  // One byte more than there may be, so that a file that is too long is seen to be.
  std::string text(bytes_max + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(what);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > bytes_max)
    return error(Code::kInvalidUsage, fmt::format("{}: the file is larger than {} bytes", what, bytes_max));
  text.resize(size);
  return text;
}

int open_for_writing(const std::string& path, int flags) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  const int fd = open(path.c_str(), kFlags | flags, 0644);
  if (fd >= 0) fcntl(fd, F_SETFL, flags);  // once open, writes wait as ever
  return fd;
}

}  // namespace tutti
