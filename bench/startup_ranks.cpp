#include "startup_ranks.h"

#include "nccl_status.h"

#include <tutti/launch.h>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

namespace tutti::bench {
namespace {

/// The same clock in all processes.
double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Job {
  const Crew& crew;
  Board& board;
  const RankBody& body;
};

/// A rank that fails ends its process: the launcher ends the others, which wait for it.
void run_rank(const Job& job, int rank, const ncclUniqueId& id) {
  Seat seat(rank, job.crew.ranks, id, job.board);
  const Status status = job.body(seat);
  if (status.ok()) return;
  std::fprintf(stderr, "startup: rank %d of %d: %s\n", rank, job.crew.ranks, status.error().message.c_str());
  _exit(1);
}

int process_body(const tuttiLaunchInfo_t* info, const ncclUniqueId* id, void* context) {
  const Job& job = *static_cast<const Job*>(context);
  alarm(job.crew.deadline_s);
  if (!job.crew.threads) {
    run_rank(job, info->rank, *id);
    return 0;
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.crew.ranks; ++rank) threads.emplace_back([&, rank] { run_rank(job, rank, *id); });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace

std::vector<double> Board::times(Measure measure) const {
  const Samples& all = samples[static_cast<std::size_t>(measure)];
  return {all.us.begin(), all.us.begin() + all.count};
}

void Seat::meet() {
  const unsigned generation = board_.generation.load();
  if (board_.arrived.fetch_add(1) + 1 == ranks_) {
    board_.arrived.store(0);
    board_.released_us = now_us();
    board_.generation.store(generation + 1);
    return;
  }
  while (board_.generation.load() == generation) sched_yield();
}

void Seat::look(Stage stage) {
  for (int turn = 0; turn < ranks_; ++turn) {
    meet();
    if (turn == rank_)
      board_.footprints[static_cast<std::size_t>(stage)][static_cast<std::size_t>(rank_)] = Footprint::now();
  }
  meet();
}

Status Seat::time(Measure measure, const std::function<Status()>& call) {
  meet();
  const double began_us = board_.released_us;
  TUTTI_TRY(call());
  board_.returned_us[static_cast<std::size_t>(rank_)] = now_us();
  meet();
  if (rank_ == 0) {
    Samples& samples = board_.samples[static_cast<std::size_t>(measure)];
    const double ended_us = *std::max_element(board_.returned_us.begin(), board_.returned_us.begin() + ranks_);
    if (samples.count < kStartupSamplesMax) samples.us[static_cast<std::size_t>(samples.count++)] = ended_us - began_us;
  }
  meet();
  return {};
}

Status Seat::init(Measure measure, ncclComm_t& comm) {
  if (rank_ == 0) {
    if (first_used_)
      TUTTI_TRY(nccl(ncclGetUniqueId(&board_.id), "ncclGetUniqueId"));
    else
      board_.id = first_;
  }
  first_used_ = true;
  return time(measure, [&] { return nccl(ncclCommInitRank(&comm, ranks_, board_.id, rank_), "ncclCommInitRank"); });
}

Status Seat::destroy(ncclComm_t comm) {
  return time(Measure::kDestroy, [&] { return nccl(ncclCommDestroy(comm), "ncclCommDestroy"); });
}

Status run_crew(const Crew& crew, Board& board, const RankBody& body) {
  Job job{crew, board, body};
  tuttiLaunchOutcome_t outcome{};
  TUTTI_TRY(nccl(tuttiLaunchLocal(crew.threads ? 1 : crew.ranks, process_body, &job, &outcome), "starting the ranks"));
  if (outcome.signal != 0) {
    return error(Code::kSystem,
                 fmt::format("rank {} of {} was ended by signal {} ({}); --deadline is {} s", outcome.failed_rank,
                             crew.ranks, outcome.signal, strsignal(outcome.signal), crew.deadline_s));
  }
  if (outcome.exit_code != 0) return error(Code::kSystem, fmt::format("rank {} failed", outcome.failed_rank));
  return {};
}

Result<Board*> make_board() {
  static void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return system_error("mapping the ranks' board");
  return new (memory) Board{};
}

}  // namespace tutti::bench
