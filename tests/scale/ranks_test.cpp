// Many real ranks on one machine: threads, in a process for each host that the machine imitates, by the real bootstrap. Prints what
// they take, and bounds it.
#include "../bench/startup_footprint.h"
#include "comm/crew.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

using crew::fine;
using crew::Member;
using tutti::bench::Footprint;

struct Job {
  int hosts = 1;
  int ranks_per_host = 1;
  std::size_t longest = 1000;  ///< sum, in elements
  int ranks() const { return hosts * ranks_per_host; }
};

struct Bounds {
  double init_s = 0;
  double init_kib = 0;           ///< memory of a rank once initialised
  double calls_kib = 0;          ///< and after the calls
  double descriptors = 0;        ///< once initialised
  double calls_descriptors = 0;  ///< and after the calls
  double threads = 0;
};

/// Of the process that makes the id: the root's connections, and some of its own.
constexpr long kRootDescriptorsMax = 2 * 16 + 96 + 12;

/// What a host's process found, for each of its ranks.
struct Found {
  double init_s = 0;
  double calls_s = 0;
  double init_kib = 0;
  double calls_kib = 0;
  double descriptors = 0;
  double calls_descriptors = 0;
  double threads = 0;
};

/// Sums that every rank checks; the first ones end with the announcement, the last ones run a schedule.
constexpr std::size_t kCounts[] = {1, 14, 1000};

std::string sums(const Job& job, int rank, ncclComm_t comm) {
  const int ranks = job.ranks();
  for (const std::size_t count : kCounts) {
    if (count > job.longest) break;
    std::vector<int> data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = rank * 3 + static_cast<int>(i % 101);
    CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), count, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
    for (std::size_t i = 0; i < count; ++i) {
      const int wanted = 3 * ranks * (ranks - 1) / 2 + ranks * static_cast<int>(i % 101);
      if (data[i] != wanted)
        return "element " + std::to_string(i) + " of " + std::to_string(count) + " is " + std::to_string(data[i]) +
               " where " + std::to_string(wanted) + " is right";
    }
  }
  return "";
}

/// A host's ranks, and what they take between their steps.
class Host {
 public:
  /// `counted`: hosts that have counted what initialisation takes.
  Host(const Job& job, const Member& host, Found& found, std::atomic<int>& counted)
      : job_(job),
        host_(host),
        found_(found),
        counted_(counted),
        barrier_(job.ranks_per_host),
        wrong_(static_cast<std::size_t>(job.ranks_per_host)) {}

