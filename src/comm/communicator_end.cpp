// The end of a communicator: of its calls, or of itself, in peace or not.
#include "comm/communicator.h"
#include "comm/device_rank.h"
#include "comm/device_teams.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <chrono>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// How long an abort waits for this rank's own calls to notice.
constexpr double kAbortGraceS = 10;
/// How long an abort waits for other hosts to take its reason.
constexpr double kTellS = 1;

}  // namespace

DeviceTeams* Communicator::teams() const { return device_ ? device_->teams() : nullptr; }

bool Communicator::is_idle() {
  const auto ipc = device_ ? device_->ipc() : nullptr;
  return turns_.is_idle() && (!ipc || ipc->turns().is_idle());
}

Status Communicator::finalize() {
  finalized_.store(true, std::memory_order_release);
  lone_abort_word_.store(nullptr, std::memory_order_release);
  executor::Backoff backoff(true);
  while (!is_idle() || (teams() && !teams()->is_idle())) backoff.wait();
  if (failed()) return failure();
  return {};
}

bool Communicator::abort_now() {
  cancelled_ = true;
  if (init_thread_.joinable()) init_thread_.join();
  if (!is_initialised()) return true;
  // A rank that everybody has left needs nobody told.
  bool alone = true;
  for (int r = 0; r < ranks_; ++r) alone = alone && (r == rank_ || phase_of(r) == RankPhase::kLeft);
  if (!alone || !is_idle()) {
    return end_calls(fmt::format("rank {} called ncclCommAbort", rank_));
  }
  return true;
}

bool Communicator::end_calls(const std::string& why) {
  record_failure(members_->control.failure(), Code::kRemote, rank_, why);
  const auto start = Clock::now();
  if (members_->peer_watch && failed()) members_->peer_watch->finish_telling(kTellS);
  const bool teams_over = !teams() || teams()->end_calls(why);
  executor::Backoff backoff(true);
  // Idle once is enough: a graph's replay may come at any time, also a moment later. It finds the failure, and leave() waits for it.
  bool was_idle = is_idle();
  for (; !was_idle && seconds_since(start) < kAbortGraceS; was_idle = is_idle()) backoff.wait();
  return was_idle && teams_over;
}

void Communicator::leave() {
  cancelled_ = cancelled_ || !is_initialised();
  if (init_thread_.joinable()) init_thread_.join();
  if (!members_) return;
  executor::Backoff backoff(true);
  while (!is_idle()) backoff.wait();
  if (teams()) teams()->leave();
  executor::store_release(members_->control.phase(rank_), static_cast<std::uint64_t>(RankPhase::kLeft));
  lone_abort_word_.store(nullptr, std::memory_order_release);
  if (members_->bridge) leave_over_hosts();
  members_->watches.clear();
  members_->peer_watch.reset();
  if (members_->late_ties) members_->late_ties->end();
}

}  // namespace tutti::comm
