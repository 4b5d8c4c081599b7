#include "startup_cases.h"

#include "nccl_status.h"

#include <fmt/format.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

namespace tutti::bench {
namespace {

constexpr std::size_t kFloats = (std::size_t{1} << 20) / sizeof(float);
constexpr int kEarlyCycles = 10;

void append(std::vector<double>& to, const std::vector<double>& more) { to.insert(to.end(), more.begin(), more.end()); }

/// The first communicator of a process, then others, then splits of the last.
Status init_body(Seat& seat, int rounds) {
  ncclComm_t comm = nullptr;
  TUTTI_TRY(seat.init(Measure::kFirst, comm));
  for (int round = 0; round < rounds; ++round) {
    TUTTI_TRY(seat.destroy(comm));
    TUTTI_TRY(seat.init(Measure::kInit, comm));
  }
  for (int round = 0; round < rounds; ++round) {
    ncclComm_t child = nullptr;
    TUTTI_TRY(
        seat.time(Measure::kSplit, [&] { return nccl(ncclCommSplit(comm, 0, 0, &child, nullptr), "ncclCommSplit"); }));
    seat.meet();
    TUTTI_TRY(nccl(ncclCommDestroy(child), "ncclCommDestroy"));
  }
  return seat.destroy(comm);
}

/// One thread makes all ranks' communicators.
Status init_all_body(Seat& seat, int ranks, int rounds) {
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
  for (int round = 0; round <= rounds; ++round) {
    TUTTI_TRY(seat.time(round == 0 ? Measure::kFirst : Measure::kInit,
                        [&] { return nccl(ncclCommInitAll(comms.data(), ranks, nullptr), "ncclCommInitAll"); }));
    TUTTI_TRY(seat.time(Measure::kDestroy, [&]() -> Status {
      for (ncclComm_t comm : comms) TUTTI_TRY(nccl(ncclCommDestroy(comm), "ncclCommDestroy"));
      return {};
    }));
  }
  return {};
}

Result<InitResult> measure_init(const StartupOptions& options, const std::string& how, int ranks) {
  InitResult result{how, ranks, {}, {}, {}, {}};
  const bool all = how == "init_all";
  for (int launch = 0; launch < options.launches; ++launch) {
    TUTTI_TRY_ASSIGN(Board * board, make_board());
    const Crew crew{how != "processes", all ? 1 : ranks, options.deadline_s};
    TUTTI_TRY(run_crew(crew, *board, [&](Seat& seat) {
      return all ? init_all_body(seat, ranks, options.rounds) : init_body(seat, options.rounds);
    }));
    append(result.first, board->times(Measure::kFirst));
    append(result.init, board->times(Measure::kInit));
    append(result.destroy, board->times(Measure::kDestroy));
    append(result.split, board->times(Measure::kSplit));
  }
  return result;
}

/// 1 MB to the next rank.
Status send_round(ncclComm_t comm, const Seat& seat, const float* from, float* to) {
  const int next = (seat.rank() + 1) % seat.ranks(), last = (seat.rank() + seat.ranks() - 1) % seat.ranks();
  TUTTI_TRY(nccl(ncclGroupStart(), "ncclGroupStart"));
  TUTTI_TRY(nccl(ncclSend(from, kFloats, ncclFloat, next, comm, nullptr), "ncclSend"));
  TUTTI_TRY(nccl(ncclRecv(to, kFloats, ncclFloat, last, comm, nullptr), "ncclRecv"));
  return nccl(ncclGroupEnd(), "ncclGroupEnd");
}

Status memory_body(Seat& seat) {
  std::vector<float> in(kFloats, 1), out(kFloats, 0);
  seat.look(Stage::kBefore);  // what looking takes is there before
  seat.look(Stage::kBefore);
  ncclComm_t comm = nullptr;
  TUTTI_TRY(seat.init(Measure::kFirst, comm));
  seat.look(Stage::kInit);
  TUTTI_TRY(nccl(ncclAllReduce(in.data(), out.data(), kFloats, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
  seat.look(Stage::kAllReduce);
  TUTTI_TRY(send_round(comm, seat, in.data(), out.data()));
  seat.look(Stage::kSends);
  return seat.destroy(comm);
}

Result<MemoryResult> measure_memory(const StartupOptions& options, bool threads, int ranks) {
  TUTTI_TRY_ASSIGN(Board * board, make_board());
  TUTTI_TRY(run_crew({threads, ranks, options.deadline_s}, *board, memory_body));
  const auto at = [&](Stage stage, int rank) {
    return board->footprints[static_cast<std::size_t>(stage)][static_cast<std::size_t>(rank)];
  };
  MemoryResult result;
  result.how = threads ? "threads" : "processes";
  result.ranks = ranks;
  const Footprint before = at(Stage::kBefore, 0), opened = at(Stage::kInit, 0);
  result.segment = at(Stage::kSends, 0);
  result.descriptors = opened.descriptors - before.descriptors;
  result.threads = opened.threads - before.threads;
  for (int r = 0; r < ranks; ++r) {
    const auto grown = [&](Stage stage) {
      return at(stage, r).per_rank_bytes(at(Stage::kBefore, r), ranks, threads) / ranks;
    };
    result.init_bytes += grown(Stage::kInit);
    result.all_reduce_bytes += grown(Stage::kAllReduce);
    result.sends_bytes += grown(Stage::kSends);
    const double pss =
        static_cast<double>(at(Stage::kSends, r).pss_bytes) - static_cast<double>(at(Stage::kBefore, r).pss_bytes);
    result.pss_bytes += pss / ranks / (threads ? ranks : 1);
  }
  return result;
}

Status cycles_body(Seat& seat, int cycles, bool all_reduce) {
  std::vector<float> in(kFloats, 1), out(kFloats, 0);
  for (int cycle = 0; cycle < cycles; ++cycle) {
    ncclComm_t comm = nullptr;
    TUTTI_TRY(seat.init(Measure::kInit, comm));
    if (all_reduce)
      TUTTI_TRY(
          nccl(ncclAllReduce(in.data(), out.data(), kFloats, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
    TUTTI_TRY(seat.destroy(comm));
    if (cycle + 1 != std::min(kEarlyCycles, cycles) && cycle + 1 != cycles) continue;
    usleep(50000);  // the last bootstrap's thread may be about to end
    const Stage stage = cycle + 1 == cycles ? Stage::kAfter : Stage::kBefore;
    seat.look(stage);
    if (stage == Stage::kBefore || cycles <= kEarlyCycles) seat.look(Stage::kBefore);  // looking takes something too
  }
  return {};
}

Result<CyclesResult> measure_cycles(const StartupOptions& options, bool threads, bool all_reduce) {
  TUTTI_TRY_ASSIGN(Board * board, make_board());
  TUTTI_TRY(run_crew({threads, 2, options.deadline_s}, *board,
                     [&](Seat& seat) { return cycles_body(seat, options.cycles, all_reduce); }));
  return CyclesResult{threads ? "threads" : "processes", all_reduce, options.cycles,
                      board->footprints[static_cast<std::size_t>(Stage::kBefore)][0],
                      board->footprints[static_cast<std::size_t>(Stage::kAfter)][0]};
}

/// As meson installs it. 0 where it cannot be told.
std::uint64_t stripped_bytes(const std::filesystem::path& library) {
  char copy[] = "/tmp/tutti-startup-XXXXXX";
  const int file = mkstemp(copy);
  if (file < 0) return 0;
  close(file);
  const pid_t child = fork();
  if (child == 0) {
    execlp("strip", "strip", "-o", copy, library.c_str(), nullptr);
    _exit(127);
  }
  int status = -1;
  if (child > 0) waitpid(child, &status, 0);
  std::error_code problem;
  const std::uintmax_t bytes = status == 0 ? std::filesystem::file_size(copy, problem) : 0;
  unlink(copy);
  return problem ? 0 : bytes;
}

Result<LibraryResult> measure_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&ncclGetVersion), &info) == 0 || info.dli_fname == nullptr)
    return error(Code::kSystem, "the library that holds ncclGetVersion is not found");
  std::error_code problem;
  const std::filesystem::path path = std::filesystem::canonical(info.dli_fname, problem);
  LibraryResult result{path.string(), problem ? 0 : std::filesystem::file_size(path, problem), stripped_bytes(path)};
  return result;
}

}  // namespace

bool StartupOptions::measures(const std::string& part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

Result<StartupResults> measure_startup(const StartupOptions& options) {
  StartupResults results;
  for (const int ranks : options.ranks) {
    for (const char* how : {"processes", "threads", "init_all"}) {
      if (!options.measures("init")) break;
      TUTTI_TRY_ASSIGN(InitResult result, measure_init(options, how, ranks));
      results.init.push_back(std::move(result));
    }
    for (const bool threads : {false, true}) {
      if (!options.measures("memory")) break;
      TUTTI_TRY_ASSIGN(MemoryResult result, measure_memory(options, threads, ranks));
      results.memory.push_back(std::move(result));
    }
  }
  for (const int which : {0, 1, 2, 3}) {
    if (!options.measures("cycles")) break;
    TUTTI_TRY_ASSIGN(CyclesResult result, measure_cycles(options, which % 2 != 0, which >= 2));
    results.cycles.push_back(std::move(result));
  }
  if (options.measures("size")) {
    TUTTI_TRY_ASSIGN(LibraryResult result, measure_library());
    results.library.push_back(std::move(result));
  }
  return results;
}

}  // namespace tutti::bench
