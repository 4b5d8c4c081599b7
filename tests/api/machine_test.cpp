// What a communicator tells of its machine: graph, plan and certificate, as text in the caller's memory.
#include "in_process.h"

#include <catch2/catch.hpp>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using tutti::test::check_invalid;
using tutti::test::check_usable;
using tutti::test::Ranks;

namespace {

using Ask = std::function<ncclResult_t(char*, std::size_t, std::size_t*)>;

/// The whole text, asked for in two steps as a program does.
std::string whole(const Ask& ask) {
  std::size_t needed = 0;
  const ncclResult_t sized = ask(nullptr, 0, &needed);
  INFO(ncclGetLastError(nullptr));
  REQUIRE(sized == ncclSuccess);
  REQUIRE(needed > 1);
  std::string text(needed, '#');
  REQUIRE(ask(text.data(), text.size(), nullptr) == ncclSuccess);
  REQUIRE(text.back() == '\0');
  text.pop_back();
  CHECK(text.find('\0') == std::string::npos);
  return text;
}

Ask topology_of(ncclComm_t comm) {
  return
      [comm](char* text, std::size_t size, std::size_t* needed) { return tuttiCommTopology(comm, text, size, needed); };
}
Ask plan_of(ncclComm_t comm, tuttiCollective_t collective = tuttiAllReduce) {
  return [=](char* text, std::size_t size, std::size_t* needed) {
    return tuttiCommPlan(comm, collective, ncclFloat, ncclSum, 0, text, size, needed);
  };
}
Ask certificate_of(ncclComm_t comm, std::size_t count, tuttiCollective_t collective = tuttiAllReduce) {
  return [=](char* text, std::size_t size, std::size_t* needed) {
    return tuttiCommCertificate(comm, collective, count, ncclFloat, ncclSum, 0, text, size, needed);
  };
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// In a build without hwloc or pugixml there is no plug-in.
bool has_plugin() { return std::getenv("TUTTI_TEST_NO_PLUGIN") == nullptr; }

}  // namespace

TEST_CASE("the machine graph is the same on every rank, with a place for each", "[machine]") {
  const Ranks ranks(3);
  if (!has_plugin()) {
    std::size_t needed = 0;
    CHECK(tuttiCommTopology(ranks[0], nullptr, 0, &needed) == ncclSystemError);
    CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains("libtutti-topology.so"));
    check_usable(ranks);
    return;
  }
  const std::string text = whole(topology_of(ranks[1]));
  INFO(text);
  CHECK(text.rfind("tutti-topology 1\nhost ", 0) == 0);
  CHECK(has(text, "\nnuma "));
  for (int rank = 0; rank < 3; ++rank) CHECK(has(text, "\n# rank " + std::to_string(rank) + ": "));
  CHECK(!has(text, "# rank 3"));
  for (const int rank : {0, 2}) CHECK(whole(topology_of(ranks[rank])) == text);
  check_usable(ranks);
}

TEST_CASE("ranks that ask for the graph at the same time get the same one", "[machine]") {
  if (!has_plugin()) return;
  const Ranks ranks(4);
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      texts[rank].resize(1 << 20);
      if (tuttiCommTopology(ranks[rank], texts[rank].data(), texts[rank].size(), nullptr) != ncclSuccess)
        texts[rank] = "failed";
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(texts[0].rfind("tutti-topology 1", 0) == 0);
  for (const std::string& text : texts) CHECK(text == texts[0]);
}

TEST_CASE("a rank that is alone has a machine too", "[machine]") {
  const Ranks ranks(1);
  if (has_plugin()) CHECK(has(whole(topology_of(ranks[0])), "# rank 0: "));
  CHECK(has(whole(certificate_of(ranks[0], 1000)), "a copy"));
}

TEST_CASE("a text that does not fit is cut, and ended by a zero byte", "[machine]") {
  const Ranks ranks(2);
  const std::string text = whole(plan_of(ranks[0]));
  std::string part(20, '#');
  std::size_t needed = 0;
  REQUIRE(tuttiCommPlan(ranks[0], tuttiAllReduce, ncclFloat, ncclSum, 0, part.data(), 10, &needed) == ncclSuccess);
  CHECK(needed == text.size() + 1);
  CHECK(part == text.substr(0, 9) + '\0' + std::string(10, '#'));
}

TEST_CASE("the plan by size begins with the smallest call and names what tuttiExplain names", "[machine]") {
  const Ranks ranks(4);
  for (const tuttiCollective_t collective : {tuttiAllReduce, tuttiAllGather, tuttiBroadcast, tuttiAlltoAll}) {
    const std::string text = whole(plan_of(ranks[0], collective));
    INFO(text);
    CHECK(has(text, "\n         4 B  "));
    for (int rank = 1; rank < 4; ++rank) CHECK(whole(plan_of(ranks[rank], collective)) == text);
  }
  // What runs last in the table runs for its largest size.
  const std::string text = whole(plan_of(ranks[0]));
  const std::size_t line = text.rfind('\n', text.size() - 2) + 1;
  const std::string algorithm = text.substr(line + 14, text.find(' ', line + 14) - line - 14);
  std::string explained(1 << 16, '\0');
  REQUIRE(tuttiExplain(ranks[0], tuttiAllReduce, std::size_t{1} << 28, ncclFloat, ncclSum, 0, explained.data(),
                       explained.size(), nullptr) == ncclSuccess);
  INFO(text << explained);
  CHECK(has(explained, "\n* " + algorithm + " "));
}

TEST_CASE("a certificate has the memory's bound, what is expected, and why it was chosen", "[machine]") {
  const Ranks ranks(2);
  const std::size_t count = std::size_t{64} << 20;
  const std::string text = whole(certificate_of(ranks[0], count));
  INFO(text);
  CHECK(has(text, "certificate of all_reduce of 67108864 float32 (256 MiB) on 2 ranks\n"));
  CHECK(has(text, "bound"));
  // Two inputs and two outputs of 256 MiB.
  CHECK(has(text, "memory: 1 GiB read and written"));
  CHECK(has(text, "expected"));
  CHECK(has(text, "chosen for the lowest expected time"));
  // What was measured is shared: the other rank says the same.
  CHECK(whole(certificate_of(ranks[1], count)) == text);
  // Two blocks read, two of twice the size written.
  CHECK(has(whole(certificate_of(ranks[0], count, tuttiAllGather)), "memory: 1536 MiB read and written"));
  CHECK(has(whole(certificate_of(ranks[0], 0)), "nothing to move"));
}

TEST_CASE("wrong arguments of these functions are refused by name", "[machine]") {
  const Ranks ranks(2);
  char text[16];
  check_invalid(tuttiCommTopology(nullptr, text, sizeof text, nullptr), {"tuttiCommTopology", "comm"});
  check_invalid(tuttiCommTopology(ranks[0], nullptr, 5, nullptr), {"text is NULL", "size is 5"});
  check_invalid(tuttiCommPlan(ranks[0], static_cast<tuttiCollective_t>(12), ncclFloat, ncclSum, 0, text, 16, nullptr),
                {"tuttiCommPlan", "collective is 12"});
  check_invalid(tuttiCommCertificate(ranks[0], tuttiReduce, 4, ncclFloat, ncclSum, 2, text, sizeof text, nullptr),
                {"tuttiCommCertificate", "root is 2"});
  check_usable(ranks);
}
