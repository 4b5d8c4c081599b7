// Who chooses the way that a call of two ranks takes, and which one two take that send each other as much: both the same in every call, whatever they
// try. Read from what they announce, and from the system calls that copy.
#include "comm/calibration.h"
#include "comm/communicator.h"
#include "comm/unique_id.h"
#include "rank_runs.h"

#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <set>
#include <string>
#include <vector>

namespace {
std::atomic<int> single_copies{0};
}  // namespace

/// The library's, as this program's symbols come before the C library's.
extern "C" ssize_t process_vm_readv(pid_t process, const iovec* to, unsigned long to_count, const iovec* from,
                                    unsigned long from_count, unsigned long flags) noexcept {
  ++single_copies;
  return syscall(SYS_process_vm_readv, process, to, to_count, from, from_count, flags);
}

using namespace rank_runs;
using namespace tutti::comm;
using tutti::Collective;
using tutti::DataType;

namespace {

constexpr int kCalls = 120;

/// Of two processes.
struct Seen {
  std::array<std::array<std::uint32_t, kCalls>, 2> ways;  ///< of each rank's receives
  bool is_measured;                                       ///< else there are no ways
};

/// One half, or both in a group.
std::string make(Communicator& comm, const std::vector<float>* out, std::vector<float>* in) {
  if (out != nullptr && in != nullptr) (void)group_start();
  CallArgs args;
  args.type = DataType::kFloat32;
  args.count = out != nullptr ? out->size() : in->size();
  args.root = 1 - rank_of(comm);
  args.collective = Collective::kSend;
  args.send = out != nullptr ? out->data() : nullptr;
  tutti::Status status;
  if (out != nullptr) status = submit(comm, args);
  args.collective = Collective::kReceive;
  args.send = nullptr;
  args.receive = in != nullptr ? in->data() : nullptr;
  if (status.ok() && in != nullptr) status = submit(comm, args);
  if (status.ok() && out != nullptr && in != nullptr) status = group_end();
  return status.ok() ? "" : status.error().message;
}

std::string run(const UniqueId& id, int rank, std::size_t count, Seen& seen) {
  Handle handle = nullptr;
  if (const auto made = init_rank(&handle, {&id, 1}, 2, rank, {}); !made.ok()) return made.error().message;
  Communicator& comm = *find(handle);
  Membership& members = comm.members();
  if (rank == 0) seen.is_measured = members.plans.rules().measured.streamed_gbps > 0;
  const std::vector<float> out(count, static_cast<float>(rank));
  std::vector<float> in(count);
  // So that the ranks would not try other ways in the same calls by themselves.
  for (int call = 0; call < 5; ++call) {
    std::string wrong = rank == 0 ? make(comm, &out, nullptr) : make(comm, nullptr, &in);
    if (!wrong.empty()) return wrong;
  }
  for (int call = 0; call < kCalls; ++call) {
    if (std::string wrong = make(comm, &out, &in); !wrong.empty()) return wrong;
    if (in.front() != static_cast<float>(1 - rank) || in.back() != in.front()) return "wrong data";
    const auto& line = members.control.pair(1 - rank, rank).receive(members.received_calls[1 - rank]);
    seen.ways[rank][call] = line.buffers.flags & tutti::protocol::kWayBits;
  }
  const auto destroyed = destroy(handle);
  return destroyed.ok() ? "" : destroyed.error().message;
}

/// A single way goes through slots, both ways at once by single copies: so the prices have it that are made known here.
std::string run_at_set_prices(const UniqueId& id, int rank) {
  remember_costs({.slot_gbps = 10.4, .call_us = 0.9, .call_gbps = 8.2, .streamed_gbps = 8.3});
  Handle handle = nullptr;
  if (const auto made = init_rank(&handle, {&id, 1}, 2, rank, {}); !made.ok()) return made.error().message;
  Communicator& comm = *find(handle);
  if (!comm.members().single_copy) return "";  // forbidden here
  const auto exchanges = [&] {
    const auto& line = comm.members().control.pair(1 - rank, rank).receive(comm.members().received_calls[1 - rank]);
    return (line.buffers.flags & tutti::protocol::kExchanges) != 0;
  };
  const std::vector<float> out(1000000, static_cast<float>(rank));
  std::vector<float> in(out.size());
  for (int round = 0; round < 2; ++round) {
    single_copies = 0;
    std::string wrong = rank == 0 ? make(comm, &out, nullptr) : make(comm, nullptr, &in);
    if (!wrong.empty()) return wrong;
    if (rank == 1 && exchanges()) return "a receive by itself is said to be an exchange's";
    if (single_copies != 0) return "a single way went by single copies";
    wrong = make(comm, &out, &in);
    if (!wrong.empty()) return wrong;
    if (!exchanges()) return "an exchange's receive does not say so";
    if (single_copies == 0) return "an exchange went through slots";
    if (in.front() != static_cast<float>(1 - rank) || in.back() != in.front()) return "wrong data";
  }
  const auto destroyed = destroy(handle);
  return destroyed.ok() ? "" : destroyed.error().message;
}

/// Of each rank, the ways that its lines have said.
struct Said {
  std::array<std::uint32_t, 2> ways;  ///< a bit for each
  bool has_choice;                    ///< single copies are not forbidden
};

std::string run_rooted(const UniqueId& id, int rank, Collective collective, int root, Said& said) {
  remember_costs({.slot_gbps = 10.4, .call_us = 0.9, .call_gbps = 8.2, .streamed_gbps = 8.3});
  Handle handle = nullptr;
  if (const auto made = init_rank(&handle, {&id, 1}, 2, rank, {}); !made.ok()) return made.error().message;
  Communicator& comm = *find(handle);
  Membership& members = comm.members();
  if (rank == 0) said.has_choice = members.single_copy;
  const std::vector<float> out(300000, static_cast<float>(rank + 1));
  std::vector<float> in(out.size());
  CallArgs args;
  args.collective = collective;
  args.type = DataType::kFloat32;
  args.op = tutti::ReduceOp::kSum;
  args.count = out.size();
  args.root = root;
  args.send = out.data();
  args.receive = in.data();
  for (int call = 0; call < kCalls; ++call) {
    if (const auto status = submit(comm, args); !status.ok()) return status.error().message;
    const auto& line = members.announcer.board().line(static_cast<std::uint32_t>(rank), members.announcer.sequence());
    said.ways[rank] |= 1u << ((line.buffers.flags & tutti::protocol::kWayBits) >> tutti::protocol::kWayShift);
  }
  const float wanted = collective == Collective::kReduce ? 3 : static_cast<float>(root + 1);
  const bool has_output = collective == Collective::kBroadcast || rank == root;
  if (has_output && (in.front() != wanted || in.back() != wanted)) return "wrong data";
  const auto destroyed = destroy(handle);
  return destroyed.ok() ? "" : destroyed.error().message;
}

}  // namespace

