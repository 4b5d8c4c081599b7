// The end of a communicator: of its calls, or of itself, in peace or not.
#include "base/elapsed.h"
#include "comm/communicator.h"
#include "comm/device_rank.h"
#include "comm/device_teams.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// How long an abort waits for this rank's own calls to notice.
constexpr double kAbortGraceS = 10;
/// How long an abort waits for other hosts to take its reason.
constexpr double kTellS = 1;

}  // namespace

DeviceTeams* Communicator::teams() const { return device_ ? device_->teams() : nullptr; }

bool Communicator::is_idle(bool but_for_shrinks) {
  const auto ipc = device_ ? device_->ipc() : nullptr;
  return turns_.is_idle(but_for_shrinks && is_shrinking_) && (!ipc || ipc->turns().is_idle());
}

Status Communicator::finalize() {
  finalized_.store(true, std::memory_order_release);
  lone_abort_word_.store(nullptr, std::memory_order_release);
  executor::Backoff backoff(true);
  for (; !is_idle() || (teams() && !teams()->is_idle()); backoff.wait()) {
    if (!options_.blocking) return error(Code::kInProgress, "");  // async_state() tells when
  }
  if (has_failure()) return failure();
  return {};
}

/// Others may need this rank for what it has begun, or for replays of graphs, which nobody counts.
bool Communicator::is_needed() {
  if (!is_idle() || teams()) return true;  // of teams nobody knows what their kernels wait for
  if (members_->mpi && !members_->mpi->problem().empty()) return true;  // its goodbye would not come
  if (!device_) return false;
  for (int r = 0; r < ranks_; ++r)
    if (std::atomic_ref(members_->control.device_card(r).captured).load() != 0) return true;
  return device_->has_work(*this);
}

std::string Communicator::why_aborted() const {
  return cancelled_ ? fmt::format("rank {} called ncclCommAbort", rank_)
                    : fmt::format("the program of rank {} has ended", rank_);
}

/// Who is not needed leaves in peace, and so do those that do not need it: programs end so, and one may be at its last work still.
bool Communicator::abort_now() {
  cancelled_ = true;
  stop_initialising();
  if (!is_initialised()) return true;
  bool needed = is_needed();
  is_aborted_ = !needed;
  needed = needed || is_needed();  // a call that has come meanwhile
  if (!needed) return true;
  return end_calls(why_aborted());
}

/// Of one that is needed the others learn by its death, and so they do over MPI: they must not call it for a process that is gone.
void Communicator::leave_at_exit() {
  if (!is_initialised() || revocations_ != 0 || failed() || members_->mpi || is_needed()) return;
  finalized_.store(true, std::memory_order_release);
  is_aborted_ = true;
  if (!is_needed()) return leave();
  is_aborted_ = false;  // a call has come meanwhile
  finalized_.store(false, std::memory_order_release);
}

bool Communicator::end_calls(const std::string& why) {
  record_failure(members_->control.failure(), Code::kRemote, rank_, why);
  const auto start = Clock::now();
  if (members_->peer_watch && failed()) members_->peer_watch->finish_telling(kTellS);
  const bool teams_over = !teams() || teams()->end_calls(why);
  executor::Backoff backoff(true);
  // Idle once is enough: a graph's replay may come at any time, also a moment later. It finds the failure, and leave() waits for it.
  // Of one that is revoked a shrink goes on: leave() waits for that, too.
  bool was_idle = is_idle(revoked_);
  for (; !was_idle && seconds_since(start) < kAbortGraceS; was_idle = is_idle(revoked_)) backoff.wait();
  return was_idle && teams_over;
}

void Communicator::leave() {
  executor::Backoff backoff(true);
  while (revocations_ != 0) backoff.wait();
  if (!members_ || has_left_.exchange(true)) return;
  while (!is_idle()) {
    if ((cancelled_ || is_aborted_) && !has_failure()) end_calls(why_aborted());  // a replay, say, which has come since
    backoff.wait();
  }
  await_beside();  // idle, it has no more to wait for
  if (teams()) teams()->leave();
  executor::store_release(members_->control.phase(rank_), static_cast<std::uint64_t>(RankPhase::kLeft));
  lone_abort_word_.store(nullptr, std::memory_order_release);
  if (members_->bridge) leave_over_hosts();
  members_->watches.clear();
  members_->peer_watch.reset();
  if (members_->late_ties) members_->late_ties->end();
}

}  // namespace tutti::comm