  std::string run() {
    std::vector<std::thread> threads;
    for (int place = 0; place < job_.ranks_per_host; ++place) threads.emplace_back([this, place] { live(place); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& wrong : wrong_) {
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  void live(int place) {
    std::string& wrong = wrong_[static_cast<std::size_t>(place)];
    const int rank = host_.rank * job_.ranks_per_host + place;
    barrier_.arrive_and_wait();
    if (place == 0) before_ = Footprint::now();
    barrier_.arrive_and_wait();
    const double began = crew::now_s();
    ncclComm_t comm = nullptr;
    wrong = fine(ncclCommInitRank(&comm, job_.ranks(), host_.ids[0], rank), "ncclCommInitRank");
    const bool made = wrong.empty();
    barrier_.arrive_and_wait();
    if (place == 0) {
      note_init(crew::now_s() - began);
      await_all_counted();  // others' sums connect with this host's ranks
    }
    barrier_.arrive_and_wait();
    const double calls_began = crew::now_s();
    if (made) wrong = sums(job_, rank, comm);
    barrier_.arrive_and_wait();
    if (place == 0) note_calls(crew::now_s() - calls_began);
    barrier_.arrive_and_wait();
    if (!made) return;
    const std::string left = fine(ncclCommDestroy(comm), "ncclCommDestroy");
    if (wrong.empty()) wrong = left;
  }

  void await_all_counted() {
    ++counted_;
    for (const double since = crew::now_s(); counted_ < job_.hosts && crew::now_s() - since < 30;) usleep(100);
  }
  void note_init(double seconds) {
    const Footprint now = Footprint::now();
    found_.init_s = seconds;
    found_.init_kib = kib_per_rank(now);
    found_.descriptors = static_cast<double>(now.descriptors - before_.descriptors) / job_.ranks_per_host;
    found_.threads = static_cast<double>(now.threads - before_.threads) / job_.ranks_per_host;
  }
  void note_calls(double seconds) {
    found_.calls_s = seconds;
    const Footprint now = Footprint::now();
    found_.calls_kib = kib_per_rank(now);
    found_.calls_descriptors = static_cast<double>(now.descriptors - before_.descriptors) / job_.ranks_per_host;
  }
  double kib_per_rank(const Footprint& now) const {
    const auto grown = [](std::uint64_t then, std::uint64_t since) {
      return static_cast<double>(since) - static_cast<double>(then);
    };
    const double bytes =
        grown(before_.private_bytes, now.private_bytes) + grown(before_.segment_taken_bytes, now.segment_taken_bytes);
    return bytes / 1024 / job_.ranks_per_host;
  }

  const Job job_;
  const Member& host_;
  Found& found_;
  std::atomic<int>& counted_;
  std::barrier<> barrier_;
  std::vector<std::string> wrong_;  ///< by place
  Footprint before_;
};

/// A rank has some descriptors of its own, and the limit is a process's.
void allow_descriptors() {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/// A process that looks how many descriptors this one has, again and again.
class Looker {
 public:
  Looker() : most_(static_cast<std::atomic<long>*>(crew::shared_page())) {
    const pid_t watched = getpid();
    child_ = fork();
    if (child_ != 0) return;
    const std::string folder = "/proc/" + std::to_string(watched) + "/fd";
    for (;; usleep(1000)) {
      const long now = std::distance(std::filesystem::directory_iterator(folder), {});
      if (now > *most_) *most_ = now;
    }
  }
  Looker(const Looker&) = delete;
  Looker& operator=(const Looker&) = delete;
  /// Until now.
  long most() const { return *most_; }
  ~Looker() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    munmap(most_, 4096);
  }

 private:
  std::atomic<long>* most_;
  pid_t child_ = -1;
};

Found worst_of(const Found* all, int hosts) {
  Found worst;
  for (int host = 0; host < hosts; ++host) {
    worst.init_s = std::max(worst.init_s, all[host].init_s);
    worst.calls_s = std::max(worst.calls_s, all[host].calls_s);
    worst.init_kib = std::max(worst.init_kib, all[host].init_kib);
    worst.calls_kib = std::max(worst.calls_kib, all[host].calls_kib);
    worst.descriptors = std::max(worst.descriptors, all[host].descriptors);
    worst.calls_descriptors = std::max(worst.calls_descriptors, all[host].calls_descriptors);
    worst.threads = std::max(worst.threads, all[host].threads);
  }
  return worst;
}

void check(const Job& job, const Bounds& bounds) {
  INFO(job.hosts << " hosts of " << job.ranks_per_host << " ranks");
  allow_descriptors();
  if (job.hosts > 1) setenv("TEST_RANKS_PER_HOST", "1", 1);  // a process of the crew is a host
  auto* found = static_cast<Found*>(crew::shared_page());
  static_assert(64 * sizeof(Found) + sizeof(std::atomic<int>) <= 4096);
  auto& counted = *new (found + 64) std::atomic<int>(0);
  REQUIRE(job.hosts <= 64);
  const Looker looker;  // this process has the root, and a pipe from each host's
  crew::check(crew::run(
      job.hosts, [&](const Member& host) { return Host(job, host, *new (found + host.rank) Found, counted).run(); },
      100, 1));
  const long root_descriptors = looker.most() - job.hosts;
  unsetenv("TEST_RANKS_PER_HOST");
  const Found worst = worst_of(found, job.hosts);
  std::printf(
      "%4d ranks on %2d hosts: init %.2f s, sums %.2f s; per rank %.0f KiB after init, %.0f KiB after sums; %.1f "
      "descriptors after init, %.1f after sums; %.1f threads; the root's process %ld descriptors\n",
      job.ranks(), job.hosts, worst.init_s, worst.calls_s, worst.init_kib, worst.calls_kib, worst.descriptors,
      worst.calls_descriptors, worst.threads, root_descriptors);
  CHECK(root_descriptors <= kRootDescriptorsMax);
  CHECK(worst.init_s <= bounds.init_s);
  CHECK(worst.init_kib <= bounds.init_kib);
  CHECK(worst.calls_kib <= bounds.calls_kib);
  CHECK(worst.descriptors <= bounds.descriptors);
  CHECK(worst.calls_descriptors <= bounds.calls_descriptors);
  CHECK(worst.threads <= bounds.threads);
  munmap(found, 4096);
}

/// Ranks that call sums until one fails: by then a whole host has been killed.
std::string outlive(const Job& job, const Member& host, int victim) {
  std::barrier<> barrier(job.ranks_per_host);
  std::vector<std::string> wrong(static_cast<std::size_t>(job.ranks_per_host));
  const auto live = [&](int place) -> std::string {
    const int rank = host.rank * job.ranks_per_host + place;
    ncclComm_t comm = nullptr;
    const std::string made = fine(ncclCommInitRank(&comm, job.ranks(), host.ids[0], rank), "ncclCommInitRank");
    if (!made.empty()) return made;
    // The others may still be in these sums when the victim is through with them.
    std::string reason = sums(job, rank, comm);
    if (host.rank == victim) {
      barrier.arrive_and_wait();
      raise(SIGKILL);
    }
    int value = 1;
    const double began = crew::now_s();
    while (reason.empty() && crew::now_s() - began < 20)
      reason = fine(ncclAllReduce(&value, &value, 1, ncclInt, ncclMax, comm, nullptr), "the sum after the death");
    ncclCommAbort(comm);
    for (int dead = 0; dead < job.ranks_per_host; ++dead) {
      const std::string name = " rank " + std::to_string(victim * job.ranks_per_host + dead) + " (";
      if (reason.find(name) != std::string::npos) return "";
    }
    return "no dead rank is named: " + reason;
  };
  std::vector<std::thread> threads;
  for (int place = 0; place < job.ranks_per_host; ++place)
    threads.emplace_back([&, place] { wrong[static_cast<std::size_t>(place)] = live(place); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) {
    if (!text.empty()) return text;
  }
  return "";
}

/// Connections on which ranks watch each other, those for data of a rank that carries between hosts and measures the network, and a few
/// descriptors of the rank's own.
double init_descriptors_max(const Job& job) {
  if (job.hosts == 1) return 1;
  const bool many = job.ranks() > 16;
  const double watched = many ? 2 * std::log2(job.ranks()) : job.ranks() - 1;
  const double carried = std::ceil((job.hosts - 1.0) / job.ranks_per_host);
  return watched + (many ? std::min(carried, 2 * std::ceil(std::log2(job.hosts))) : carried) + 5;
}

/// Further ones for what the sums' plans send: to one rank of each other host at most.
double calls_descriptors_max(const Job& job) {
  return init_descriptors_max(job) + (job.hosts == 1 ? 0 : job.hosts - 1);
}

}  // namespace

// Seconds are for machines of two cores that have other things to do; what is measured is printed.
TEST_CASE("8, 16 and 32 ranks of hosts of 8", "[scale]") {
  struct Few {
    int hosts;
    double init_kib, calls_kib;
  };
  for (const Few& few : {Few{1, 200, 220}, Few{2, 750, 1500}, Few{4, 1200, 3600}}) {
    const Job job{few.hosts, 8};
    // What the network is measured to take decides how many ranks a plan has each talk to: all at most.
    const double calls_descriptors = init_descriptors_max(job) + job.ranks() - job.ranks_per_host;
    check(job, {30, few.init_kib, few.calls_kib, init_descriptors_max(job), calls_descriptors, 1.5});
  }
}

TEST_CASE("256 ranks of one host", "[scale]") {
  const Job job{1, 256};
  check(job, {30, 512, 1024, init_descriptors_max(job), calls_descriptors_max(job), 1.5});
}

TEST_CASE("64 ranks of 8 hosts", "[scale]") {
  const Job job{8, 8};
  check(job, {30, 3000, 8000, init_descriptors_max(job), calls_descriptors_max(job), 1.5});
}

TEST_CASE("64 ranks of a host each", "[scale]") {
  const Job job{64, 1, 14};  // whose lines make no connection; a longer sum's plan may have all talk to all
  check(job, {30, 1800, 2000, init_descriptors_max(job), init_descriptors_max(job), 1.5});
}

TEST_CASE("1024 ranks of one host", "[scale]") {
  const Job job{1, 1024, 14};  // as many plans at once take two cores eight seconds
  check(job, {30, 1500, 1600, init_descriptors_max(job), calls_descriptors_max(job), 1.5});
}

TEST_CASE("256 ranks of 32 hosts", "[.][large]") {
  const Job job{32, 8};
  check(job, {90, 11000, 21000, init_descriptors_max(job), calls_descriptors_max(job), 1.5});
}

TEST_CASE("64 ranks of 8 hosts, one of which is killed, end with the name of one that died", "[scale]") {
  constexpr int kVictim = 5;
  const Job job{8, 8};
  allow_descriptors();
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  crew::check(crew::run(
                  job.hosts, [&](const Member& host) { return outlive(job, host, kVictim); }, 60, 1),
              {kVictim});
  unsetenv("TEST_RANKS_PER_HOST");
}