// Through slots, who only sends is through with a call before its data has been read, and would take them for faster than they are.
TEST_CASE("who reads chooses the way of a rooted call", "[ways][forks]") {
  const auto collective = GENERATE(Collective::kBroadcast, Collective::kReduce);
  const int root = GENERATE(0, 1);
  const int reader = collective == Collective::kReduce ? root : 1 - root;
  void* const page = mmap(nullptr, sizeof(Said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  Said& said = *new (page) Said{};
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const pid_t ranks[] = {spawn([&] { return run_rooted(id.value(), 0, collective, root, said); }),
                         spawn([&] { return run_rooted(id.value(), 1, collective, root, said); })};
  for (const pid_t rank : ranks) CHECK(ended_well(rank));
  CHECK(said.ways[1 - reader] == 1);  // the first one's number, which says nothing
  if (said.has_choice) CHECK(std::popcount(said.ways[reader]) > 1);
  munmap(page, sizeof(Said));
}

TEST_CASE("two ranks that send to each other go one way, in trials as well", "[ways][forks]") {
  const std::size_t count = GENERATE(20000, 300000, 1000000);
  void* const page = mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  Seen& seen = *new (page) Seen{};
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const pid_t ranks[] = {spawn([&] { return run(id.value(), 0, count, seen); }),
                         spawn([&] { return run(id.value(), 1, count, seen); })};
  for (const pid_t rank : ranks) CHECK(ended_well(rank));
  CHECK(seen.ways[0] == seen.ways[1]);
  const std::set<std::uint32_t> tried(seen.ways[0].begin(), seen.ways[0].end());
  if (seen.is_measured) CHECK(tried.size() > 1);
  munmap(page, sizeof(Seen));
}

TEST_CASE("an exchange has a price of its own, on both ranks", "[ways][forks]") {
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const pid_t ranks[] = {spawn([&] { return run_at_set_prices(id.value(), 0); }),
                         spawn([&] { return run_at_set_prices(id.value(), 1); })};
  for (const pid_t rank : ranks) CHECK(ended_well(rank));
}
