// A rank of an MPI program that uses Tutti too: what the application does to MPI is the case. Built once with each MPI. Every rank
// prints lines of its own: "rank 2 transport mpi".
//
// usage: mpi-client LEVEL CASE [RANKS_PER_HOST]
//   LEVEL  none, plain (MPI_Init), single, funneled, serialized, multiple: how MPI is initialised
//   CASE   checks, subset, posted, killed-early, ahead, through, differ, idle, taken, pipes, pipes-ignored, killed, many, stopped, cut, shrink, shrink-dead, abort, abort-silenced,
//          destroy-silenced, exits, open-at-finalize, aborted-at-finalize, told-to
// The ranks believe that they are on hosts of RANKS_PER_HOST (default 1) ranks each.
#include <mpi.h>
#include <nccl.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>

#include "collective_checks.h"
#include "counted_mpi.h"
#include "creation_cases.h"
#include "finalize_cases.h"
#include "mpi_rank.h"
#include "transport/mpi_service.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace tutti::test;

namespace {

/// A communicator, its halves, and two more of all ranks at once whose calls take turns.
void case_checks(ncclComm_t comm, bool with_mpi) {
  check_all(comm, world, me);
  ncclComm_t half = nullptr;
  check(ncclCommSplit(comm, me % 2, -me, &half, nullptr), "ncclCommSplit");
  int rank = 0;
  int ranks = 0;
  check(ncclCommUserRank(half, &rank), "ncclCommUserRank");
  check(ncclCommCount(half, &ranks), "ncclCommCount");
  const char* transport = "";
  check(tuttiCommTransport(half, &transport), "tuttiCommTransport");
  say("half %s", transport);
  check_all(half, ranks, rank);
  const ncclUniqueId ids[2] = {share_id(with_mpi), share_id(with_mpi)};
  ncclComm_t both[2] = {};
  check(ncclGroupStart(), "ncclGroupStart");
  for (int i = 0; i < 2; ++i) check(ncclCommInitRank(&both[i], world, ids[i], me), "ncclCommInitRank in a group");
  check(ncclGroupEnd(), "ncclGroupEnd with two initialisations");
  std::thread other([&] { check_all(both[1], world, me); });
  check_all(both[0], world, me);
  other.join();
  for (ncclComm_t one : {both[1], half, both[0]}) check(ncclCommDestroy(one), "ncclCommDestroy");
  check_collectives(comm, world, me, 5000);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Odd ranks of the world only, the last first.
void case_subset() {
  ncclUniqueId id;
  if (me == 1) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 1, MPI_COMM_WORLD);
  if (me % 2 == 0) return;
  const int ranks = world / 2;
  const int rank = ranks - 1 - me / 2;
  ncclComm_t comm = join(ranks, rank, id, true);
  check_all(comm, ranks, rank);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Rank 0 broadcasts before the others come, and computes then: they must not have to wait for its next call.
void case_ahead(ncclComm_t comm) {
  constexpr int kCalls = 12;
  constexpr std::size_t kBytes = 2048;
  std::vector<char> data(kBytes);
  check_collectives(comm, world, me, 100);
  MPI_Barrier(MPI_COMM_WORLD);
  if (me != 0) std::this_thread::sleep_for(milliseconds(300));
  const auto start = Clock::now();
  for (int call = 0; call < kCalls; ++call) {
    if (me == 0) std::ranges::fill(data, static_cast<char>(call + 1));
    check(ncclBroadcast(data.data(), data.data(), kBytes, ncclChar, 0, comm, nullptr), "broadcast");
    for (const char c : data) expect(c == static_cast<char>(call + 1), "broadcast ahead");
  }
  say("ahead %.3f s", seconds_since(start));
  if (me == 0) std::this_thread::sleep_for(milliseconds(3000));
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  // Nothing is left to send. MPI_Finalize must not find a thread of ours inside MPI while rank 0 has not destroyed yet.
  std::this_thread::sleep_for(milliseconds(20));
  const long before = mpi_calls;
  std::this_thread::sleep_for(milliseconds(me == 0 ? 0 : 200));
  say("left %ld calls", static_cast<long>(mpi_calls) - before);
}

/// Rank 0 is through with an all-reduce and computes, without MPI: the others' calls must not wait for that.
void case_through(ncclComm_t comm) {
  double longest = 0;
  for (const std::size_t count : {65536ul, 300007ul, 4000000ul}) {
    for (int round = 0; round < 2; ++round) {
      std::vector<float> data(count, 1);
      MPI_Barrier(MPI_COMM_WORLD);
      const auto start = Clock::now();
      check(ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, nullptr), "all_reduce");
      longest = std::max(longest, seconds_since(start));
      const auto is_wrong = [](float value) { return value != static_cast<float>(world); };
      expect(std::ranges::none_of(data, is_wrong), "an all_reduce that rank 0 has left");
      if (me == 0) std::this_thread::sleep_for(milliseconds(600));
    }
  }
  say("longest %.3f s", longest);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Rank 1 adds up another number of elements than the others: all are told, nothing is written, and the next call is what it is.
void case_differ(ncclComm_t comm) {
  // Of three ranks' 40000, and of four ranks', shares have gone with the lines.
  constexpr std::size_t kCounts[][2] = {{4000000, 300007}, {300007, 4000000}, {262144, 4000000}, {300007, 10},
                                        {10, 300007},      {40000, 41000},    {40000, 10},       {4000000, 40000}};
  for (const auto& counts : kCounts) {
    std::vector<float> data(counts[me == 1], 1);
    std::vector<float> sum(data.size(), -1);
    const ncclResult_t code = ncclAllReduce(data.data(), sum.data(), data.size(), ncclFloat, ncclSum, comm, nullptr);
    const std::string why = ncclGetLastError(comm);
    expect(code == ncclInvalidUsage && why.find("differ") != std::string::npos, "differing calls: " + why);
    expect(std::ranges::count(sum, -1.0f) == static_cast<std::ptrdiff_t>(sum.size()), "a refused call has written");
    check_collectives(comm, world, me, 300007);
    check_collectives(comm, world, me, 40000);
    check_collectives(comm, world, me, 100);
  }
  // Shares of the one beside sums that double, of which some rank gets both; and who is through with that makes the next call at once.
  for (int round = 0; round < 300; ++round) {
    std::vector<float> data(me == 0 ? 42000 : 9000, 1);
    const ncclResult_t code = ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclSum, comm, nullptr);
    expect(code == ncclInvalidUsage, std::string("differing calls: ") + ncclGetLastError(comm));
    std::vector<float> next(4000, 1);
    check(ncclAllReduce(next.data(), next.data(), next.size(), ncclFloat, ncclSum, comm, nullptr), "the next call");
    expect(std::ranges::count(next, static_cast<float>(world)) == 4000, "the next call");
  }
  check(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Between calls nothing calls MPI.
void case_idle(ncclComm_t comm) {
  for (int round = 0; round < 5; ++round) check_collectives(comm, world, me, 20000);
  MPI_Barrier(MPI_COMM_WORLD);
  std::this_thread::sleep_for(milliseconds(200));
  const long before = mpi_calls;
  std::this_thread::sleep_for(milliseconds(500));
  say("idle %ld calls", static_cast<long>(mpi_calls) - before);
  MPI_Barrier(MPI_COMM_WORLD);
  check_collectives(comm, world, me, 20000);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// The plug-in alone: what MPI has handed over is read to its end without an MPI call, once none may be made.
void case_taken() {
#ifdef OPEN_MPI
  void* const object = dlopen("libtutti-openmpi.so", RTLD_NOW | RTLD_NODELETE);
#else
  void* const object = dlopen("libtutti-mpich.so", RTLD_NOW | RTLD_NODELETE);
#endif
  expect(object != nullptr, "the plug-in is not found");
  using namespace tutti::transport;
  const MpiService& service = *reinterpret_cast<MpiServiceEntry>(dlsym(object, kMpiServiceSymbol))();
  const auto network = service.open({0, 1}, 1);
  while (network->state() == MpiNetwork::State::kOpening) std::this_thread::sleep_for(milliseconds(1));
  expect(network->state() == MpiNetwork::State::kOpen, "no network: " + network->problem());
  std::uint64_t stopped = 0;
  const auto stream = network->stream(1 - me, &stopped);
  constexpr std::size_t kBytes = 1000;
  if (me == 0) {
    std::vector<char> data(kBytes, 'x');
    const iovec whole = {data.data(), kBytes};
    expect(stream->send({&whole, 1}).bytes == kBytes, "one message is taken");
    stream->finish();
  } else {
    ByteStream::Moved come;
    while ((come = stream->receive({})).bytes == 0) std::this_thread::sleep_for(milliseconds(1));
    stopped = 1;
    const long before = mpi_calls;
    const bool right = come.kept.size() == kBytes && std::ranges::count(come.kept, std::byte{'x'}) == kBytes;
    const auto end = stream->receive({});
    expect(end.bytes == 0 && end.state == ByteStream::State::kEnded, "that is all");
    say("taken %zu bytes, %s, %ld calls", come.bytes, right ? "right" : "wrong", static_cast<long>(mpi_calls) - before);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// A child's SIGPIPE, outside of MPI calls, and how it ended.
int ends_of_broken_pipe() {
  const pid_t child = fork();
  if (child == 0) {
    write_to_nobody();
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/// SIGPIPE inside of Tutti's MPI calls is nobody's; elsewhere it does what the program, and else the system, has for it.
void case_pipes(ncclComm_t comm, bool ignored) {
  pipes_break = true;
  check_all(comm, world, me);
  pipes_break = false;
  expect(broken_pipes > 0, "no send was meddled with");
  expect(ends_of_broken_pipe() == (ignored ? 0 : SIGPIPE), "SIGPIPE elsewhere has another effect than before");
  struct sigaction now = {};
  sigaction(SIGPIPE, nullptr, &now);
  expect((now.sa_handler == SIG_IGN) == ignored, "what the program has for SIGPIPE has changed");
  check(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Of the calls that a rank is lost in: TEST_ELEMENTS.
std::vector<float> some_data() {
  const char* const elements = std::getenv("TEST_ELEMENTS");
  return std::vector<float>(elements != nullptr ? std::strtoul(elements, nullptr, 10) : 30000, 1);
}
bool is_lost_within(const std::vector<float>& data) { return data.size() > 1000000; }

/// Until a call fails; what it says. Rank 1 is lost (`lose`) before its call 20, or in it if calls are long.
std::string call_until_failure(
    ncclComm_t comm, ncclResult_t* code, const std::function<void()>& lose = [] {}) {
  std::vector<float> data = some_data();
  std::thread other;
  for (int call = 0;; ++call) {
    const bool is_last = me == 1 && call == 20;
    if (is_last && !is_lost_within(data)) return lose(), "";
    if (is_last) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(3));
        lose();
      });
    }
    *code = ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclMax, comm, nullptr);
    const std::string why = *code == ncclSuccess ? "" : ncclGetLastError(comm);
    if (other.joinable()) other.join();
    if (*code != ncclSuccess) return why;
  }
}

/// Rank 1 is killed. The others find out, call MPI no more, and go on without it.
void case_killed(ncclComm_t comm) {
  ncclResult_t code = ncclSuccess;
  const std::string why = call_until_failure(comm, &code, [] { raise(SIGKILL); });
  const long before = mpi_calls;
  say("failed %d %s", static_cast<int>(code), why.c_str());
  std::this_thread::sleep_for(milliseconds(20));
  say("quiet %ld calls", static_cast<long>(mpi_calls) - before);
  const int rank = me < 1 ? me : me - 1;
  ncclComm_t rest = nullptr;
  check(ncclCommInitRank(&rest, world - 1, share_id_by_file(), rank), "ncclCommInitRank without the dead");
  const char* transport = "";
  check(tuttiCommTransport(rest, &transport), "tuttiCommTransport");
  check_all(rest, world - 1, rank);
  check(ncclCommDestroy(rest), "ncclCommDestroy");
  check(ncclCommAbort(comm), "ncclCommAbort");
  std::this_thread::sleep_for(milliseconds(200));
  say("rest %s after %ld calls", transport, static_cast<long>(mpi_calls) - before);
  // Nobody waits in MPI_Finalize for the dead.
  std::_Exit(0);
}

/// The same among more ranks than can all watch each other, of which rank 1's neighbours tell the others.
void case_many(ncclComm_t comm) {
  ncclResult_t code = ncclSuccess;
  float value = 1;
  for (int call = 0; code == ncclSuccess; ++call) {
    if (me == 1 && call == 5) raise(SIGKILL);
    code = ncclAllReduce(&value, &value, 1, ncclFloat, ncclMax, comm, nullptr);
  }
  const long before = mpi_calls;
  say("failed %d %s", static_cast<int>(code), ncclGetLastError(comm));
  std::this_thread::sleep_for(milliseconds(20));
  say("quiet %ld calls", static_cast<long>(mpi_calls) - before);
  check(ncclCommAbort(comm), "ncclCommAbort");
  say("end %ld calls", static_cast<long>(mpi_calls) - before);
  std::_Exit(0);
}

/// Rank 1 is stopped, or cut off by who sees that all are at it.
void case_lost(ncclComm_t comm, bool stops) {
  ncclResult_t code = ncclSuccess;
  std::vector<float> data = some_data();
  auto last = Clock::now();
  for (int call = 0; code == ncclSuccess; ++call) {
    if (call == 20) say("going");
    std::thread other;
    if (call == 20 && stops && me == 1) {
      if (!is_lost_within(data)) raise(SIGSTOP);
      other = std::thread([] {
        std::this_thread::sleep_for(milliseconds(3));
        kill(getpid(), SIGSTOP);
      });
    }
    last = Clock::now();
    code = ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclMax, comm, nullptr);
    if (other.joinable()) other.join();
  }
  const long before = mpi_calls;
  say("waited %.2f s", seconds_since(last));
  say("failed %d %s", static_cast<int>(code), ncclGetLastError(comm));
  std::this_thread::sleep_for(milliseconds(20));
  check(ncclCommAbort(comm), "ncclCommAbort");
  say("quiet %ld calls", static_cast<long>(mpi_calls) - before);
  std::_Exit(0);
}

/// The ranks but rank 1: a communicator that works.
void shrink_and_use(ncclComm_t comm, int flags, const char* what) {
  int excluded = 1;
  ncclComm_t rest = nullptr;
  check(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, flags), "ncclCommShrink");
  const char* transport = "";
  check(tuttiCommTransport(rest, &transport), "tuttiCommTransport");
  say("%s %s", what, transport);
  check_all(rest, world - 1, me < 1 ? me : me - 1);
  check(ncclCommDestroy(rest), "ncclCommDestroy");
}

/// Rank 1 is left out, by a communicator that goes on and by one that ends.
void case_shrink(ncclComm_t comm) {
  if (me != 1) shrink_and_use(comm, NCCL_SHRINK_DEFAULT, "rest");
  check_all(comm, world, me);
  if (me != 1) {
    shrink_and_use(comm, NCCL_SHRINK_ABORT, "last");
  } else {
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) check(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
  }
  check(ncclCommAbort(comm), "ncclCommAbort");
}

/// Rank 1 is killed, and left out then.
void case_shrink_dead(ncclComm_t comm) {
  ncclResult_t code = ncclSuccess;
  const std::string why = call_until_failure(comm, &code);
  if (me == 1) raise(SIGKILL);
  shrink_and_use(comm, NCCL_SHRINK_ABORT, "rest");
  check(ncclCommAbort(comm), "ncclCommAbort");
  std::_Exit(0);
}

/// Rank 1 aborts the communicator. MPI stays as usable as it was.
void case_abort(ncclComm_t comm) {
  ncclResult_t code = ncclSuccess;
  const auto abort = [comm] { check(ncclCommAbort(comm), "ncclCommAbort"); };
  const std::string why = call_until_failure(comm, &code, abort);
  if (me != 1) say("failed %d %s", static_cast<int>(code), why.c_str());
  if (me != 1) abort();
  ncclComm_t next = join(world, me, share_id(true), true);
  check_all(next, world, me);
  check(ncclCommDestroy(next), "ncclCommDestroy");
}

/// Rank 1 is killed, which is in a communicator with rank 0 alone. Rank 0 ends another one then, whose goodbye MPI does not carry any more.
void case_silenced(const ncclUniqueId& id, bool aborts) {
  const ncclUniqueId with_dead = share_id(true);
  ncclComm_t comm = nullptr;
  ncclComm_t other = nullptr;
  float value = 1;
  if (me != 1) comm = join(2, me / 2, id, true);
  if (me < 2) other = join(2, me, with_dead, true);
  if (me != 1) check(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), "all_reduce");
  MPI_Barrier(MPI_COMM_WORLD);
  if (me == 1) raise(SIGKILL);
  const auto start = Clock::now();
  if (me == 0) {
    const ncclResult_t code = ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, other, nullptr);
    expect(code == ncclRemoteError, "the death was not noticed");
    check(aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm), "the end");
    std::this_thread::sleep_for(milliseconds(aborts ? 5000 : 14000));  // it is not its program's end that is missed
    std::_Exit(0);
  }
  const ncclResult_t code = ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr);
  const bool soon = seconds_since(start) < 4;
  say("failed %s %d %s", soon ? "soon" : "late", static_cast<int>(code), ncclGetLastError(comm));
  std::_Exit(0);
}

