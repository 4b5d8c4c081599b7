#include "transport/shared_memory.h"

#include "transport/memory_available.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace tutti::transport;
using tutti::Code;

namespace {

std::byte* allocate(std::size_t bytes) {
  auto memory = shared_allocate(bytes);
  REQUIRE(memory.ok());
  return static_cast<std::byte*>(memory.value());
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

}  // namespace

TEST_CASE("an allocation is zero-filled, aligned, writable and found") {
  std::byte* memory = allocate(100000);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 4096 == 0);
  for (std::size_t i = 0; i < 100000; ++i) REQUIRE(memory[i] == std::byte{0});
  std::memset(memory, 0x5a, 100000);

  const auto found = shared_find(memory + 300, 1000);
  REQUIRE(found);
  CHECK(found->offset == 300);
  CHECK(found->bytes >= 100000);
  CHECK(found->segment != 0);
  struct stat facts;
  REQUIRE(fstat(found->fd, &facts) == 0);
  CHECK(file_identity(facts) == found->file);
  CHECK((fcntl(found->fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(ftruncate(found->fd, 4096) != 0);  // sealed: nobody can cut it under our feet

  CHECK_FALSE(shared_find(memory - 1, 1));
  CHECK_FALSE(shared_find(memory, found->bytes + 1));
  int on_stack = 0;
  CHECK_FALSE(shared_find(&on_stack, 4));
  REQUIRE(shared_free(memory).ok());
  CHECK_FALSE(shared_find(memory, 1));
}

TEST_CASE("zero bytes give a pointer that can be freed") {
  std::byte* first = allocate(0);
  std::byte* second = allocate(0);
  CHECK(first != nullptr);
  CHECK(first != second);
  CHECK(shared_find(first, 0));
  CHECK(shared_free(first).ok());
  CHECK(shared_free(second).ok());
}

TEST_CASE("free wants the start of an allocation, once") {
  std::byte* memory = allocate(4096 * 4);
  CHECK(shared_free(memory + 4096).error().code == Code::kInvalidArgument);
  CHECK(shared_free(nullptr).error().code == Code::kInvalidArgument);
  CHECK(shared_free(memory).ok());
  CHECK(shared_free(memory).error().code == Code::kInvalidArgument);
}

TEST_CASE("too much is refused with numbers, and nothing is left open") {
  const std::size_t before = open_descriptors();
  const auto huge = shared_allocate(~std::size_t{0});
  REQUIRE_FALSE(huge.ok());
  CHECK(huge.error().code == Code::kInvalidArgument);
  const std::size_t wanted = std::size_t{1} << 46;
  const auto much = shared_allocate(wanted);
  REQUIRE_FALSE(much.ok());
  CHECK(much.error().code == Code::kSystem);
  CHECK_THAT(much.error().message, Catch::Contains(std::to_string(wanted)) && Catch::Contains("available"));
  CHECK(open_descriptors() == before);
  CHECK(memory_available_bytes() > 0);
}

TEST_CASE("an import is the same memory, and outlives the original") {
  const std::size_t before = open_descriptors();
  std::byte* original = allocate(8192);
  for (int i = 0; i < 8192; ++i) original[i] = static_cast<std::byte>(i * 7);
  auto fd = shared_fd(original + 5000);  // any address within
  REQUIRE(fd.ok());
  auto imported = shared_import(fd.value());
  REQUIRE(imported.ok());
  REQUIRE(close(fd.value()) == 0);
  auto* copy = static_cast<std::byte*>(imported.value());
  REQUIRE(copy != original);
  CHECK(std::memcmp(copy, original, 8192) == 0);
  copy[17] = std::byte{0xee};
  CHECK(original[17] == std::byte{0xee});
  CHECK(shared_find(copy, 1)->file == shared_find(original, 1)->file);
  CHECK(shared_find(copy, 1)->segment != shared_find(original, 1)->segment);
  REQUIRE(shared_free(original).ok());
  CHECK(copy[17] == std::byte{0xee});
  REQUIRE(shared_free(copy).ok());
  CHECK(open_descriptors() == before);
}

TEST_CASE("what is no shared memory is not imported") {
  CHECK(shared_import(-1).error().code == Code::kSystem);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(shared_import(ends[0]).error().code == Code::kInvalidArgument);
  close(ends[0]);
  close(ends[1]);
  const int empty = memfd_create("test-empty", MFD_CLOEXEC);
  CHECK(shared_import(empty).error().code == Code::kInvalidArgument);
  close(empty);
  int on_stack = 0;
  CHECK(shared_fd(&on_stack).error().code == Code::kInvalidArgument);
}

TEST_CASE("freed segments are counted, and told to whoever wants to know") {
  FreedList list, other;
  std::uint64_t news = 0;
  shared_tell(list, news);
  shared_tell(other, news);
  const std::uint64_t start = shared_freed_count();
  std::byte* memory = allocate(4096);
  const std::uint64_t file = shared_find(memory, 1)->file;
  CHECK(shared_freed_count() == start);
  CHECK_FALSE(list.has_more_than(0));
  REQUIRE(shared_free(memory).ok());
  CHECK(shared_freed_count() == start + 1);
  CHECK(news == 2);
  CHECK(list.has_more_than(0));

  std::uint64_t seen = 0;
  std::vector<std::uint64_t> found;
  CHECK(list.read(seen, found));
  CHECK(found == std::vector<std::uint64_t>{file});
  CHECK(seen == 1);
  CHECK_FALSE(list.has_more_than(seen));
  const pid_t child = fork();
  if (child == 0) _exit(shared_free(allocate(1)).ok() && !list.has_more_than(seen) && news == 2 ? 0 : 1);
  int state = -1;
  REQUIRE(waitpid(child, &state, 0) == child);
  CHECK(state == 0);
  shared_untell(list);
  shared_untell(list);
  REQUIRE(shared_free(allocate(1)).ok());
  CHECK_FALSE(list.has_more_than(seen));
  CHECK(other.count == 2);
  shared_untell(other);
}

TEST_CASE("a list of what was freed says when it has forgotten some") {
  FreedList list;
  std::uint64_t number = 0;
  for (const std::uint64_t more : {0, 1, 5, 62, 63, 64, 1000, 62}) {
    const std::uint64_t start = number;
    std::uint64_t seen = start;
    for (std::uint64_t i = 0; i < more; ++i) list.add(++number);
    std::vector<std::uint64_t> found;
    CHECK(list.read(seen, found) == (more < FreedList::kPlaces));
    CHECK(seen == number);
    if (more >= FreedList::kPlaces) continue;
    REQUIRE(found.size() == more);
    for (std::uint64_t i = 0; i < more; ++i) CHECK(found[i] == start + i + 1);
  }
}

TEST_CASE("a list that is read while others are added misses none unnoticed") {
  FreedList list;
  constexpr std::uint64_t kLast = 200000;
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= kLast; ++i) list.add(i);
  });
  std::uint64_t seen = 0;
  int wrong = 0;
  while (seen < kLast) {
    const std::uint64_t start = seen;
    std::vector<std::uint64_t> found;
    if (!list.read(seen, found)) continue;
    for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != start + i + 1;
    wrong += found.size() != seen - start;
  }
  writer.join();
  CHECK(wrong == 0);
}

