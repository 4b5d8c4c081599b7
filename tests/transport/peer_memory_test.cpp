#include "transport/peer_memory.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

using namespace tutti::transport;
using tutti::Code;

namespace {

/// What the peer tells of itself; lives in memory that both share.
struct Letter {
  SharedReference segment;
  SharedReference second;
  std::uint64_t private_address = 0;
};

/// A child process that prepares, tells, and then does one thing per byte it is sent.
class PeerProcess {
 public:
  PeerProcess(std::function<void(Letter&)> prepare, std::function<void(char)> act) {
    letter_ = static_cast<Letter*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    REQUIRE(pipe(to_) == 0);
    REQUIRE(pipe(from_) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      close(to_[1]);
      prepare(*letter_);
      char command = 'r';
      do {
        if (command != 'r') act(command);
        if (write(from_[1], &command, 1) != 1) _exit(9);
      } while (read(to_[0], &command, 1) == 1);
      _exit(0);
    }
    close(to_[0]);
    close(from_[1]);
    wait_reply();
  }
  ~PeerProcess() {
    end();
    close(from_[0]);
    munmap(letter_, 4096);
  }
  void command(char what) {
    REQUIRE(write(to_[1], &what, 1) == 1);
    wait_reply();
  }
  void end() {
    if (ended_) return;
    ended_ = true;
    close(to_[1]);
    waitpid(pid_, nullptr, 0);
  }
  const Letter& letter() const { return *letter_; }
  int pid() const { return pid_; }

 private:
  void wait_reply() {
    char reply = 0;
    REQUIRE(read(from_[0], &reply, 1) == 1);
  }
  Letter* letter_ = nullptr;
  int to_[2];
  int from_[2];
  int pid_ = -1;
  bool ended_ = false;
};

std::byte pattern(std::size_t position) { return static_cast<std::byte>(position * 31 + 5); }

std::byte* shared_with_pattern(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(shared_allocate(bytes).value());
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = pattern(i);
  return memory;
}

}  // namespace

TEST_CASE("a peer's segment is mapped once, shared both ways, and dropped") {
  std::byte* theirs = nullptr;
  PeerProcess peer(
      [&](Letter& letter) {
        theirs = shared_with_pattern(20000);
        letter.segment = *shared_find(theirs + 100, 50);
      },
      [&](char) { theirs[4] = theirs[3]; });
  ImportCache cache;
  auto base = cache.map(peer.pid(), peer.letter().segment);
  REQUIRE(base.ok());
  std::byte* memory = base.value();
  CHECK(peer.letter().segment.offset == 100);
  for (std::size_t i = 0; i < 20000; ++i) REQUIRE(memory[i] == pattern(i));
  memory[3] = std::byte{0x77};
  peer.command('c');
  CHECK(memory[4] == std::byte{0x77});
  CHECK(cache.map(peer.pid(), peer.letter().segment).value() == memory);
  CHECK(cache.size() == 1);

  auto held = cache.hold(peer.pid(), peer.letter().segment).value();
  cache.drop(peer.pid());
  CHECK(cache.size() == 0);
  CHECK(held.memory.get()[4] == std::byte{0x77});  // still mapped
  peer.end();
  CHECK(held.memory.get()[4] == std::byte{0x77});  // the memory outlives its owner
}

TEST_CASE("a freed segment and an ended peer are remote errors that name the process") {
  std::byte* theirs = nullptr;
  PeerProcess peer(
      [&](Letter& letter) {
        theirs = shared_with_pattern(4096);
        letter.segment = *shared_find(theirs, 1);
      },
      [&](char what) {
        if (what == 'f') (void)shared_free(theirs);
        if (what == 'n') (void)shared_allocate(4096);  // takes the same descriptor number
      });
  ImportCache cache;
  const std::string name = std::to_string(peer.pid());
  peer.command('f');
  auto freed = cache.map(peer.pid(), peer.letter().segment);
  REQUIRE_FALSE(freed.ok());
  CHECK(freed.error().code == Code::kRemote);
  CHECK_THAT(freed.error().message, Catch::Contains(name));
  peer.command('n');
  auto replaced = cache.map(peer.pid(), peer.letter().segment);
  REQUIRE_FALSE(replaced.ok());
  CHECK(replaced.error().code == Code::kRemote);
  peer.end();
  auto ended = cache.map(peer.pid(), peer.letter().segment);
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().code == Code::kRemote);
  CHECK_THAT(ended.error().message, Catch::Contains(name));
  CHECK(cache.size() == 0);
}

TEST_CASE("a process that cannot be seen has not ended") {
  PeerProcess peer([](Letter& letter) { letter.segment = *shared_find(shared_with_pattern(4096), 1); }, [](char) {});
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    // A folder without /proc. Who may not do that has no such problem.
    if (chroot("/sys") != 0) _exit(0);
    const auto seen = ImportCache().map(peer.pid(), peer.letter().segment);
    const std::string text = seen.ok() ? "it was mapped" : seen.error().message;
    _exit(write(ends[1], text.data(), text.size()) > 0 && !seen.ok() && seen.error().code == Code::kSystem ? 0 : 1);
  }
  close(ends[1]);
  char text[1024] = {};
  const ssize_t got = read(ends[0], text, sizeof(text) - 1);
  close(ends[0]);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  INFO(text);
  CHECK(status == 0);
  if (got > 0) CHECK_THAT(text, Catch::Contains("is not seen from here"));
}

