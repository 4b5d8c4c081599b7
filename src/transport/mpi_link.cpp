#include "transport/mpi_link.h"

#include "transport/mpi_calls.h"
#include "transport/mpi_progress.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti::transport {
namespace {

using State = ByteStream::State;

constexpr int kTag = 1;

}  // namespace

MpiOwned::~MpiOwned() {
  const MpiCalls::Pass pass = mpi_calls().enter();
  if (pass.owns_lock()) MPI_Comm_free(&comm_);
}

bool MpiLink::may_call() const {
  return !failed_ && (abort_word_ == nullptr || __atomic_load_n(abort_word_, __ATOMIC_ACQUIRE) == 0);
}

bool MpiLink::check(int result) {
  failed_ = failed_ || result != MPI_SUCCESS;
  return !failed_;
}

bool MpiLink::post_send(std::size_t bytes) {
  Message& message = sends_.at(sends_.next);
  if (!check(MPI_Isend(message.bytes.get(), static_cast<int>(bytes), MPI_BYTE, peer_, kTag, comm_->get(),
                       &message.request))) {
    return false;
  }
  ++sends_.next;
  return true;
}

bool MpiLink::post_receives() {
  while (!receives_.full() && !ended_) {
    Message& message = receives_.at(receives_.next);
    if (!message.bytes) message.bytes = std::make_unique_for_overwrite<std::byte[]>(kMessageBytes);
    if (!check(MPI_Irecv(message.bytes.get(), static_cast<int>(kMessageBytes), MPI_BYTE, peer_, kTag, comm_->get(),
                         &message.request))) {
      return false;
    }
    if (receives_.empty()) arrivals().await(place_, message.request);
    ++receives_.next;
  }
  return true;
}

void MpiLink::pop_receive() {
  ++receives_.first;
  if (!receives_.empty()) arrivals().await(place_, receives_.at(receives_.first).request);
}

/// True if something was done. Messages are taken in order, so that the oldest says enough.
bool MpiLink::reap_sends() {
  bool moved = false;
  while (!sends_.empty()) {
    int done = 0;
    if (!check(MPI_Test(&sends_.at(sends_.first).request, &done, MPI_STATUS_IGNORE)) || done == 0) return moved;
    ++sends_.first;
    moved = true;
  }
  if (end_request_ == MPI_REQUEST_NULL) return moved;
  int done = 0;
  return check(MPI_Test(&end_request_, &done, MPI_STATUS_IGNORE)) && done != 0;
}

MpiLink::Moved MpiLink::send(std::span<const iovec> parts) {
  const std::lock_guard lock(mutex_);
  const MpiCalls::Pass pass = mpi_calls().enter();
  if (!pass.owns_lock() || !may_call()) return {0, State::kEnded};
  reap_sends();
  if (sends_.empty()) sends_.first = sends_.next = 0;  // the caches have that message's bytes
  std::size_t taken = 0;
  std::size_t part = 0;
  std::size_t skip = 0;
  while (part < parts.size() && !sends_.full() && !failed_) {
    Message& message = sends_.at(sends_.next);
    if (!message.bytes) message.bytes = std::make_unique_for_overwrite<std::byte[]>(kMessageBytes);
    std::size_t filled = 0;
    while (part < parts.size() && filled < kMessageBytes) {
      const std::size_t now = std::min(parts[part].iov_len - skip, kMessageBytes - filled);
      std::memcpy(message.bytes.get() + filled, static_cast<const std::byte*>(parts[part].iov_base) + skip, now);
      filled += now;
      skip += now;
      if (skip == parts[part].iov_len) ++part, skip = 0;
    }
    // An empty message would be the end.
    if (filled != 0 && post_send(filled)) taken += filled;
  }
  reap_sends();
  if (!sends_.empty() && !wanted_) {
    wanted_ = true;
    mpi_progress().want(shared_from_this());
  }
  return {taken, failed_ ? State::kEnded : State::kOpen};
}

/// True if the oldest receive is done and has bytes. `may`: MPI may be called.
bool MpiLink::take_message(bool may) {
  if (arrived_ != 0) return true;
  if (ended_ || (may && !post_receives()) || receives_.empty()) return false;
  const int bytes = arrivals().found(place_, may);
  failed_ = failed_ || bytes == MpiArrivals::kFailed;
  if (bytes < 0) return false;
  if (bytes == 0) {
    ended_ = true;
    pop_receive();
    return false;
  }
  arrived_ = static_cast<std::size_t>(bytes);
  return true;
}

