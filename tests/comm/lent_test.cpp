// Over hosts, sends that go from where they lie (TUTTI_ZEROCOPY_BYTES): a rank that has announced its receive is stopped, so that what the
// other one sends it is in that one's kernel. A buffer belongs to its caller again only when it can be written without harm.
#include "crew.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;

/// Fewer messages than slots: none of them waits for another. More than the receiver's kernel takes of a connection that is new, and less than
/// that and the sender's take together.
constexpr std::size_t kBytes = 300 << 10;
constexpr unsigned char kWanted = 0x5A;
/// A call that does not wait is over long before.
constexpr useconds_t kWhileUs = 400000;

/// The receiver's process, once it is there.
using Shared = std::atomic<pid_t>;

/// Rank 1: bytes that are not those that were meant are worse than none. Empties `got` if there are none.
std::string receive(ncclComm_t comm, std::vector<unsigned char>& got) {
  if (ncclRecv(got.data(), got.size(), ncclUint8, 0, comm, nullptr) != ncclSuccess) got.clear();
  const bool right = std::ranges::all_of(got, [](unsigned char b) { return b == kWanted; });
  return right ? "" : "what was sent has changed on its way";
}

/// Rank 0's send, with the receiver stopped.
struct Send {
  std::vector<unsigned char> bytes = std::vector<unsigned char>(kBytes, kWanted);
  std::atomic<bool> is_over{false};
  ncclResult_t result = ncclInProgress;
  std::string error;
  std::thread thread;
  const pid_t receiver;

  Send(ncclComm_t comm, pid_t to) : receiver(to) {
    usleep(100000);  // it is in its receive
    kill(receiver, SIGSTOP);
    usleep(50000);
    thread = std::thread([this, comm] {
      result = ncclSend(bytes.data(), bytes.size(), ncclUint8, 1, comm, nullptr);
      error = ncclGetLastError(nullptr);
      std::ranges::fill(bytes, 0xEE);
      is_over = true;
    });
    usleep(kWhileUs);
  }
  /// "" if it ends within so many seconds: well, if `may_succeed`, or with `part` in its error, if that is not empty.
  std::string end(double seconds, bool may_succeed, const std::string& part) {
    const double began = crew::now_s();
    while (!is_over && crew::now_s() - began < seconds) usleep(1000);
    if (!is_over) return "the send is not over after " + std::to_string(seconds) + " s";
    if (may_succeed && (result == ncclSuccess || part.empty())) return fine(result, "ncclSend");
    const bool is_named = result == ncclRemoteError && error.find(part) != std::string::npos;
    return is_named ? "" : "the send ended with " + std::to_string(result) + ": " + error;
  }
  ~Send() {
    kill(receiver, SIGCONT);
    thread.join();
  }
};

using Ends = std::string (*)(Send&, ncclComm_t);

/// `ends`: what rank 0 does meanwhile, up to the end of the communicator.
std::vector<crew::Ending> run(Ends ends, bool may_fail) {
  auto* const receiver = static_cast<Shared*>(crew::shared_page());
  return crew::run(2, [=](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 2, m.ids[0], m.rank), "ncclCommInitRank"));
    if (m.rank == 1) {
      *receiver = getpid();
      std::vector<unsigned char> got(kBytes);
      CREW_TRY(receive(comm, got));
      if (got.empty() && !may_fail) return std::string("ncclRecv: ") + ncclGetLastError(comm);
      return fine(may_fail ? ncclCommAbort(comm) : ncclCommDestroy(comm), "the end");
    }
    while (*receiver == 0) usleep(1000);
    Send send(comm, *receiver);
    if (send.is_over) return "the send is over before anybody has what it sent: " + send.error;
    return ends(send, comm);
  });
}

/// Sets them for one test, for two hosts of one rank each.
struct Variables {
  std::vector<std::string> names;
  Variables(std::initializer_list<std::pair<const char*, const char*>> more) {
    set("TEST_RANKS_PER_HOST", "1");
    set("TUTTI_ZEROCOPY_BYTES", "1");
    set("TUTTI_CALIBRATE", "0");  // nothing has gone by the connection
    for (const auto& [name, value] : more) set(name, value);
  }
  void set(const char* name, const char* value) {
    setenv(name, value, 1);
    names.emplace_back(name);
  }
  ~Variables() {
    for (const std::string& name : names) unsetenv(name.c_str());
  }
};

}  // namespace

TEST_CASE("a send is over when its bytes are with the other host, and they are told of", "[lent]") {
  const std::string log = "/tmp/tutti-lent-" + std::to_string(getpid());
  const Variables variables({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", log.c_str()}});
  const auto endings = run(
      [](Send& send, ncclComm_t comm) {
        kill(send.receiver, SIGCONT);
        CREW_TRY(send.end(10, true, ""));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      },
      false);
  crew::check(endings);
  std::ifstream file(log);
  const std::string said((std::istreambuf_iterator<char>(file)), {});
  std::remove(log.c_str());
  CHECK(said.find("sends with MSG_ZEROCOPY") != std::string::npos);
  CHECK(said.find("is copied all the same") != std::string::npos);
}

TEST_CASE("an abort waits for nobody's acknowledgement, and what it leaves in the kernel goes nowhere", "[lent]") {
  const Variables variables({});
  const auto endings = run(
      [](Send& send, ncclComm_t comm) -> std::string {
        const double began = crew::now_s();
        CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
        if (crew::now_s() - began > 5) return "the abort took " + std::to_string(crew::now_s() - began) + " s";
        return send.end(1, false, "ncclCommAbort");
      },
      true);
  crew::check(endings);
}

TEST_CASE("a send ends when its receiver is killed with all still under way, and the next call names it", "[lent]") {
  const Variables variables({});
  const auto endings = run(
      [](Send& send, ncclComm_t comm) -> std::string {
        kill(send.receiver, SIGKILL);
        // The kernel has nobody to keep it for. That somebody has it no send promises.
        CREW_TRY(send.end(2, true, "rank 1"));
        float value = 0;
        CREW_TRY(crew::refused(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), ncclRemoteError,
                               {"rank 1"}, comm));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      },
      true);
  crew::check(endings, {1});
}

TEST_CASE("a receiver that takes nothing in is an error after TUTTI_TIMEOUT_S, and gets nothing that was written since",
          "[lent]") {
  const Variables variables({{"TUTTI_TIMEOUT_S", "1"}, {"TUTTI_HEARTBEAT_TIMEOUT_S", "0"}});
  const auto endings = run(
      [](Send& send, ncclComm_t comm) -> std::string {
        CREW_TRY(send.end(5, false, "TUTTI_TIMEOUT_S"));
        kill(send.receiver, SIGCONT);
        usleep(kWhileUs);  // it takes in what comes, of a communicator that is still there
        return fine(ncclCommAbort(comm), "ncclCommAbort");
      },
      true);
  crew::check(endings);
}
