#include "transport/peer_memory.h"

#include "base/descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

namespace tutti::transport {
namespace {

// The kernel moves at most about 2^31 bytes per call.
constexpr std::size_t kCopyMaxBytes = std::size_t{1} << 30;

const char* copy_hint(int number) {
  switch (number) {
    case EPERM:
      return " (the kernel allows it only to processes of the same user that may trace each other: check "
             "kernel.yama.ptrace_scope and the container's capabilities and seccomp profile)";
    case ENOSYS: return " (this kernel has no process_vm_readv and process_vm_writev)";
    case EFAULT: return " (the address is not mapped there)";
    default: return "";
  }
}

Error copy_error(const char* direction, int pid, std::uint64_t address, std::size_t bytes, int number) {
  const Code code = number == ESRCH ? Code::kRemote : Code::kSystem;
  return error(code, fmt::format("cannot {} {} bytes at {:#x} of process {}: {}{}", direction, bytes, address, pid,
                                 strerror(number), copy_hint(number)));
}

using VmCall = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

/// A partial transfer goes on where it stopped; if nothing more can be moved, the next call says why.
Status copy_process(VmCall call, const char* direction, int pid, std::uint64_t remote_address, std::byte* local,
                    std::size_t bytes) {
  // Ids 0 and below are no processes.
  if (pid <= 0)
    return error(Code::kInvalidArgument,
                 fmt::format("cannot {} memory of process {}: no such process", direction, pid));
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, kCopyMaxBytes);
    iovec here{local + done, piece};
    iovec there{reinterpret_cast<void*>(static_cast<std::uintptr_t>(remote_address + done)), piece};
    const ssize_t moved = call(pid, &here, 1, &there, 1, 0);
    if (moved > 0)
      done += static_cast<std::size_t>(moved);
    else if (moved == 0 || errno != EINTR)
      return copy_error(direction, pid, remote_address + done, bytes - done, moved == 0 ? EFAULT : errno);
  }
  return {};
}

Error import_error(int pid, const SharedReference& segment, const std::string& reason, Code code) {
  return error(code, fmt::format("cannot map descriptor {} of process {}: {}", segment.fd, pid, reason));
}

/// Opens the peer's descriptor through /proc and makes sure that it is the segment meant.
Result<Import> open_segment(int pid, const SharedReference& segment) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, segment.fd);
  const Descriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    const int number = errno;
    const bool lives = kill(pid, 0) == 0 || errno == EPERM;
    if (number == ENOENT && lives && access(fmt::format("/proc/{}", pid).c_str(), F_OK) != 0)
      return import_error(pid, segment,
                          fmt::format("/proc/{} is not seen from here (the processes must keep their user, root folder "
                                      "and namespaces)",
                                      pid),
                          Code::kSystem);
    if (number == ENOENT || number == ESRCH)
      return import_error(pid, segment, "the process has ended or has freed the segment", Code::kRemote);
    const char* hint = number == EACCES || number == EPERM
                           ? " (the processes must be of the same user, stay so, and be dumpable)"
                           : "";
    return import_error(pid, segment, fmt::format("open {}: {}{}", path, strerror(number), hint), Code::kSystem);
  }
  struct stat facts;
  if (fstat(fd.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || file_identity(facts) != segment.file)
    return import_error(pid, segment, "its descriptor is another file now: the segment was freed", Code::kRemote);
  if (static_cast<std::uint64_t>(facts.st_size) < segment.bytes)
    return import_error(pid, segment,
                        fmt::format("the file has only {} bytes, and {} are to be used: it was shortened; what is "
                                    "imported must keep its size",
                                    facts.st_size, segment.bytes),
                        Code::kInvalidUsage);
  const auto bytes = static_cast<std::uint64_t>(facts.st_size);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (address == MAP_FAILED) return import_error(pid, segment, fmt::format("mmap: {}", strerror(errno)), Code::kSystem);
  return Import{{static_cast<std::byte*>(address), [bytes](std::byte* memory) { munmap(memory, bytes); }}, bytes};
}

}  // namespace

// Never destroyed: mappings may be in use while the process exits.
ImportCache& ImportCache::process() {
  static auto& cache = []() -> ImportCache& {
    auto* made = new ImportCache;
    // A child must not inherit a table in the middle of a change.
    pthread_atfork([] { process().mutex_.lock(); }, [] { process().mutex_.unlock(); },
                   [] { process().mutex_.unlock(); });
    return *made;
  }();
  return cache;
}

Result<Import> ImportCache::hold(int pid, const SharedReference& segment) {
  if (pid <= 0 || segment.fd < 0)
    return import_error(pid, segment, "this refers to no segment", Code::kInvalidArgument);
  const std::lock_guard lock(mutex_);
  const std::pair key(pid, segment.file);
  const auto found = imports_.find(key);
  if (found != imports_.end() && found->second.bytes >= segment.bytes) return found->second;
  TUTTI_TRY_ASSIGN(Import import, open_segment(pid, segment));
  imports_[key] = import;
  return import;
}

Result<std::byte*> ImportCache::map(int pid, const SharedReference& segment) {
  TUTTI_TRY_ASSIGN(const Import import, hold(pid, segment));
  return import.memory.get();
}

void ImportCache::drop(int pid) {
  const std::lock_guard lock(mutex_);
  std::erase_if(imports_, [pid](const auto& item) { return item.first.first == pid; });
}

void ImportCache::drop(int pid, std::uint64_t file) {
  const std::lock_guard lock(mutex_);
  imports_.erase(std::pair(pid, file));
}

std::size_t ImportCache::size() const {
  const std::lock_guard lock(mutex_);
  return imports_.size();
}

Status read_process(int pid, std::uint64_t remote_address, void* local, std::size_t bytes) {
  return copy_process(process_vm_readv, "read", pid, remote_address, static_cast<std::byte*>(local), bytes);
}

Status write_process(int pid, std::uint64_t remote_address, const void* local, std::size_t bytes) {
  // iovec has no const variant; the kernel only reads.
  return copy_process(process_vm_writev, "write", pid, remote_address,
                      const_cast<std::byte*>(static_cast<const std::byte*>(local)), bytes);
}

Status probe_single_copy(int pid, std::uint64_t address, std::uint64_t expected_value) {
  std::uint64_t value = 0;
  TUTTI_TRY(read_process(pid, address, &value, sizeof(value)));
  if (value != expected_value)
    return error(Code::kSystem,
                 fmt::format("process {} is not the peer meant: {:#x} at {:#x} instead of {:#x} (different "
                             "pid namespaces?)",
                             pid, value, address, expected_value));
  // A sandbox may allow the one system call and refuse the other.
  return write_process(pid, address, &value, sizeof(value));
}

Status probe_mapping(int pid, const SharedReference& segment) {
  const auto memory = open_segment(pid, segment);
  return memory.ok() ? Status() : Status(memory.error());
}

}  // namespace tutti::transport
