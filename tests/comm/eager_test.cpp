// Short sends, which are over before their receives are made: what arrives, in which order, and what happens to those that nobody
// receives.
#include "crew.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

/// Lengths in the line, beside it, and beyond both; with their edges.
constexpr std::size_t kLengths[] = {0, 1, 8, 511, 512, 513, 4095, 8192, 8193, 20000};
constexpr std::size_t kLongest = 20000;

std::size_t length_of(int message) { return kLengths[static_cast<std::size_t>(message) % std::size(kLengths)]; }

unsigned char byte_of(int message, std::size_t at) {
  return static_cast<unsigned char>(static_cast<std::size_t>(message) * 37 + at * 11 + at / 256);
}

std::string send(int message, int to, ncclComm_t comm) {
  std::vector<unsigned char> data(length_of(message));
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = byte_of(message, i);
  CREW_TRY(fine(ncclSend(data.data(), data.size(), ncclUint8, to, comm, nullptr), "ncclSend"));
  std::fill(data.begin(), data.end(), 0xEE);  // the buffer is the sender's again
  return "";
}

std::string receive(int message, int from, ncclComm_t comm) {
  std::vector<unsigned char> data(kLongest + 64, 0xA5);
  const std::size_t length = length_of(message);
  CREW_TRY(fine(ncclRecv(data.data(), length, ncclUint8, from, comm, nullptr), "ncclRecv"));
  for (std::size_t i = 0; i < data.size(); ++i) {
    const unsigned char wanted = i < length ? byte_of(message, i) : 0xA5;
    if (data[i] != wanted) return "message " + std::to_string(message) + " is wrong at " + std::to_string(i);
  }
  return "";
}

}  // namespace

TEST_CASE("sends of all lengths arrive whole and in order, whoever is late", "[eager]") {
  for (const bool late_receiver : {false, true}) {
    crew::check(crew::run(2, [late_receiver](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(init(m, &comm));
      for (int message = 0; message < 300; ++message) {
        if (message % 50 == 0 && (m.rank == 1) == late_receiver) usleep(20000);
        CREW_TRY(m.rank == 0 ? send(message, 1, comm) : receive(message, 0, comm));
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
}

TEST_CASE("a few short sends need no receiver: two ranks may both send first", "[eager]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    for (int round = 0; round < 50; ++round) {
      for (int i = 0; i < 8; ++i) CREW_TRY(send(i, 1 - m.rank, comm));
      for (int i = 0; i < 8; ++i) CREW_TRY(receive(i, 1 - m.rank, comm));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("what was sent can be received when the sender has left", "[eager]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    if (m.rank == 1) usleep(100000);
    for (int message = 1; message < 8; ++message)
      CREW_TRY(m.rank == 0 ? send(message, 1, comm) : receive(message, 0, comm));
    if (m.rank == 1) {
      unsigned char one = 0;
      CREW_TRY(refused(ncclRecv(&one, 1, ncclUint8, 0, comm, nullptr), ncclRemoteError, {"rank 0", "left"}, comm));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a short send to a rank that has left is refused", "[eager]") {
  auto* const has_left = new (crew::shared_page()) std::atomic<bool>(false);
  crew::check(crew::run(2, [has_left](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    if (m.rank == 0) {
      while (!*has_left) usleep(1000);
      CREW_TRY(refused(ncclSend("x", 1, ncclInt8, 1, comm, nullptr), ncclRemoteError, {"rank 1", "left"}, comm));
    }
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    *has_left = true;
    return "";
  }));
}

TEST_CASE("a send beyond what may be on its way waits, and ends when the receiver leaves", "[eager]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    if (m.rank == 1) {
      usleep(200000);
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }
    ncclResult_t result = ncclSuccess;
    int sent = 0;
    for (; sent < 100 && result == ncclSuccess; ++sent) result = ncclSend("x", 1, ncclInt8, 1, comm, nullptr);
    if (sent == 100) return "100 sends that nobody received succeeded";
    CREW_TRY(refused(result, ncclRemoteError, {"rank 1", "left"}, comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a send that nothing can carry fails at both ends, however many there are", "[eager]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("NCCL_ALGO", "send:oneshot;recv:oneshot", 1);
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    std::vector<unsigned char> data(kLongest);
    for (int i = 0; i < 12; ++i) {  // more than there are lines
      const ncclResult_t result = m.rank == 0 ? ncclSend(data.data(), kLongest, ncclUint8, 1, comm, nullptr)
                                              : ncclRecv(data.data(), kLongest, ncclUint8, 0, comm, nullptr);
      CREW_TRY(refused(result, ncclInvalidUsage, {"NCCL_ALGO"}, comm));
    }
    return fine(ncclCommAbort(comm), "ncclCommAbort");
  }));
}
