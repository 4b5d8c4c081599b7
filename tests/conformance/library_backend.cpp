// The whole library through its C API: ranks in one thread, as threads or as processes, over each way that data can go.
#include "backend.h"
#include "crew.h"
#include "protocol/announce.h"
#include "starter.h"
#include "values.h"

#include <algorithm>

namespace tutti::conformance {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct Row {
  const char* name;
  const char* summary;
  Executor executor;
  Capability carrier;
  SessionOptions options;
  Variables variables;
};

std::vector<Row> rows() {
  const Variables kNoDirect = {{"NCCL_P2P_DISABLE", "1"}, {"TUTTI_CARRY_BYTES", "0"}};
  const Variables kLines = {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_PROTO", "LL"}, {"TUTTI_CARRY_BYTES", "0"}};
  const Variables kCopies = {{"TUTTI_SINGLE_COPY_MIN_BYTES", "1"}, {"TUTTI_CARRY_BYTES", "0"}};
  // Outputs are written past the caches, which otherwise only large calls do, and so is what others read.
  const Variables kStreams = {{"TUTTI_STREAM_MIN_BYTES", "1"}, {"TUTTI_SLOT_STORES", "streamed"}};
  const Executor one = Executor::kOneThread;
  const Executor threads = Executor::kThreads;
  const Executor processes = Executor::kProcesses;
  const Executor started = Executor::kStarted;
  return {
      {"group-mapped",
       "all ranks in groups of one thread, buffers of one process",
       one,
       Capability::kMapped,
       {false, false, "access: direct"},
       {}},
      {"group-slots",
       "all ranks in groups of one thread, slots",
       one,
       Capability::kSlots,
       {false, false, "access: slots"},
       kNoDirect},
      {"threads-mapped",
       "a thread per rank, buffers of one process",
       threads,
       Capability::kMapped,
       {false, false, "access: direct"},
       {}},
      {"threads-slots",
       "a thread per rank, slots",
       threads,
       Capability::kSlots,
       {false, false, "access: slots"},
       kNoDirect},
      {"threads-lines",
       "a thread per rank, flag-in-word lines where messages are short, else slots",
       threads,
       Capability::kLines,
       {false, false, "access: slots"},
       kLines},
      {"threads-announce",
       "a thread per rank, inputs in announce lines",
       threads,
       Capability::kAnnounceLines,
       {false, false, "access: announce line"},
       {}},
      {"threads-stream",
       "a thread per rank, calls on host streams",
       threads,
       Capability::kMapped,
       {false, true, "access: direct"},
       kStreams},
      {"processes-slots",
       "a process per rank, private buffers, slots",
       processes,
       Capability::kSlots,
       {},
       {{"TUTTI_SINGLE_COPY", "0"}, {"TUTTI_CARRY_BYTES", "0"}}},
      {"processes-announce",
       "a process per rank, private buffers, inputs in or beside announce lines",
       processes,
       Capability::kAnnounceLines,
       {false, false, "access: announce line"},
       {}},
      {"processes-copies",
       "a process per rank, private buffers, single copies",
       processes,
       Capability::kSingleCopy,
       {},
       kCopies},
      {"processes-mapped",
       "a process per rank, buffers of ncclMemAlloc, mapped",
       processes,
       Capability::kMapped,
       {true, false, ""},
       kStreams},
      {"processes-unmapped",
       "a process per rank, buffers of ncclMemAlloc, never mapped (NCCL_SHM_DISABLE)",
       processes,
       Capability::kSingleCopy,
       {true, false, ""},
       {{"NCCL_SHM_DISABLE", "1"}, {"TUTTI_SINGLE_COPY_MIN_BYTES", "1"}, {"TUTTI_CARRY_BYTES", "0"}}},
      {"processes-stream",
       "a process per rank, private buffers, calls on host streams",
       processes,
       Capability::kSlots,
       {false, true, ""},
       kStreams},
      {"hosts-slots",
       "a process per rank, each on a host of its own, slots over TCP",
       processes,
       Capability::kSlots,
       {false, false, "access: slots", 1},
       {{"TUTTI_CARRY_BYTES", "0"}}},
      {"hosts-announce",
       "a process per rank, each on a host of its own, inputs in or beside announce lines",
       processes,
       Capability::kAnnounceLines,
       {false, false, "access: announce line", 1},
       {}},
      {"hosts-pairs", "a process per rank, two on each host", processes, Capability::kSlots, {false, false, "", 2}, {}},
      {"hosts-stream",
       "a process per rank, three on each host, calls on host streams",
       processes,
       Capability::kSlots,
       {true, true, "", 3},
       kStreams},
      {"hosts-mpi",
       "an MPI process per rank, each on a host of its own, slots over MPI",
       started,
       Capability::kSlots,
       {false, false, "access: slots", 1, "mpi"},
       {{"TUTTI_CARRY_BYTES", "0"}, {"TUTTI_NET", "mpi"}}},
      {"hosts-mpi-messages",
       "an MPI process per rank, each on a host of its own, all-reduces as messages of MPI's own",
       started,
       Capability::kMessages,
       {false, false, "access: MPI messages", 1, "mpi"},
       {{"TUTTI_CARRY_BYTES", "0"}, {"TUTTI_NET", "mpi"}, {"TUTTI_MPI_DIRECT_BYTES", "1"}}},
      {"hosts-mpi-pairs",
       "an MPI process per rank, two on each host",
       started,
       Capability::kSlots,
       {false, false, "", 2, "mpi"},
       {{"TUTTI_NET", "mpi"}}},
  };
}

class LibraryBackend final : public Backend {
 public:
  explicit LibraryBackend(Row row) : row_(std::move(row)) {}
  std::string name() const override { return row_.name; }
  std::string summary() const override { return row_.summary; }

  std::string why_not() const override {
    if (row_.executor != Executor::kStarted || !starter_program().empty()) return "";
    return "TEST_STARTER names no program that starts ranks under MPI (tests/hosts/conformance_test.py makes one)";
  }

  Capabilities capabilities() const override {
    Capabilities some = bits(row_.carrier, Capability::kPlanner, Capability::kNothing, Capability::kSendReceive,
                             Capability::kTypes, Capability::kAverages, Capability::kScaledSums, Capability::kGroups);
    if (row_.options.stream) some |= bit(Capability::kStream);
    const bool is_by_plan = row_.carrier != Capability::kAnnounceLines && row_.carrier != Capability::kMessages;
    if (is_by_plan) some |= bit(Capability::kAlgorithms);
    if (row_.executor == Executor::kOneThread) return some | bit(Capability::kOneThread);
    some |= bit(Capability::kAborts);
    return some | bit(row_.executor == Executor::kThreads ? Capability::kThreads : Capability::kProcesses);
  }

  Variables environment() const override {
    Variables all = row_.variables;
    all.emplace_back("TUTTI_SLOT_BYTES", "4096");
    all.emplace_back("TUTTI_TIMEOUT_S", "40");
    return all;
  }

  std::string skip_reason(const Case& c) const override {
    if (row_.carrier == Capability::kMessages)
      return c.request.collective == Collective::kAllReduce ? "" : "only all-reduces go as messages of MPI's own";
    if (row_.carrier != Capability::kAnnounceLines) return "";
    if (c.request.ranks == 1) return "one rank announces nothing";
    if (c.request.collective == Collective::kSend) return "send and receive have no announce lines";
    std::uint64_t blocks = 0;
    for (int r = 0; r < c.request.ranks; ++r) blocks = std::max<std::uint64_t>(blocks, input_blocks(c, r));
    const std::size_t bytes = blocks * Session::count_of(c) * static_cast<std::size_t>(type_of(c).bytes);
    return bytes <= room_for(c) ? "" : "the input is too long for an announcement";
  }

  /// What announcements carry.
  std::size_t room_for(const Case& c) const {
    const Collective collective = c.request.collective;
    const int ranks = c.request.ranks;
    const bool one_host = row_.options.ranks_per_host == 0;
    if (is_rooted(collective))
      return one_host ? protocol::one_way_bytes_max(ranks) : protocol::carried_bytes_max(ranks);
    if (row_.executor != Executor::kProcesses) return protocol::kAnnouncePayloadBytes;
    if (ranks != 2 || !one_host) return protocol::carried_bytes_max(ranks);
    // Two ranks of a host write only what the other one reads.
    const bool reads_one_block = collective == Collective::kAllToAll || collective == Collective::kReduceScatter;
    return reads_one_block ? 32 << 10 : 16 << 10;
  }

  std::string run(const Case& c) override {
    if (!crew_ || ranks_ != c.request.ranks) {
      if (std::string wrong = end(); !wrong.empty()) return "after the cases before it: " + wrong;
      crew_ = make_crew(row_.executor, name(), row_.options, c.request.ranks);
      ranks_ = c.request.ranks;
    }
    number_ += Session::kCallsInARow * Session::kRounds;
    std::string problem = crew_->run(c, number_);
    if (c.kind != Kind::kAbort && problem.empty()) return "";
    const std::string ended = end();
    return problem.empty() ? ended : problem;
  }

  std::string end() override {
    const std::unique_ptr<Crew> crew = std::move(crew_);
    return crew == nullptr ? "" : crew->end();
  }

  int be_member(const std::string& socket_path, const std::vector<Case>& cases) override {
    return conformance::be_member(row_.options, socket_path, cases);
  }

 private:
  Row row_;
  std::unique_ptr<Crew> crew_;
  int ranks_ = 0;
  int number_ = 0;
};

class DeviceBackend final : public Backend {
 public:
  std::string name() const override { return "device"; }
  std::string summary() const override { return "the interpreter in a GPU's kernels"; }
  Capabilities capabilities() const override { return 0; }
  std::string why_not() const override { return "no GPU executor in this build"; }
  std::string run(const Case&) override { return why_not(); }
};

}  // namespace

void add_library_backends(Backends& all) {
  for (Row& row : rows()) all.push_back(std::make_unique<LibraryBackend>(std::move(row)));
}
void add_device_backends(Backends& all) { all.push_back(std::make_unique<DeviceBackend>()); }

}  // namespace tutti::conformance
