// tutti/launch.h: detection from the launchers' variables, the meeting of ranks, and ranks forked by the program.
#include <tutti/launch.h>

#include <catch2/catch.hpp>

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/// How often a thread of the library's that answers ranks has asked for random bytes, which takes it a while here.
std::atomic<int> asked{0};

}  // namespace

/// Before the C library's.
extern "C" __attribute__((visibility("default"))) ssize_t getrandom(void* to, size_t bytes, unsigned flags) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  if (std::strcmp(name, "tutti-root") == 0) {
    ++asked;
    usleep(200000);
  }
  return syscall(SYS_getrandom, to, bytes, flags);
}

namespace {

using Variables = std::map<std::string, std::string>;

void forget_launchers() {
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "PMIX_NAMESPACE",
                           "PMI_JOBID",
                           "PMI_PORT",
                           "PMI_ID",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_STEP_NUM_TASKS",
                           "SLURM_LOCALID",
                           "SLURM_JOB_ID",
                           "SLURM_STEP_ID",
                           "SLURM_NNODES",
                           "SLURM_STEP_NUM_NODES",
                           "SLURM_NODEID",
                           "SLURM_STEP_TASKS_PER_NODE",
                           "SLURM_STEP_NODELIST",
                           "ENVIRONMENT",
                           "TUTTI_RENDEZVOUS",
                           "TUTTI_RENDEZVOUS_TIMEOUT_S"})
    unsetenv(name);
}

void set(const Variables& variables) {
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
}

tuttiLaunchInfo_t detected(const Variables& variables) {
  forget_launchers();
  set(variables);
  tuttiLaunchInfo_t info;
  REQUIRE(tuttiLaunchDetect(&info) == ncclSuccess);
  return info;
}

/// Runs a rank in a process of its own and gives its exit code.
pid_t start(const Variables& variables, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  signal(SIGTERM, SIG_DFL);  // not Catch2's handler
  forget_launchers();
  set(variables);
  _exit(body());
}

int ended(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// It can still be asked how.
bool has_ended(pid_t child) {
  siginfo_t found{};
  return waitid(P_PID, static_cast<id_t>(child), &found, WEXITED | WNOHANG | WNOWAIT) == 0 && found.si_pid == child;
}

Variables torchrun(int rank, int size, const std::string& port, const std::string& restart = "0") {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"TORCHELASTIC_RUN_ID", "launch-test-" + std::to_string(getppid())},
          {"TORCHELASTIC_RESTART_COUNT", restart},
          {"TUTTI_RENDEZVOUS_TIMEOUT_S", "5"}};
}

/// 0, or which step failed. The ids that ranks got are compared through an all_reduce-free channel: a pipe.
int get_ids(int count, int pipe) {
  tuttiLaunchInfo_t info;
  if (tuttiLaunchDetect(&info) != ncclSuccess) return 1;
  for (int n = 0; n < count; ++n) {
    ncclUniqueId id;
    if (tuttiLaunchUniqueId(&info, &id) != ncclSuccess) return 2;
    if (write(pipe, &id, sizeof(id)) != static_cast<ssize_t>(sizeof(id))) return 3;
  }
  return 0;
}

/// Every rank's ids, one string per rank, in rank order; starts them in reverse order.
std::vector<std::string> meet(const std::vector<Variables>& ranks, int ids) {
  std::vector<std::string> all(ranks.size());
  std::vector<pid_t> children(ranks.size());
  std::vector<int> ends(ranks.size());
  for (std::size_t rank = ranks.size(); rank-- > 0;) {
    int pipe_ends[2];
    REQUIRE(pipe(pipe_ends) == 0);
    ends[rank] = pipe_ends[0];
    children[rank] = start(ranks[rank], [&] { return get_ids(ids, pipe_ends[1]); });
    close(pipe_ends[1]);
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    char buffer[4096];
    for (ssize_t got; (got = read(ends[rank], buffer, sizeof(buffer))) > 0;)
      all[rank].append(buffer, static_cast<std::size_t>(got));
    close(ends[rank]);
    CHECK(ended(children[rank]) == 0);
    CHECK(all[rank].size() == static_cast<std::size_t>(ids) * sizeof(ncclUniqueId));
  }
  return all;
}

}  // namespace