/// Once looked at. Another receive is posted when there is time, before MPI is asked the next time.
void MpiLink::drop_message() {
  arrived_ = 0;
  pop_receive();
}

/// What MPI has handed over is this process's own: it is shown when MPI must not be called any more, too. After a message MPI is not asked for
/// more, which takes a system call: what has come is soon dealt with.
MpiLink::Moved MpiLink::receive() {
  const std::lock_guard lock(mutex_);
  const MpiCalls::Pass pass = mpi_calls().enter();
  const bool may = pass.owns_lock() && may_call();
  const bool asks = may && arrived_ == 0;
  if (arrived_ != 0) drop_message();
  if (!take_message(asks)) return {0, !may || ended_ || failed_ ? State::kEnded : State::kOpen};
  return {arrived_, State::kOpen, {receives_.at(receives_.first).bytes.get(), arrived_}};
}

void MpiLink::finish() {
  const std::lock_guard lock(mutex_);
  const MpiCalls::Pass pass = mpi_calls().enter();
  if (!pass.owns_lock() || !may_call() || finished_) return;
  finished_ = check(MPI_Isend(nullptr, 0, MPI_BYTE, peer_, kTag, comm_->get(), &end_request_));
}

void MpiLink::close() {
  const std::lock_guard lock(mutex_);
  failed_ = failed_ || !finished_ || !may_call();
  abort_word_ = nullptr;
  closed_ = true;
  const Advance now = go_on();
  if (failed_) return abandon();
  if (now.done || wanted_) return;
  wanted_ = true;
  if (now.sending) {
    mpi_progress().want(shared_from_this());
  } else {
    mpi_progress().keep(shared_from_this());
  }
}

/// The receive that is among the arrivals.
void MpiLink::take_back_oldest() {
  const MPI_Request oldest = arrivals().withdraw(place_);
  if (!receives_.empty()) receives_.at(receives_.first).request = oldest;
}

/// MPI may still read and write its memory, and must not be asked: it stays.
void MpiLink::abandon() {
  failed_ = true;
  if (std::exchange(abandoned_, true)) return;
  take_back_oldest();
  mpi_progress().abandon(shared_from_this());
}

bool MpiLink::is_quiet() const { return sends_.empty() && end_request_ == MPI_REQUEST_NULL; }

void MpiLink::give_up() {
  const std::lock_guard lock(mutex_);
  const MpiCalls::Pass pass = mpi_calls().enter();
  if (!pass.owns_lock() || !closed_) return;
  if (!failed_) take_back_oldest();
  cancel_receives();
}

/// Of messages that never come. Of a side that has not ended one may have begun to: that stays with MPI.
void MpiLink::cancel_receives() {
  for (; !receives_.empty(); ++receives_.first) {
    Message& message = receives_.at(receives_.first);
    if (message.request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&message.request);
    int done = 0;
    // A cancelled receive is over without anybody else.
    if (ended_) MPI_Wait(&message.request, MPI_STATUS_IGNORE);
    if (!ended_) MPI_Test(&message.request, &done, MPI_STATUS_IGNORE);
  }
}

MpiLink::Advance MpiLink::advance() {
  const std::lock_guard lock(mutex_);
  const Advance result = go_on();
  if (result.done && failed_ && closed_) abandon();
  if (result.done) wanted_ = false;
  return result;
}

/// With the link's lock.
MpiLink::Advance MpiLink::go_on() {
  const MpiCalls::Pass pass = mpi_calls().enter();
  if (!pass.owns_lock() || !may_call()) {
    failed_ = true;
    return {.done = true};
  }
  Advance result{.moved = reap_sends()};
  while (closed_ && take_message(true)) {
    drop_message();
    result.moved = true;
  }
  result.sending = !is_quiet();
  result.waits = result.sending || !comm_->expects_silence();
  result.done = failed_ || (!result.sending && (!closed_ || ended_));
  if (result.done && closed_ && !failed_) {
    take_back_oldest();
    cancel_receives();
  }
  return result;
}

}  // namespace tutti::transport
