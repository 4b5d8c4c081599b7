#include "transport/shared_memory.h"

#include "base/mapping.h"
#include "base/round_up.h"
#include "transport/address_table.h"
#include "transport/memory_available.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace tutti::transport {
namespace {

struct Told {
  FreedList* list;
  std::uint64_t* news;
};

struct State {
  AddressTable table;
  std::mutex mutex;  ///< of writers, and of `told`
  std::uint32_t last_number = 0;
  std::atomic<std::uint64_t> freed_count{0};
  std::vector<Told> told;
};

// Never destroyed: threads that outlive main may still look addresses up.
State& state() {
  static State& created = [&]() -> State& {
    auto* made = new State;
    // A child must not inherit a table in the middle of a change.
    pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                   [] {
                     state().told.clear();
                     state().mutex.unlock();
                   });
    return *made;
  }();
  return created;
}

Error no_memory(std::uint64_t bytes, const std::string& reason) {
  const std::uint64_t available = memory_available_bytes();
  if (available == std::numeric_limits<std::uint64_t>::max()) {  // the system does not tell
    return error(Code::kSystem, fmt::format("cannot allocate {} bytes ({:.1f} MiB) of shared memory: {}", bytes,
                                            static_cast<double>(bytes) / (1 << 20), reason));
  }
  return error(
      Code::kSystem,
      fmt::format("cannot allocate {} bytes ({:.1f} MiB) of shared memory: {}; {:.1f} MiB are available. Use "
                  "smaller buffers, free memory, or raise the container's memory limit",
                  bytes, static_cast<double>(bytes) / (1 << 20), reason, static_cast<double>(available) / (1 << 20)));
}

Result<void*> map_whole(int fd, std::uint64_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) {
    if (errno == ENOMEM) return no_memory(bytes, fmt::format("mmap: {}", strerror(errno)));
    return system_error(fmt::format("cannot map {} bytes of shared memory (descriptor {})", bytes, fd));
  }
  return address;
}

/// With the lock held. Who finds the new count in an announcement finds the file in the list.
void count_freed(State& shared, std::uint64_t file) {
  for (const Told& told : shared.told) {
    told.list->add(file);
    std::atomic_ref(*told.news).fetch_add(1, std::memory_order_release);
  }
  shared.freed_count.fetch_add(1, std::memory_order_release);
}

/// Whether the descriptor is still that of the file: a program may have closed all that it found open, and have others by these numbers.
bool is_still(int fd, std::uint64_t file) {
  struct stat facts;
  return fstat(fd, &facts) == 0 && file_identity(facts) == file;
}

/// Maps the file and enters it into the table, which owns the descriptor from then on.
Result<void*> enter(Descriptor& fd, std::uint64_t bytes, std::uint64_t file) {
  TUTTI_TRY_ASSIGN(void* const address, map_whole(fd.get(), bytes));
  const auto unmap = [bytes](void* start) { munmap(start, bytes); };
  std::unique_ptr<void, decltype(unmap)> mapped(address, unmap);
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  if (shared.last_number == std::numeric_limits<std::uint32_t>::max())
    return error(Code::kInvalidUsage, "this process has made 2^32 shared allocations; it cannot number another");
  // The same file, which has grown since: what others have mapped of it is too short now. They let go of it as of what was freed.
  if (shared.table.has_shorter(file, bytes)) count_freed(shared, file);
  shared.table.insert({.start = reinterpret_cast<std::uintptr_t>(address),
                       .bytes = bytes,
                       .file = file,
                       .number = ++shared.last_number,
                       .fd = fd.get()});
  (void)fd.release();
  return mapped.release();
}

}  // namespace

/// Devices have small numbers, which are spread over all bits.
std::uint64_t file_identity(const struct stat& facts) {
  return static_cast<std::uint64_t>(facts.st_ino) ^ static_cast<std::uint64_t>(facts.st_dev) * 0x9e3779b97f4a7c15;
}

Result<void*> shared_allocate(std::size_t bytes) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - page)
    return error(Code::kInvalidArgument, fmt::format("cannot allocate {} bytes of shared memory: more than an address "
                                                     "space holds",
                                                     bytes));
  const std::uint64_t rounded = std::max<std::uint64_t>(round_up(bytes, page), page);
  // Asked before, because the kernel's own answer to too much shared memory is to kill a process.
  if (rounded > memory_available_bytes()) return no_memory(rounded, "it is more than there is");

  auto file = create_memory_file("tutti-shared", rounded, Backing::kReserved);
  if (!file.ok()) return error(Code::kSystem, "cannot allocate shared memory: " + file.error().message);
  Descriptor fd = std::move(file).value();
  struct stat facts;
  if (fstat(fd.get(), &facts) != 0) return system_error("cannot make a shared allocation: fstat");
  return enter(fd, rounded, file_identity(facts));
}

Result<void*> shared_import(int fd) {
  struct stat facts;
  if (fstat(fd, &facts) != 0) return system_error(fmt::format("cannot import descriptor {}: fstat", fd));
  if (!S_ISREG(facts.st_mode) || facts.st_size <= 0)
    return error(Code::kInvalidArgument,
                 fmt::format("cannot import descriptor {}: it is not shared memory, or is empty "
                             "(give one from tuttiMemAlloc or memfd_create)",
                             fd));
  Descriptor own(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (own.get() < 0) return system_error(fmt::format("cannot import descriptor {}: fcntl(F_DUPFD_CLOEXEC)", fd));
  return enter(own, static_cast<std::uint64_t>(facts.st_size), file_identity(facts));
}

Result<int> shared_fd(const void* address) {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  const auto found = shared.table.find(reinterpret_cast<std::uintptr_t>(address), 1);
  if (!found)
    return error(Code::kInvalidArgument,
                 fmt::format("{} does not lie in a shared allocation of this process", fmt::ptr(address)));
  if (!is_still(found->fd, found->file))
    return error(Code::kSystem, "the descriptor of a shared allocation is gone: the program has closed it");
  const int copy = fcntl(found->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (copy < 0) return system_error("cannot duplicate the descriptor of a shared allocation");
  return copy;
}

Status shared_free(void* address) {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  const auto removed = shared.table.remove(reinterpret_cast<std::uintptr_t>(address));
  if (!removed)
    return error(Code::kInvalidArgument, fmt::format("cannot free {}: it is not the start of a shared allocation of "
                                                     "this process (freed already?)",
                                                     fmt::ptr(address)));
  munmap(address, removed->bytes);
  if (is_still(removed->fd, removed->file)) close(removed->fd);
  count_freed(shared, removed->file);
  return {};
}

std::optional<SharedReference> shared_find(const void* address, std::size_t bytes) {
  return state().table.find(reinterpret_cast<std::uintptr_t>(address), bytes);
}

std::uint64_t shared_version() { return state().table.version(); }

std::uint64_t shared_freed_count() { return state().freed_count.load(std::memory_order_acquire); }

void shared_tell(FreedList& list, std::uint64_t& news) {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  shared.told.push_back({&list, &news});
}

void shared_untell(const FreedList& list) {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  std::erase_if(shared.told, [&](const Told& told) { return told.list == &list; });
}

}  // namespace tutti::transport
