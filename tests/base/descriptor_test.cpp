#include "base/descriptor.h"

#include "base/mapping.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace {

/// What create_memory_file says in a child that gets EPERM for this system call; empty: no such filters here.
std::string refused_by_filter(unsigned call) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{4, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      _exit(0);
    const auto file = tutti::create_memory_file("tutti-test", 4096, tutti::Backing::kReserved);
    const std::string text = file.ok() ? "it was made" : file.error().message;
    _exit(write(ends[1], text.data(), text.size()) > 0 ? 0 : 1);
  }
  close(ends[1]);
  char text[1024] = {};
  CHECK(read(ends[0], text, sizeof(text) - 1) >= 0);
  close(ends[0]);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  return text;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

}  // namespace

TEST_CASE("a descriptor has one owner and is closed once", "[descriptor]") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  tutti::Descriptor reader(ends[0]);
  {
    tutti::Descriptor writer(ends[1]);
    tutti::Descriptor moved = std::move(writer);
    CHECK(moved.get() == ends[1]);
    CHECK_FALSE(static_cast<bool>(writer));
    CHECK(is_open(ends[1]));
  }
  CHECK_FALSE(is_open(ends[1]));
  const int raw = reader.release();
  reader.reset();
  CHECK(is_open(raw));
  reader.reset(raw);
  reader = tutti::Descriptor();
  CHECK_FALSE(is_open(raw));
}

TEST_CASE("a memory file is zero-filled, shared, sealed and closed on exec", "[mapping]") {
  for (const auto backing : {tutti::Backing::kReserved, tutti::Backing::kOnTouch}) {
    auto file = tutti::create_memory_file("tutti-test", 10000, backing);
    REQUIRE(file.ok());
    const int fd = file.value().get();
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(ftruncate(fd, 100) != 0);
    CHECK(ftruncate(fd, 20000) != 0);
    auto first = tutti::Mapping::map_file(fd, 10000);
    auto second = tutti::Mapping::map_file(fd, 10000);
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    for (std::size_t i = 0; i < 10000; ++i) REQUIRE(first.value().data()[i] == std::byte{0});
    std::memset(first.value().data() + 9000, 0x5a, 1000);
    CHECK(second.value().data()[9999] == std::byte{0x5a});
    auto too_long = tutti::Mapping::map_file(fd, 10001);
    REQUIRE_FALSE(too_long.ok());
    CHECK_THAT(too_long.error().message, Catch::Contains("10000") && Catch::Contains("10001"));
  }
}

TEST_CASE("a descriptor of a program without stdin goes above the standard ones", "[descriptor]") {
  const int kept = dup(STDIN_FILENO);
  if (kept >= 0) REQUIRE(close(STDIN_FILENO) == 0);
  const int lowest = open("/dev/null", O_RDWR | O_CLOEXEC);
  REQUIRE(lowest == STDIN_FILENO);
  const int moved = tutti::above_standard(lowest);
  CHECK(moved > STDERR_FILENO);
  CHECK_FALSE(is_open(STDIN_FILENO));
  CHECK(tutti::above_standard(moved) == moved);
  CHECK(tutti::above_standard(-1) == -1);
  CHECK(close(moved) == 0);
  if (kept >= 0) CHECK(dup2(kept, STDIN_FILENO) == STDIN_FILENO);
  if (kept >= 0) CHECK(close(kept) == 0);
}

TEST_CASE("a mapping moves and keeps its contents", "[mapping]") {
  auto made = tutti::Mapping::map_anonymous(4096);
  REQUIRE(made.ok());
  tutti::Mapping first = std::move(made).value();
  first.data()[4095] = std::byte{7};
  tutti::Mapping second;
  second = std::move(first);
  CHECK_FALSE(static_cast<bool>(first));
  CHECK(second.size() == 4096);
  CHECK(second.data()[4095] == std::byte{7});
}

TEST_CASE("shared memory that cannot be had is an error with the number of bytes", "[mapping]") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  // The signal would end the process.
  rlimit small = before;
  small.rlim_cur = 4096;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  auto file = tutti::create_memory_file("tutti-test", 123456789, tutti::Backing::kReserved);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  REQUIRE_FALSE(file.ok());
  CHECK(file.error().code == tutti::Code::kSystem);
  CHECK_THAT(file.error().message, Catch::Contains("123456789") && Catch::Contains("ulimit -f"));
}

TEST_CASE("who forbids shared memory is named as what is short", "[mapping]") {
  for (const unsigned call : {unsigned{SYS_memfd_create}, unsigned{SYS_fallocate}}) {
    const std::string reason = refused_by_filter(call);
    if (reason.empty()) continue;
    CHECK_THAT(reason, Catch::Contains("seccomp") && Catch::Contains("Operation not permitted"));
    CHECK_THAT(reason, !Catch::Contains("memory limit"));
  }
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto file = tutti::create_memory_file("tutti-test", 4096, tutti::Backing::kReserved);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE_FALSE(file.ok());
  CHECK_THAT(file.error().message, Catch::Contains("ulimit -n"));
}