TEST_CASE("nonsense references are refused") {
  ImportCache cache;
  CHECK(cache.map(0, {}).error().code == Code::kInvalidArgument);
  CHECK(cache.map(getpid(), {}).error().code == Code::kInvalidArgument);
  std::byte* own = shared_with_pattern(4096);
  SharedReference too_long = *shared_find(own, 1);
  too_long.bytes *= 2;
  CHECK(cache.map(getpid(), too_long).error().code == Code::kInvalidUsage);  // would end in SIGBUS
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  SharedReference not_memory = *shared_find(own, 1);
  not_memory.fd = ends[0];
  CHECK_FALSE(cache.map(getpid(), not_memory).ok());
  close(ends[0]);
  close(ends[1]);
  CHECK(shared_free(own).ok());
}

TEST_CASE("drop of one file leaves the others") {
  PeerProcess peer(
      [&](Letter& letter) {
        letter.segment = *shared_find(shared_with_pattern(4096), 1);
        letter.second = *shared_find(shared_with_pattern(8192), 1);
      },
      [](char) {});
  ImportCache cache;
  REQUIRE(cache.map(peer.pid(), peer.letter().segment).ok());
  REQUIRE(cache.map(peer.pid(), peer.letter().second).ok());
  cache.drop(peer.pid(), peer.letter().segment.file);
  cache.drop(peer.pid(), 12345);
  cache.drop(1);
  CHECK(cache.size() == 1);
  CHECK(cache.map(peer.pid(), peer.letter().second).value()[8191] == pattern(8191));
}

TEST_CASE("private memory of a peer is read and written by a single copy") {
  std::vector<std::byte> theirs;
  bool received = false;
  PeerProcess peer(
      [&](Letter& letter) {
        theirs.resize(3000001);
        for (std::size_t i = 0; i < theirs.size(); ++i) theirs[i] = pattern(i);
        letter.private_address = reinterpret_cast<std::uint64_t>(theirs.data());
      },
      [&](char) {
        received = true;
        for (std::size_t i = 0; i < 1000; ++i) received = received && theirs[i + 7] == pattern(i + 99);
        theirs[0] = std::byte{received};
      });
  const std::uint64_t address = peer.letter().private_address;
  std::uint64_t head = 0;
  auto probed = read_process(peer.pid(), address, &head, sizeof(head));
  if (!probed.ok()) {
    WARN("single copies are not possible here: " << probed.error().message);
    return;
  }
  CHECK(probe_single_copy(peer.pid(), address, head).ok());
  CHECK(probe_single_copy(peer.pid(), address, head + 1).error().code == Code::kSystem);

  std::vector<std::byte> here(3000001, std::byte{0xcd});
  REQUIRE(read_process(peer.pid(), address, here.data(), here.size()).ok());
  for (std::size_t i = 0; i < here.size(); ++i) REQUIRE(here[i] == pattern(i));
  CHECK(read_process(peer.pid(), address, nullptr, 0).ok());

  for (std::size_t i = 0; i < 1000; ++i) here[i] = pattern(i + 99);
  REQUIRE(write_process(peer.pid(), address + 7, here.data(), 1000).ok());
  peer.command('v');
  std::byte verdict{};
  REQUIRE(read_process(peer.pid(), address, &verdict, 1).ok());
  CHECK(verdict == std::byte{1});
}

TEST_CASE("the probe of single copies finds that writing alone is refused") {
  std::uint64_t theirs = 42;
  PeerProcess peer([&](Letter& letter) { letter.private_address = reinterpret_cast<std::uint64_t>(&theirs); },
                   [](char) {});
  const std::uint64_t address = peer.letter().private_address;
  if (!probe_single_copy(peer.pid(), address, 42).ok()) {
    WARN("single copies are not possible here");
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{4, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      _exit(0);
    const auto probed = probe_single_copy(peer.pid(), address, 42);
    _exit(!probed.ok() && probed.error().message.find("cannot write 8 bytes") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a single copy that cannot be says which process and why") {
  char here[16];
  // The second of the two pages is not mapped: a partial transfer, then the error.
  auto* pages = static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(munmap(pages + 4096, 4096) == 0);
  const auto address = reinterpret_cast<std::uint64_t>(pages);
  const std::string self = std::to_string(getpid());
  auto across = read_process(getpid(), address + 4096 - 8, here, 16);
  if (!across.ok() && across.error().message.find("not mapped") == std::string::npos) {
    WARN("single copies are not possible here: " << across.error().message);
    return;
  }
  REQUIRE_FALSE(across.ok());
  CHECK(across.error().code == Code::kSystem);
  CHECK_THAT(across.error().message, Catch::Contains(self));
  CHECK_FALSE(write_process(getpid(), address + 4096, here, 16).ok());
  munmap(pages, 4096);

  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  auto gone = read_process(child, address, here, 16);
  REQUIRE_FALSE(gone.ok());
  CHECK(gone.error().code == Code::kRemote);
  CHECK_THAT(gone.error().message, Catch::Contains(std::to_string(child)));
  CHECK(read_process(-1, address, here, 16).error().code == Code::kInvalidArgument);
  CHECK(probe_single_copy(child, address, 0).error().code == Code::kRemote);
}
