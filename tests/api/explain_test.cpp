// tuttiExplain tells what would run: the same on every rank, and what the remembered choice for the size is.
#include "in_process.h"

#include <sched.h>
#include <catch2/catch.hpp>

#include <string>
#include <thread>
#include <vector>

using tutti::test::Ranks;

namespace {

std::string explain(ncclComm_t comm, tuttiCollective_t collective, std::size_t count, int root) {
  std::size_t needed = 0;
  REQUIRE(tuttiExplain(comm, collective, count, ncclFloat, ncclSum, root, nullptr, 0, &needed) == ncclSuccess);
  std::string text(needed, '\0');
  REQUIRE(tuttiExplain(comm, collective, count, ncclFloat, ncclSum, root, text.data(), needed, nullptr) == ncclSuccess);
  text.pop_back();  // the zero byte
  return text;
}

/// "oneshot slots"
std::string chosen(const std::string& text) {
  const std::size_t star = text.find("\n* ");
  REQUIRE(star != std::string::npos);
  const std::string line = text.substr(star + 3, text.find('\n', star + 1) - star - 3);
  const std::size_t data = line.find_first_not_of(' ', line.find(' '));
  return line.substr(0, line.find(' ')) + " " + line.substr(data, line.find(' ', data) - data);
}

}  // namespace

TEST_CASE("every rank explains a collective alike") {
  const Ranks ranks(4);
  for (int collective = tuttiAllReduce; collective <= tuttiScatter; ++collective) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{1000000}}) {
      const auto which = static_cast<tuttiCollective_t>(collective);
      const std::string first = explain(ranks[0], which, count, 1);
      for (int r = 1; r < ranks.count(); ++r) CHECK(explain(ranks[r], which, count, 1) == first);
    }
  }
}

TEST_CASE("an all_reduce is explained out of place") {
  const Ranks ranks(4);
  // Only out of place may it read the peers' inputs while it writes the output.
  const std::string text = explain(ranks[0], tuttiAllReduce, 1000, 0);
  INFO(text);
  CHECK(text.find("oneshot            direct") != std::string::npos);
}

TEST_CASE("the explained choice is the one that calls of this size remember: one for each power of two") {
  const Ranks ranks(4);
  for (std::size_t count = 256; count < (std::size_t{1} << 22); count *= 2) {
    INFO("counts " << count << " to " << 2 * count - 1);
    CHECK(chosen(explain(ranks[0], tuttiAllReduce, count, 0)) ==
          chosen(explain(ranks[0], tuttiAllReduce, 2 * count - 1, 0)));
  }
}

TEST_CASE("what one rank asks for holds for all: sums in rank order") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comms[2];
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.reproducible = rank;
    CHECK(tuttiCommInitRank(&comms[rank], 2, id, rank, &config) == ncclSuccess);
  }
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  for (ncclComm_t comm : comms) {
    const std::string text = explain(comm, tuttiAllReduce, 1000, 0);
    INFO(text);
    CHECK(text.find("\nreproducible: ") != std::string::npos);
  }
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
}

TEST_CASE("ranks that may use different numbers of cores plan alike") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comms[4] = {};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      cpu_set_t cores;
      sched_getaffinity(0, sizeof cores, &cores);
      for (int core = 0, kept = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &cores) && ++kept > 1 && rank != 0) CPU_CLR(core, &cores);
      }
      sched_setaffinity(0, sizeof cores, &cores);
      ncclCommInitRank(&comms[rank], 4, id, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (ncclComm_t comm : comms) {
    REQUIRE(comm != nullptr);
    CHECK(explain(comm, tuttiAllReduce, 100000, 0) == explain(comms[0], tuttiAllReduce, 100000, 0));
  }
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
}
