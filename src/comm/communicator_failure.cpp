// What went wrong with a communicator: who says why, who is told, and what is kept.
#include "base/elapsed.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "comm/device_teams.h"
#include "comm/root_address.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// A rank that dies while a communicator is split or shrunk is missed by the new one's bootstrap and by the old one's watchdog,
/// which knows it by its number; that is waited for a little.
constexpr double kLateWatchS = 0.25;

}  // namespace

Error Communicator::explained(Error failure, const Communicator* parent) const {
  const bool may_come = failure.code == Code::kRemote && (parent || outlook_);
  const auto start = Clock::now();
  executor::Backoff backoff(true);
  for (;;) {
    if (auto obstacle = outlook_ ? outlook_() : std::nullopt) return *obstacle;
    // What follows from a failure of the parent adds nothing to its reason.
    if (parent && parent->failed()) return parent->failure();
    if (!may_come || seconds_since(start) > kLateWatchS) break;
    backoff.wait();
  }
  // Another rank's text may end so already.
  if (failure.code == Code::kRemote && !failure.message.ends_with(numbering_)) failure.message += numbering_;
  return failure;
}

Error Communicator::why_stopped() const {
  const std::lock_guard lock(state_mutex_);
  return async_failure_ ? *async_failure_ : initialisation_aborted();
}

std::string_view Communicator::could_not_initialise(std::string_view why, FailureText& room) const {
  const auto end = fmt::format_to_n(room.data(), room.size(), "rank {} could not initialise: {}", rank_, why);
  return {room.data(), std::min(end.size, room.size())};
}

/// The others may be past the bootstrap, and wait for this rank.
void Communicator::give_up_initialisation(const Error& why) noexcept {
  const Code told = is_cancelled() ? Code::kRemote : why.code;
  FailureText room;
  if (members_ && !failed()) fail(told, rank_, could_not_initialise(why.message, room));
  fail_initialisation(why);
}

void Communicator::carry_out(const std::function<void()>& work) noexcept {
  Error failure{Code::kSystem, "out of memory"};  // a text that is short enough to take none
  try {
    try {
      return work();
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& thrown) {
      failure.message = thrown.what();
    }
  } catch (const std::bad_alloc&) {
  }
  give_up_initialisation(failure);
}

void Communicator::fail_initialisation(const Error& failure) noexcept {
  keep_async(failure);
  init_state_.store(InitState::kFailed, std::memory_order_release);
}

Error Communicator::not_ready() {
  if (init_state_.load(std::memory_order_acquire) != InitState::kFailed)
    return error(Code::kInvalidUsage,
                 fmt::format("the communicator is still initialising; poll ncclCommGetAsyncError until it is no longer "
                             "ncclInProgress{}",
                             in_group() ? "; what this group makes is ready after ncclGroupEnd" : ""));
  return error(Code::kInvalidUsage,
               fmt::format("the communicator's initialisation failed, and it can only be ended, by ncclCommAbort or "
                           "ncclCommDestroy: {}",
                           async_message()));
}

Error Communicator::failure() const {
  if (!has_failure())
    return error(cancelled_ ? Code::kRemote : Code::kInvalidUsage, why_aborted() + ": it makes no more calls");
  const FailureRecord& record = members_->control.failure();
  executor::Backoff backoff(true);
  const auto start = Clock::now();
  while (executor::load_acquire(&record.word) == 1 && seconds_since(start) < 0.5) backoff.wait();
  if (executor::load_acquire(&record.word) != 2) {
    return error(Code::kRemote, "the communicator failed; the rank that was to write the reason died over it");
  }
  return error(static_cast<Code>(record.code), record.text);
}

Error Communicator::refusal() const {
  if (!revoked_) return failure();
  return error(
      Code::kInvalidUsage,
      "the communicator was revoked, and takes no more calls: make another one by ncclCommShrink, or end it by "
      "ncclCommDestroy or ncclCommAbort");
}

void Communicator::fail(Code code, int culprit, std::string_view text) {
  if (is_aborted_ && !has_failure()) return;  // this rank's own end: abort_now() says so to whom it concerns
  if (!record_failure(members_->control.failure(), code, culprit, text)) return;
  if (members_->peer_watch) members_->peer_watch->wake();
  if (options_.is_team) return;
  try {
    const bool names_it = text.starts_with(fmt::format("rank {} ", rank_));
    log_warn("{}{}", names_it ? "" : fmt::format("rank {}: ", rank_), text);
  } catch (const std::bad_alloc&) {
    // What has failed for want of memory may have none to say so.
  }
}

void Communicator::give_up_ticket(std::uint64_t ticket, Code code, std::string_view text) {
  fail(code, rank_, text);
  // What goes before ends soon now: it has failed.
  executor::Backoff backoff(true);
  while (!is_turn(ticket)) backoff.wait();
  complete_ticket();
}

void Communicator::keep_async(const Error& failure) noexcept {
  const std::lock_guard lock(state_mutex_);
  try {
    if (!async_failure_) async_failure_ = failure;
    last_error = failure.message;
  } catch (const std::bad_alloc&) {
    // A text that is short enough to take no memory.
    if (!async_failure_) async_failure_ = Error{failure.code, "out of memory", failure.where};
  }
}

Code Communicator::async_state() {
  if (init_state_.load(std::memory_order_acquire) == InitState::kPending || children_in_making_ != 0)
    return Code::kInProgress;
  if (revoked_) return is_idle(true) ? Code::kSuccess : Code::kInProgress;
  if (members_ && has_failure()) return failure().code;
  const bool is_finalizing = !options_.blocking && is_finalized();
  if (is_finalizing && (!is_idle() || (teams() && !teams()->is_idle()))) return Code::kInProgress;
  const std::lock_guard lock(state_mutex_);
  return async_failure_ ? async_failure_->code : Code::kSuccess;
}

std::string Communicator::async_message() {
  if (is_initialised() && has_failure()) return failure().message;
  const std::lock_guard lock(state_mutex_);
  return async_failure_ ? async_failure_->message : std::string();
}

}  // namespace tutti::comm