/// Rank 1's program ends without MPI_Finalize, with no call under way: that is a death, as nobody may call MPI for it any more.
void case_exits(ncclComm_t comm) {
  check_collectives(comm, world, me, 5000);
  if (me == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the others may be at the last of those still
    std::exit(0);
  }
  const auto start = Clock::now();
  ncclResult_t code = ncclSuccess;
  const std::string why = call_until_failure(comm, &code);
  const long before = mpi_calls;
  const bool soon = seconds_since(start) < 4;
  say("failed %s %d %s", soon ? "soon" : "late", static_cast<int>(code), why.c_str());
  check(ncclCommAbort(comm), "ncclCommAbort");
  say("quiet %ld calls", static_cast<long>(mpi_calls) - before);
  std::_Exit(0);
}

/// The library initialises MPI, and ends it, where the program tells it to: such calls are counted too.
void case_told_to() {
  check(tuttiLaunchInitMpi(), "tuttiLaunchInitMpi");
  ncclComm_t comm = join(world, me, share_id(false), false);
  check_collectives(comm, world, me, 5000);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  check(tuttiLaunchFinalizeMpi(), "tuttiLaunchFinalizeMpi");
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, int> levels = {{"single", MPI_THREAD_SINGLE},
                                             {"funneled", MPI_THREAD_FUNNELED},
                                             {"serialized", MPI_THREAD_SERIALIZED},
                                             {"multiple", MPI_THREAD_MULTIPLE}};
  const std::string level = argc > 1 ? argv[1] : "multiple";
  const std::string name = argc > 2 ? argv[2] : "checks";
  const int per_host = argc > 3 ? std::atoi(argv[3]) : 1;
  const bool with_mpi = level != "none";
  if (with_mpi) {
    if (level == "plain") {
      MPI_Init(&argc, &argv);
    } else {
      int provided = -1;
      MPI_Init_thread(&argc, &argv, levels.at(level), &provided);
      expect(provided == levels.at(level), "MPI gave another thread level than " + level);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
  } else {
    // Not by tuttiLaunchDetect: the library must not have read the environment yet.
    const bool open_mpi = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
    me = std::atoi(std::getenv(open_mpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK"));
    world = std::atoi(std::getenv(open_mpi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE"));
  }
  if (name == "pipes-ignored") std::signal(SIGPIPE, SIG_IGN);
  setenv("NCCL_HOSTID", ("host-" + std::to_string(me / per_host)).c_str(), 1);
  if (name == "told-to") {
    case_told_to();
  } else if (name == "subset") {
    case_subset();
  } else if (name == "posted") {
    case_posted();
  } else if (name == "killed-early") {
    case_killed_early();
  } else if (name == "taken") {
    case_taken();
  } else if (name == "abort-silenced" || name == "destroy-silenced") {
    case_silenced(share_id(true), name == "abort-silenced");
  } else {
    ncclComm_t comm = join(world, me, share_id(with_mpi), with_mpi);
    if (name == "checks") case_checks(comm, with_mpi);
    if (name == "ahead") case_ahead(comm);
    if (name == "through") case_through(comm);
    if (name == "differ") case_differ(comm);
    if (name == "idle") case_idle(comm);
    if (name == "pipes" || name == "pipes-ignored") case_pipes(comm, name == "pipes-ignored");
    if (name == "killed") case_killed(comm);
    if (name == "many") case_many(comm);
    if (name == "stopped" || name == "cut") case_lost(comm, name == "stopped");
    if (name == "shrink") case_shrink(comm);
    if (name == "shrink-dead") case_shrink_dead(comm);
    if (name == "abort") case_abort(comm);
    if (name == "exits") case_exits(comm);
    if (name == "open-at-finalize") case_open_at_finalize(comm);
    if (name == "aborted-at-finalize") case_aborted_at_finalize(comm);
  }
  int over = 0;
  MPI_Finalized(&over);
  expect(over == 0 || name.ends_with("-at-finalize") || name == "told-to", "somebody else has ended MPI");
  if (with_mpi && over == 0) MPI_Finalize();
  say("mpi initialised %d times, ended %d times", mpi_begun.load(), mpi_ended.load());
  say("done");
  return 0;
}
