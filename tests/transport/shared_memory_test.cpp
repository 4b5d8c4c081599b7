#include "transport/shared_memory.h"

#include "transport/memory_available.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstring>
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
  CHECK(facts.st_ino == found->inode);
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
  CHECK(shared_find(copy, 1)->inode == shared_find(original, 1)->inode);
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

TEST_CASE("freed segments are counted and named") {
  const std::uint64_t start = shared_freed_count();
  std::byte* memory = allocate(4096);
  const std::uint64_t inode = shared_find(memory, 1)->inode;
  CHECK(shared_freed_since(start)->empty());
  REQUIRE(shared_free(memory).ok());
  CHECK(shared_freed_count() == start + 1);
  const auto freed = shared_freed_since(start);
  REQUIRE(freed);
  CHECK(*freed == std::vector<std::uint64_t>{inode});
  for (int i = 0; i < 300; ++i) REQUIRE(shared_free(allocate(1)).ok());
  CHECK_FALSE(shared_freed_since(start));  // too long ago
  CHECK(shared_freed_since(start + 1 + 300 - 10)->size() == 10);
  CHECK_FALSE(shared_freed_since(shared_freed_count() + 1));  // the future
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