TEST_CASE("without a launcher a process is rank 0 of 1") {
  const tuttiLaunchInfo_t info = detected({});
  CHECK(info.rank == 0);
  CHECK(info.size == 1);
  CHECK(std::string(info.launcher) == "none");
  ncclUniqueId id;
  CHECK(tuttiLaunchUniqueId(&info, &id) == ncclSuccess);
}

TEST_CASE("where nothing says where the ranks of several hosts meet, Open MPI's are to be brought together by it") {
  const Variables two_hosts = {{"OMPI_COMM_WORLD_RANK", "2"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const auto wanted = [](Variables variables, const Variables& more) {
    for (const auto& [name, value] : more) variables[name] = value;
    const tuttiLaunchInfo_t info = detected(variables);
    int wants = -1;
    REQUIRE(tuttiLaunchWantsMpi(&info, &wants) == ncclSuccess);
    return wants;
  };
  CHECK(wanted(two_hosts, {}) == 1);
  CHECK(wanted(two_hosts, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}) == 0);
  CHECK(wanted(two_hosts, {{"TUTTI_RENDEZVOUS", "tcp:box-1:4711"}}) == 0);
  CHECK(wanted(two_hosts, {{"TUTTI_RENDEZVOUS", "file:/nowhere"}}) == 0);  // which is an error later
  CHECK(wanted(two_hosts, {{"MASTER_ADDR", "box-1"}}) == 0);
  CHECK(wanted({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}}, {}) == 0);
  CHECK(wanted({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}}, {}) == 0);
  CHECK(wanted({}, {}) == 0);

  unsetenv("MPI_LOCALRANKID");
  unsetenv("MPI_LOCALNRANKS");
  int wants = 0;
  tuttiLaunchInfo_t info{};
  CHECK(tuttiLaunchWantsMpi(nullptr, &wants) == ncclInvalidArgument);
  CHECK(tuttiLaunchWantsMpi(&info, &wants) == ncclInvalidArgument);
  info = detected(two_hosts);
  CHECK(tuttiLaunchWantsMpi(&info, nullptr) == ncclInvalidArgument);
}

