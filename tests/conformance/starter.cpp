#include "starter.h"

#include "hosts/placement.h"
#include "member.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <tutti/launch.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace tutti::conformance {
namespace {

constexpr auto kStartPatience = std::chrono::seconds(60);
constexpr auto kEndPatience = std::chrono::seconds(20);

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  char path[4096] = "";
  if (readlink("/proc/self/exe", path, sizeof path - 1) > 0) words.at(0) = path;
  return words;
}

bool ranks_leave_mpi() { return std::getenv("TEST_LEAVE_MPI") != nullptr; }

/// Not by tuttiLaunchDetect: the library must not have read the environment before NCCL_HOSTID is there.
int launchers_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return -1;
}

}  // namespace

std::string starter_program() {
  const char* program = std::getenv("TEST_STARTER");
  return program == nullptr ? "" : program;
}

Starter::Starter(const std::string& backend, int ranks) : ranks_(ranks) {
  char folder[] = "/tmp/tutti-starter-XXXXXX";
  if (mkdtemp(folder) == nullptr) std::abort();
  folder_ = folder;
  path_ = folder_ + "/socket";
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(path_);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, ranks) != 0) {
    problem_ = fmt::format("{}: {}", path_, std::strerror(errno));
    return;
  }
  std::vector<std::string> words = own_command_line();
  words.insert(words.begin(), {starter_program(), std::to_string(ranks)});
  words.insert(words.end(), {"--backend", backend, "--member", path_});
  std::vector<char*> line;
  for (std::string& word : words) line.push_back(word.data());
  line.push_back(nullptr);
  std::fflush(nullptr);
  child_ = fork();
  if (child_ != 0) return;
  setpgid(0, 0);
  execvp(line[0], line.data());
  std::perror(line[0]);
  _exit(127);
}

Starter::~Starter() {
  if (child_ > 0) {
    // SIGTERM is what launchers pass on to the ranks of other hosts.
    kill(-child_, SIGTERM);
    usleep(500000);
    kill(-child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  close(listener_);
  unlink(path_.c_str());
  rmdir(folder_.c_str());
}

std::string Starter::end() {
  const auto end = std::chrono::steady_clock::now() + kEndPatience;
  int status = 0;
  while (child_ > 0) {
    if (waitpid(child_, &status, WNOHANG) == child_) {
      child_ = -1;
    } else if (std::chrono::steady_clock::now() > end) {
      return fmt::format("{} has not ended {} s after its ranks were sent away", starter_program(),
                         kEndPatience.count());
    }
    usleep(5000);
  }
  // Where ranks end without MPI_Finalize, the launcher may take the first one that has ended for one that failed, and kill the others.
  if (status == 0 || ranks_leave_mpi()) return "";
  return fmt::format("{} has ended with status {:#x}", starter_program(), status);
}

std::string Starter::wait(std::vector<int>& sockets) {
  sockets.assign(static_cast<std::size_t>(ranks_), -1);
  const auto end = std::chrono::steady_clock::now() + kStartPatience;
  for (int come = 0; come < ranks_ && problem_.empty();) {
    pollfd waiting{listener_, POLLIN, 0};
    int status = 0;
    if (poll(&waiting, 1, 100) == 0) {
      if (waitpid(child_, &status, WNOHANG) == child_) {
        child_ = -1;
        problem_ = fmt::format("{} has ended with status {:#x} when {} of {} ranks had come", starter_program(), status,
                               come, ranks_);
      } else if (std::chrono::steady_clock::now() > end) {
        problem_ = fmt::format("{} of {} ranks have come in {} s", come, ranks_, kStartPatience.count());
      }
      continue;
    }
    const int one = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    int rank = -1;
    if (!receive(one, rank) || rank < 0 || rank >= ranks_ || sockets[static_cast<std::size_t>(rank)] >= 0) {
      problem_ = fmt::format("a rank says that it is rank {} of {}", rank, ranks_);
      close(one);
      continue;
    }
    sockets[static_cast<std::size_t>(rank)] = one;
    ++come;
  }
  return problem_;
}

int be_member(const SessionOptions& options, const std::string& socket_path, const std::vector<Case>& cases) {
  const int rank = launchers_rank();
  const hosts::Places places = hosts::ranks_per_host(options.ranks_per_host);
  if (rank >= 0) setenv("NCCL_HOSTID", fmt::format("host-{}", hosts::host_of(rank, places)).c_str(), 1);
  tuttiLaunchInfo_t info;
  if (tuttiLaunchDetect(&info) != ncclSuccess || tuttiLaunchInitMpi() != ncclSuccess) {
    fmt::print(stderr, "rank {}: {}\n", rank, ncclGetLastError(nullptr));
    return 1;
  }
  const int orders = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(socket_path);
  if (connect(orders, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || !send(orders, info.rank)) {
    fmt::print(stderr, "rank {}: {}: {}\n", info.rank, socket_path, std::strerror(errno));
    return 1;
  }
  live(options, info.rank, info.size, orders, orders, &cases);
  close(orders);
  if (ranks_leave_mpi()) _exit(0);
  if (tuttiLaunchFinalizeMpi() == ncclSuccess) return 0;
  fmt::print(stderr, "rank {}: {}\n", info.rank, ncclGetLastError(nullptr));
  return 1;
}

}  // namespace tutti::conformance
