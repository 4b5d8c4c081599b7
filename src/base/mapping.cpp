#include "base/mapping.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

namespace tutti {
namespace {

int set_size(int fd, off_t bytes, Backing backing) {
  // The kernel's own answer to a file beyond the limit (ulimit -f) is SIGXFSZ, which ends the process.
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && static_cast<rlim_t>(bytes) > limit.rlim_cur) {
    errno = EFBIG;
    return -1;
  }
  int status = 0;
  do {
    status = ftruncate(fd, bytes);
  } while (status != 0 && errno == EINTR);
  while (status == 0 && backing == Backing::kReserved) {
    status = fallocate(fd, 0, 0, bytes);
    if (status == 0 || errno == EOPNOTSUPP) return 0;
    if (errno != EINTR) return status;
    status = 0;
  }
  return status;
}

/// What to do about errno.
const char* hint() {
  switch (errno) {
    case EMFILE: return " (raise ulimit -n)";
    case EFBIG: return " (the limit of file sizes, ulimit -f, is too small)";
    case EPERM:
    case EACCES:
    case ENOSYS: return " (a seccomp profile, the container's say, forbids it)";
    case ENOSPC:
    case ENOMEM: return " (free memory, or the memory limit of the container, is too small)";
    default: return "";
  }
}

Error no_memory_file(const char* call, std::size_t bytes) {
  const char* const what_to_do = hint();
  Error failure = system_error(fmt::format("{} for {} bytes of shared memory", call, bytes));
  failure.message += what_to_do;
  return failure;
}

}  // namespace

Result<Descriptor> create_memory_file(const char* name, std::size_t bytes, Backing backing) {
  if (bytes == 0 || bytes > static_cast<std::size_t>(std::numeric_limits<off_t>::max())) {
    return error(Code::kInternal, fmt::format("a memory file of {} bytes cannot be", bytes));
  }
  Descriptor file(above_standard(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!file) return no_memory_file("memfd_create", bytes);
  if (set_size(file.get(), static_cast<off_t>(bytes), backing) != 0) return no_memory_file("fallocate", bytes);
  // A holder that shrank the file would kill the others with SIGBUS.
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return system_error("seal a memory file");
  }
  return file;
}

Result<Mapping> Mapping::map_file(int fd, std::size_t bytes) {
  struct stat facts = {};
  if (fstat(fd, &facts) != 0) return system_error("fstat of a memory file");
  if (facts.st_size < 0 || static_cast<std::size_t>(facts.st_size) < bytes) {
    return error(Code::kSystem, fmt::format("a memory file has {} bytes, {} are needed", facts.st_size, bytes));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return system_error(fmt::format("map {} bytes of shared memory", bytes));
  return Mapping(data, bytes);
}

Result<Mapping> Mapping::map_anonymous(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return system_error(fmt::format("map {} bytes of memory", bytes));
  return Mapping(data, bytes);
}

void Mapping::unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace tutti