TEST_CASE("where ranks of several hosts are to meet is asked for, with what was set in its place") {
  for (const std::string place : {"", "file:/nowhere", "box-1"}) {
    Variables variables = {{"OMPI_COMM_WORLD_RANK", "0"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
    if (!place.empty()) variables["TUTTI_RENDEZVOUS"] = place;
    const tuttiLaunchInfo_t info = detected(variables);
    ncclUniqueId id;
    CHECK(tuttiLaunchUniqueId(&info, &id) == ncclInvalidUsage);
    const std::string reason = ncclGetLastError(nullptr);
    CAPTURE(reason);
    CHECK(reason.find("1 of the job's 2 ranks are on this host") != std::string::npos);
    CHECK(reason.find("--net mpi") != std::string::npos);
    const bool is_named = reason.find("TUTTI_RENDEZVOUS=\"" + place + "\" does not name") != std::string::npos;
    CHECK(is_named == !place.empty());
  }
}

TEST_CASE("the launchers' variables") {
  tuttiLaunchInfo_t info = detected({{"OMPI_COMM_WORLD_RANK", "2"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                     {"PMIX_NAMESPACE", "77"},
                                     {"SLURM_PROCID", "0"},
                                     {"SLURM_NTASKS", "9"}});
  CHECK(std::string(info.launcher) == "mpirun");
  CHECK(info.rank == 2);
  CHECK(info.size == 4);
  CHECK(info.local_rank == 1);
  CHECK(info.local_size == 2);

  info = detected({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  CHECK(std::string(info.launcher) == "mpirun");
  CHECK(info.rank == 1);
  CHECK(info.local_rank == -1);
  CHECK(info.job[0] != 0);

  info = detected({{"PMI_PORT", "box-1:4711"}, {"PMI_ID", "1"}, {"WORLD_SIZE", "3"}});
  CHECK(std::string(info.launcher) == "mpirun");
  CHECK(info.rank == 1);
  CHECK(info.size == 3);

  info = detected({{"SLURM_PROCID", "1"},
                   {"SLURM_NTASKS", "2"},
                   {"SLURM_LOCALID", "1"},
                   {"SLURM_JOB_ID", "5"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_NNODES", "1"}});
  CHECK(std::string(info.launcher) == "srun");
  CHECK(info.size == 2);
  CHECK(info.local_size == 2);

  info = detected({{"SLURM_PROCID", "2"},
                   {"SLURM_NTASKS", "3"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_NNODES", "2"},
                   {"SLURM_NODEID", "1"},
                   {"SLURM_STEP_TASKS_PER_NODE", "2,1"}});
  CHECK(info.size == 3);
  CHECK(info.local_size == 1);

  info = detected({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "5"}, {"ENVIRONMENT", "BATCH"}});
  CHECK(std::string(info.launcher) == "none");

  info = detected(torchrun(3, 8, "29500"));
  CHECK(std::string(info.launcher) == "torchrun");
  CHECK(info.rank == 3);
  const std::string first_start = info.job;
  CHECK(first_start != detected(torchrun(3, 8, "29500", "1")).job);
  CHECK(first_start == detected(torchrun(4, 8, "29500")).job);
}

TEST_CASE("of what is set by halves the other launchers' variables come first") {
  CHECK(detected({{"PMI_RANK", "1"}, {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}, {"SLURM_STEP_ID", "0"}}).rank == 2);
  CHECK(detected({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size == 1);
}

TEST_CASE("variables that make no sense are named") {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}, "OMPI_COMM_WORLD_RANK=4"},
      {{{"OMPI_COMM_WORLD_RANK", "one"}, {"OMPI_COMM_WORLD_SIZE", "4"}}, "\"one\""},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE"},
      {{{"PMI_PORT", "box-1:4711"}, {"PMI_ID", "0"}}, "PMI_ID is set, but WORLD_SIZE is not"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}, "RANK"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "RANK=1 and WORLD_SIZE=2 are set, but nothing says where"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "box-1"}}, "MASTER_PORT"},
      {{{"RANK", "abc"}, {"WORLD_SIZE", "2"}}, "RANK=\"abc\""},
      {{{"RANK", "3"}, {"WORLD_SIZE", "1"}}, "RANK=3 does not fit WORLD_SIZE=1"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "0"}}, "RANK=1 does not fit WORLD_SIZE=0"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "RANK=0 does not fit WORLD_SIZE=0"},
      {{{"PMI_RANK", "1"}}, "PMI_RANK is set, but PMI_SIZE is not"},
  };
  for (const auto& [variables, words] : cases) {
    forget_launchers();
    set(variables);
    tuttiLaunchInfo_t info;
    CHECK(tuttiLaunchDetect(&info) == ncclInvalidUsage);
    CHECK(std::string(ncclGetLastError(nullptr)).find(words) != std::string::npos);
  }
  forget_launchers();
  CHECK(tuttiLaunchDetect(nullptr) == ncclInvalidArgument);
}

TEST_CASE("ranks of a job get the same ids, another job's ranks other ones") {
  const auto ids = meet({torchrun(0, 3, "29501"), torchrun(1, 3, "29501"), torchrun(2, 3, "29501")}, 3);
  CHECK(ids[0] == ids[1]);
  CHECK(ids[0] == ids[2]);
  CHECK(ids[0].substr(0, sizeof(ncclUniqueId)) != ids[0].substr(sizeof(ncclUniqueId), sizeof(ncclUniqueId)));

  // Two jobs at once, apart by port; and a restart of one of them, apart by its count.
  const auto mixed = meet({torchrun(0, 2, "29502"), torchrun(1, 2, "29502"), torchrun(0, 2, "29503"),
                           torchrun(1, 2, "29503"), torchrun(0, 2, "29502", "1"), torchrun(1, 2, "29502", "1")},
                          1);
  CHECK(mixed[0] == mixed[1]);
  CHECK(mixed[2] == mixed[3]);
  CHECK(mixed[4] == mixed[5]);
  CHECK(mixed[0] != mixed[2]);
  CHECK(mixed[0] != mixed[4]);
}

TEST_CASE("ranks of which nothing says how many are on a host meet at MASTER_ADDR, if that is not each host's own") {
  Variables rank_1 = torchrun(1, 2, "29504");
  rank_1["MASTER_ADDR"] = "192.0.2.1";
  const tuttiLaunchInfo_t info = detected(rank_1);
  ncclUniqueId id;
  CHECK(tuttiLaunchUniqueId(&info, &id) == ncclSuccess);  // without a word of rank 0
}

TEST_CASE("a path as meeting place, with a stale socket there") {
  const std::string path = "/tmp/tutti-launch-test-" + std::to_string(getpid());
  std::vector<Variables> ranks;
  for (int rank : {0, 1})
    ranks.push_back({{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"}, {"TUTTI_RENDEZVOUS", "file:" + path}});
  // A rank 0 that dies while it waits leaves its socket behind.
  const pid_t dead = start(ranks[0], [] { return get_ids(1, -1); });
  while (access((path + ".0").c_str(), F_OK) != 0) usleep(1000);
  kill(dead, SIGKILL);
  CHECK(ended(dead) == 128 + SIGKILL);
  const auto ids = meet(ranks, 2);
  CHECK(ids[0] == ids[1]);
  CHECK(access((path + ".0").c_str(), F_OK) != 0);
}

TEST_CASE("who does not come is named at the deadline") {
  const auto alone = [](int rank, const std::string& words) {
    Variables variables = torchrun(rank, 4, "29504");
    variables["TUTTI_RENDEZVOUS_TIMEOUT_S"] = "0.3";
    return ended(start(variables, [&] {
      tuttiLaunchInfo_t info;
      ncclUniqueId id;
      if (tuttiLaunchDetect(&info) != ncclSuccess || tuttiLaunchUniqueId(&info, &id) != ncclRemoteError) return 1;
      return std::string(ncclGetLastError(nullptr)).find(words) != std::string::npos ? 0 : 2;
    }));
  };
  CHECK(alone(0, "rank 1, 2, 3") == 0);
  CHECK(alone(2, "nobody listens") == 0);
}

TEST_CASE("a job that disagrees about its size is refused") {
  const pid_t root = start(torchrun(0, 2, "29505"), [] {
    tuttiLaunchInfo_t info;
    ncclUniqueId id;
    return tuttiLaunchDetect(&info) == ncclSuccess && tuttiLaunchUniqueId(&info, &id) == ncclSuccess ? 0 : 1;
  });
  const pid_t wrong = start(torchrun(1, 3, "29505"), [] {
    tuttiLaunchInfo_t info;
    ncclUniqueId id;
    if (tuttiLaunchDetect(&info) != ncclSuccess || tuttiLaunchUniqueId(&info, &id) != ncclInvalidUsage) return 1;
    return std::string(ncclGetLastError(nullptr)).find("2 ranks, it counts 3") != std::string::npos ? 0 : 2;
  });
  CHECK(ended(wrong) == 0);
  const pid_t right = start(torchrun(1, 2, "29505"), [] {
    tuttiLaunchInfo_t info;
    ncclUniqueId id;
    return tuttiLaunchDetect(&info) == ncclSuccess && tuttiLaunchUniqueId(&info, &id) == ncclSuccess ? 0 : 1;
  });
  CHECK(ended(right) == 0);
  CHECK(ended(root) == 0);
}

TEST_CASE("local ranks: codes, signals, and an end for those that go on") {
  forget_launchers();
  int seven = 7;
  tuttiLaunchOutcome_t outcome;
  REQUIRE(tuttiLaunchLocal(
              3,
              [](const tuttiLaunchInfo_t* me, const ncclUniqueId*, void* context) {
                return me->size == 3 && me->local_rank == me->rank && *static_cast<int*>(context) == 7 ? 0 : 1;
              },
              &seven, &outcome) == ncclSuccess);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.failed_rank == -1);

  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(tuttiLaunchLocal(
              3,
              [](const tuttiLaunchInfo_t* me, const ncclUniqueId*, void*) {
                signal(SIGTERM, SIG_DFL);  // not Catch2's handler
                if (me->rank == 1) return 42;
                for (;;) pause();
              },
              nullptr, &outcome) == ncclSuccess);
  CHECK(outcome.exit_code == 42);
  CHECK(outcome.failed_rank == 1);
  CHECK(outcome.signal == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));

  REQUIRE(
      tuttiLaunchLocal(
          2, [](const tuttiLaunchInfo_t* me, const ncclUniqueId*, void*) { return me->rank == 1 ? raise(SIGKILL) : 0; },
          nullptr, &outcome) == ncclSuccess);
  CHECK(outcome.exit_code == 128 + SIGKILL);
  CHECK(outcome.failed_rank == 1);
  CHECK(outcome.signal == SIGKILL);

  CHECK(tuttiLaunchLocal(0, nullptr, nullptr, &outcome) == ncclInvalidArgument);
}

TEST_CASE("local ranks: an exception ends its rank alone, and no rank goes on in the caller's code") {
  forget_launchers();
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const auto body = [](const tuttiLaunchInfo_t* me, const ncclUniqueId*, void* context) -> int {
    if (me->rank == 2) throw 2;
    if (me->rank == 1) {
      dup2(*static_cast<int*>(context), STDERR_FILENO);
      throw std::runtime_error("mine");
    }
    signal(SIGTERM, SIG_DFL);  // not Catch2's handler
    for (;;) pause();          // until the caller ends it
  };
  const pid_t caller = getpid();
  tuttiLaunchOutcome_t outcome{};
  const ncclResult_t result = tuttiLaunchLocal(3, body, &pipe_ends[1], &outcome);
  if (getpid() != caller) _exit(0);
  REQUIRE(result == ncclSuccess);
  CHECK(outcome.failed_rank > 0);
  CHECK(outcome.signal == 0);
  CHECK(outcome.exit_code == 1);
  close(pipe_ends[1]);
  char told[64] = {};
  CHECK(read(pipe_ends[0], told, sizeof(told) - 1) > 0);
  CHECK(std::string(told) == "rank 1: mine\n");
  close(pipe_ends[0]);
}

TEST_CASE("ranks that are forked while another one is answered can join") {
  // A process of its own, where nothing has been answered yet: the first answer makes what all need.
  const pid_t program = start({{"TUTTI_TIMEOUT_S", "20"}}, [] {
    constexpr int kRanks = 5;
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess) return 1;
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int tries = 0; tries < 1000 && asked < rank; ++tries) usleep(1000);
      ranks.push_back(start({}, [&id, rank] {
        ncclComm_t comm = nullptr;
        if (ncclCommInitRank(&comm, kRanks, id, rank) != ncclSuccess) return 2;
        return ncclCommDestroy(comm) == ncclSuccess ? 0 : 3;
      }));
    }
    int code = 0;
    for (const pid_t rank : ranks) {
      for (int tries = 0; tries < 3000 && !has_ended(rank); ++tries) usleep(10000);
      kill(rank, SIGKILL);  // one that waits forever
      code = std::max(code, ended(rank));
    }
    return code;
  });
  CHECK(ended(program) == 0);
}

TEST_CASE("local ranks: signals are passed on, and nobody outlives the caller") {
  forget_launchers();
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const auto run = [&] {
    tuttiLaunchOutcome_t outcome;
    const auto body = [](const tuttiLaunchInfo_t*, const ncclUniqueId*, void* context) {
      if (write(*static_cast<int*>(context), "x", 1) != 1) return 1;
      for (;;) pause();
    };
    if (tuttiLaunchLocal(2, body, &pipe_ends[1], &outcome) != ncclSuccess) return 1;
    return outcome.exit_code;
  };
  for (int signal : {SIGTERM, SIGKILL}) {
    const pid_t parent = start({}, run);
    char ready[2];
    for (int n = 0; n < 2;) n += static_cast<int>(read(pipe_ends[0], ready, 1));
    kill(parent, signal);
    CHECK(ended(parent) == 128 + signal);
  }
  // The last holder of the pipe's end is this process: the ranks are gone.
  close(pipe_ends[1]);
  char none;
  CHECK(read(pipe_ends[0], &none, 1) == 0);
  close(pipe_ends[0]);
}
