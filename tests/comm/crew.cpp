#include "crew.h"
#include "hosts/placement.h"

#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

namespace crew {
namespace {

int entries(const char* directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  close(fd);
  return text;
}

/// Where the ids are left. A process of its own makes them, and has their threads: the one that forks the ranks has none,
/// now or in its next crew. A thread might hold a lock of a sanitizer's allocator at a fork, and the marks that
/// AddressSanitizer has made on its stack would be found by whatever the child maps there.
struct Ids {
  std::atomic<int> made;
  ncclUniqueId all[1];
};

/// Makes the ids and keeps their bootstraps until it is killed.
pid_t start_keeper(Ids* ids, int count) {
  const pid_t keeper = fork();
  if (keeper != 0) return keeper;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 0; i < count; ++i) {
    if (ncclGetUniqueId(&ids->all[i]) == ncclSuccess) continue;
    ids->made = -1;
    _exit(1);
  }
  ids->made = 1;
  while (true) pause();
}

[[noreturn]] void live(const Member& member, const Body& body, int report, unsigned limit_s, const Ids* ids) {
  alarm(limit_s);
  hosts::enter_host(member.rank);
  while (ids->made == 0) usleep(200);
  const std::string wrong = ids->made == 1 ? body(member) : "no id could be made";
  if (!wrong.empty() && write(report, wrong.data(), wrong.size()) < 0) _exit(3);
  _exit(0);
}

}  // namespace

std::vector<Ending> run(int ranks, const Body& body, unsigned limit_s, int id_count) {
  const std::size_t bytes = sizeof(Ids) + static_cast<std::size_t>(id_count) * sizeof(ncclUniqueId);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* ids = static_cast<Ids*>(memory);
  const pid_t keeper = start_keeper(ids, id_count);
  REQUIRE(keeper > 0);
  std::vector<pid_t> children;
  std::vector<int> reports;
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      for (int earlier : reports) close(earlier);
      live({rank, ranks, ids->all}, body, ends[1], limit_s, ids);
    }
    close(ends[1]);
    children.push_back(child);
    reports.push_back(ends[0]);
  }
  std::vector<Ending> endings;
  for (int rank = 0; rank < ranks; ++rank) {
    Ending ending;
    ending.wrong = read_all(reports[static_cast<std::size_t>(rank)]);
    int status = 0;
    waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
    ending.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) ending.signal = WTERMSIG(status);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      ending.wrong += "exit code " + std::to_string(WEXITSTATUS(status));
    endings.push_back(ending);
  }
  kill(keeper, SIGKILL);
  waitpid(keeper, nullptr, 0);
  munmap(memory, bytes);
  return endings;
}

void check(const std::vector<Ending>& endings, const std::vector<int>& victims) {
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    INFO("rank " << rank << " of " << endings.size() << ": signal " << endings[rank].signal << " "
                 << endings[rank].wrong);
    const bool victim = std::ranges::find(victims, static_cast<int>(rank)) != victims.end();
    CHECK(endings[rank].killed == victim);
    CHECK(endings[rank].signal == 0);
    CHECK(endings[rank].wrong.empty());
  }
}

void* shared_page() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  return page;
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Belongings Belongings::count() {
  return {entries("/proc/self/fd") - 1, entries("/proc/self/task"), entries("/dev/shm")};
}

std::string Belongings::grown_since(const Belongings& before) const {
  std::string text;
  const auto compare = [&text](const char* what, int now, int then) {
    if (now > then) text += std::to_string(now) + " " + what + ", " + std::to_string(then) + " before; ";
  };
  compare("descriptors", descriptors, before.descriptors);
  compare("threads", threads, before.threads);
  compare("files in /dev/shm", files, before.files);
  return text;
}

std::string left_behind(const Belongings& before) {
  std::string text;
  for (int tries = 0; tries < 1000; ++tries) {
    text = Belongings::count().grown_since(before);
    if (text.empty()) break;
    usleep(2000);
  }
  return text;
}

long resident_kb() {
  std::ifstream statm("/proc/self/statm");
  long total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4;
}

std::string fine(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return "";
  return std::string(what) + ": " + ncclGetErrorString(result) + ": " + ncclGetLastError(nullptr);
}

std::string refused(ncclResult_t result, ncclResult_t wanted, const std::vector<std::string>& parts, ncclComm_t comm) {
  const std::string reason = ncclGetLastError(comm);
  std::string wrong;
  if (result != wanted) wrong = "code " + std::to_string(result) + ", should be " + std::to_string(wanted) + "; ";
  for (const std::string& part : parts) {
    if (reason.find(part) == std::string::npos) wrong += "\"" + part + "\" is missing; ";
  }
  return wrong.empty() ? "" : wrong + "the message is: " + reason;
}

std::string init(const Member& m, ncclComm_t* comm, int id) {
  return fine(ncclCommInitRank(comm, m.ranks, m.ids[id], m.rank), "ncclCommInitRank");
}

std::string usable(ncclComm_t comm) {
  int ranks = 0;
  if (std::string wrong = fine(ncclCommCount(comm, &ranks), "ncclCommCount"); !wrong.empty()) return wrong;
  std::vector<int> ones(777, 1);
  std::string wrong =
      fine(ncclAllReduce(ones.data(), ones.data(), ones.size(), ncclInt, ncclSum, comm, nullptr), "a sum");
  if (!wrong.empty()) return wrong;
  for (int one : ones) {
    if (one != ranks) return "a sum of " + std::to_string(ranks) + " ones is " + std::to_string(one);
  }
  return "";
}

}  // namespace crew
