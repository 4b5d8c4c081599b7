// Calls whose numbers are large: a communicator's are counted by 32 bits, and go round.
#include "comm/communicator.h"
#include "comm/unique_id.h"
#include "rank_runs.h"

#include <catch2/catch.hpp>

#include <cstdlib>
#include <string>
#include <vector>

using namespace rank_runs;
using namespace tutti::comm;

namespace {

tutti::Status add_up(Communicator& comm, std::vector<float>& data) {
  CallArgs args;
  args.type = tutti::DataType::kFloat32;
  args.count = data.size();
  args.send = args.receive = data.data();
  return submit(comm, args);
}

/// As if all ranks had made so many calls that this is the next one's number.
void skip_to(Communicator& comm, std::uint32_t number) {
  while (comm.next_sequence() != number - 1) {
  }
  // In which a rank looks for the others', to have room for its own.
  const std::uint32_t seen = number - tutti::protocol::kAnnounceDepth / 2;
  const tutti::protocol::AnnounceBoard board = comm.members().control.board();
  tutti::executor::store_release(&board.line(static_cast<std::uint32_t>(rank_of(comm)), seen).word,
                                 tutti::protocol::announce_word(seen, 0));
}

std::string run(const UniqueId& id, int rank, std::uint32_t first) {
  setenv("TUTTI_TIMEOUT_S", "20", 1);
  Handle handle = nullptr;
  if (const auto made = init_rank(&handle, {&id, 1}, 2, rank, {}); !made.ok()) return made.error().message;
  Communicator& comm = *find(handle);
  skip_to(comm, first);
  for (int call = 0; call < 40; ++call) {
    std::vector<float> data(call % 2 == 0 ? 1 : 100000, static_cast<float>(rank + call));
    if (const auto made = add_up(comm, data); !made.ok()) return made.error().message;
    if (data.front() != static_cast<float>(2 * call + 1) || data.back() != data.front()) return "wrong data";
  }
  if (rank == 0) {
    std::vector<float> data(1);
    const Stopwatch watch;
    const auto made = add_up(comm, data);
    if (made.ok()) return "a call without rank 1 is carried through";
    if (made.error().message.find("rank 1 has left") == std::string::npos) return made.error().message;
    if (watch.seconds() > 10) return "that rank 1 has left is noticed late";
  }
  const auto destroyed = destroy(handle);
  return destroyed.ok() ? "" : destroyed.error().message;
}

}  // namespace

TEST_CASE("past 2^31 calls, and 2^32, sums are right, and a rank that has left is noticed", "[numbers][forks]") {
  const std::uint32_t first = GENERATE((1u << 31) - 20, 0u - 20);
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const pid_t ranks[] = {spawn([&] { return run(id.value(), 0, first); }),
                         spawn([&] { return run(id.value(), 1, first); })};
  for (const pid_t rank : ranks) CHECK(ended_well(rank));
}