TEST_CASE("files of two file systems are not one for the same inode") {
  const pid_t child = fork();
  if (child == 0) {
    char folders[2][32] = {"/tmp/tutti-test-XXXXXX", "/tmp/tutti-test-XXXXXX"};
    std::uint64_t files[2] = {}, inodes[2] = {};
    // Who may not do that has no two such file systems either. They end with the child.
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(0);
    for (int i = 0; i < 2; ++i) {
      if (!mkdtemp(folders[i])) _exit(0);
      if (mount("none", folders[i], "tmpfs", 0, nullptr) != 0) {
        rmdir(folders[i]);
        _exit(0);
      }
      const int fd = open((std::string(folders[i]) + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      struct stat facts;
      if (ftruncate(fd, 4096) != 0 || fstat(fd, &facts) != 0) _exit(1);
      const auto imported = shared_import(fd);
      if (!imported.ok()) _exit(2);
      files[i] = shared_find(imported.value(), 1)->file;
      inodes[i] = facts.st_ino;
      umount2(folders[i], MNT_DETACH);
      rmdir(folders[i]);
    }
    _exit(inodes[0] == inodes[1] && files[0] == files[1] ? 3 : 0);
  }
  int state = -1;
  REQUIRE(waitpid(child, &state, 0) == child);
  CHECK(state == 0);
}

TEST_CASE("a free closes its own descriptor only, whatever the program has done with descriptors") {
  std::byte* memory = allocate(4096);
  const int fd = shared_find(memory, 1)->fd;
  const int programs = open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(dup2(programs, fd) == fd);  // closed, and opened again as another
  CHECK(shared_fd(memory).error().code == Code::kSystem);
  CHECK(shared_free(memory).ok());
  CHECK(fcntl(fd, F_GETFD) >= 0);
  close(fd);
  close(programs);
  memory = allocate(4096);
  close(shared_find(memory, 1)->fd);
  CHECK(shared_free(memory).ok());
}

TEST_CASE("after fork both processes see one memory, and a free in the child takes nothing from the parent") {
  auto* memory = reinterpret_cast<volatile std::byte*>(allocate(4096));
  memory[0] = std::byte{1};
  const pid_t child = fork();
  if (child == 0) {
    if (memory[0] != std::byte{1}) _exit(1);
    if (!shared_find(const_cast<std::byte*>(memory), 1)) _exit(2);
    memory[1] = std::byte{2};
    _exit(shared_free(const_cast<std::byte*>(memory)).ok() ? 0 : 3);
  }
  int state = 0;
  REQUIRE(waitpid(child, &state, 0) == child);
  REQUIRE(WIFEXITED(state));
  CHECK(WEXITSTATUS(state) == 0);
  CHECK(memory[1] == std::byte{2});
  CHECK(shared_free(const_cast<std::byte*>(memory)).ok());
}

TEST_CASE("threads allocate, find and free at once") {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        auto memory = shared_allocate(4096 * (1 + t));
        if (!memory.ok()) {
          ++wrong;
          continue;
        }
        auto* bytes = static_cast<std::byte*>(memory.value());
        std::memset(bytes, t, 4096);
        const auto found = shared_find(bytes + 10, 100);
        if (!found || found->offset != 10 || found->bytes != std::uint64_t{4096} * (1 + t)) ++wrong;
        if (!shared_free(bytes).ok()) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
