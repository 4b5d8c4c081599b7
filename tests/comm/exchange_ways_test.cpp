// Which way two ranks take that send each other as much: both the same in every call, whatever they try. Read from what they announce.
#include "comm/communicator.h"
#include "comm/unique_id.h"
#include "rank_runs.h"

#include <catch2/catch.hpp>

#include <sys/mman.h>

#include <array>
#include <set>
#include <string>
#include <vector>

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

}  // namespace

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
