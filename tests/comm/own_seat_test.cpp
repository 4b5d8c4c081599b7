// Where a thread sits, read from this machine and from folders that look like others.
#include "comm/own_seat.h"
#include "tests/temporary_folder.h"

#include <catch2/catch.hpp>

#include <sched.h>

#include <string>
#include <thread>

using namespace tutti;
using planner::kUnknownSeat;

namespace {

/// The seat of a thread that may use its first processor only, or all it has.
planner::Seat seat_in(const TemporaryFolder& root, bool bound) {
  planner::Seat seat;
  std::thread([&] {
    if (bound) {
      cpu_set_t all;
      sched_getaffinity(0, sizeof all, &all);
      cpu_set_t one;
      CPU_ZERO(&one);
      for (int processor = 0; processor < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++processor)
        if (CPU_ISSET(processor, &all)) CPU_SET(processor, &one);
      sched_setaffinity(0, sizeof one, &one);
    }
    seat = comm::own_seat(root.path());
  }).join();
  return seat;
}

/// A machine whose first usable processor has a socket, a node and a cache of its own.
void describe_apart(const TemporaryFolder& root, int first) {
  const std::string me = std::to_string(first);
  const std::string others = std::to_string(first + 1) + "-" + std::to_string(first + 4000);
  root.write_line("sys/devices/system/node/online", "0-1");
  root.write_line("sys/devices/system/node/node0/cpulist", others);
  root.write_line("sys/devices/system/node/node1/cpulist", me);
  const std::string cpu = "sys/devices/system/cpu/cpu" + me;
  root.write_line(cpu + "/topology/core_siblings_list", me);
  root.write_line(cpu + "/cache/index2/shared_cpu_list", me);
  root.write_line(cpu + "/cache/index3/shared_cpu_list", me);
}

}  // namespace

TEST_CASE("this machine's seat holds together", "[seat]") {
  const planner::Seat seat = comm::own_seat("");
  REQUIRE(!seat.processors.empty());
  CHECK(comm::outlook("") == comm::outlook(""));
}

TEST_CASE("a bound thread sits in its socket, node and cache; one that may run anywhere in none", "[seat]") {
  const planner::Seat here = comm::own_seat("");
  const TemporaryFolder root;
  const int first = here.processors.front();
  describe_apart(root, first);
  const planner::Seat bound = seat_in(root, true);
  CHECK(bound.processors == std::vector{first});
  CHECK(bound.numa == 1);
  CHECK(bound.package == first);
  CHECK(bound.cache == first);
  if (here.processors.size() < 2) return;
  const planner::Seat free = seat_in(root, false);
  CHECK(free.processors == here.processors);
  CHECK(free.numa == kUnknownSeat);
  CHECK(free.package == kUnknownSeat);
  CHECK(free.cache == kUnknownSeat);
}

TEST_CASE("without the files there is one node, and nothing else is known", "[seat]") {
  const TemporaryFolder root;
  const planner::Seat seat = seat_in(root, false);
  CHECK(seat.numa == 0);
  CHECK(seat.package == kUnknownSeat);
  CHECK(seat.cache == kUnknownSeat);
  CHECK(seat.quota_percent == 0);
}

TEST_CASE("the narrowest quota of the control groups counts", "[seat]") {
  const TemporaryFolder root;
  root.write_line("proc/self/cgroup", "0::/pods/one");
  root.write_line("sys/fs/cgroup/pods/one/cpu.max", "max 100000");
  CHECK(comm::own_seat(root.path()).quota_percent == 0);
  root.write_line("sys/fs/cgroup/pods/cpu.max", "250000 100000");
  CHECK(comm::own_seat(root.path()).quota_percent == 250);
  root.write_line("sys/fs/cgroup/pods/one/cpu.max", "50000 100000");
  CHECK(comm::own_seat(root.path()).quota_percent == 50);
  root.write_line("sys/fs/cgroup/pods/one/cpu.max", "nonsense");
  CHECK(comm::own_seat(root.path()).quota_percent == 250);
}

TEST_CASE("who sees other devices has another outlook", "[seat]") {
  const TemporaryFolder root;
  const std::uint64_t none = comm::outlook(root.path());
  root.write_line("dev/nvidia0", "");
  const std::uint64_t one = comm::outlook(root.path());
  root.write_line("dev/nvidia7", "");
  const std::uint64_t two = comm::outlook(root.path());
  CHECK(none != one);
  CHECK(one != two);
  root.write_line("dev/nvidiactl", "");
  CHECK(comm::outlook(root.path()) == two);
}

TEST_CASE("last-level caches count once each, whoever shares them", "[seat]") {
  const TemporaryFolder root;
  const auto describe = [&](int processor, int index, const std::string& size, const std::string& shared) {
    const std::string cache =
        "sys/devices/system/cpu/cpu" + std::to_string(processor) + "/cache/index" + std::to_string(index);
    root.write_line(cache + "/size", size);
    root.write_line(cache + "/shared_cpu_list", shared);
  };
  for (const int processor : {0, 1}) describe(processor, 3, "32768K", "0-1");
  for (const int processor : {2, 3}) describe(processor, 3, "16M", "2-3");
  describe(4, 2, "2048K", "4");
  describe(5, 3, "many", "5");
  CHECK(comm::last_caches_bytes(root.path(), {0}) == 32 << 20);
  CHECK(comm::last_caches_bytes(root.path(), {0, 1}) == 32 << 20);
  CHECK(comm::last_caches_bytes(root.path(), {0, 1, 2, 3, 4}) == 50 << 20);
  CHECK(comm::last_caches_bytes(root.path(), {0, 5}) == 0);
  CHECK(comm::last_caches_bytes(root.path(), {0, 6}) == 0);
  CHECK(comm::last_caches_bytes(root.path(), {}) == 0);
}
