#include "transport/mpi_progress.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

namespace tutti::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Between two looks: after one at which something moved, at first, and at most. Whoever is in a call looks all the time; the thread is
/// for ranks that are not.
constexpr microseconds kSoon{20};
constexpr microseconds kFirst{100};
constexpr microseconds kLate{2000};
/// How long MPI_Finalize waits for other ranks to end what this one has aborted: where that has made theirs fail, they never do.
constexpr milliseconds kSilence{200};

/// Deaf to signals, which are the application's.
void start_deaf(void (*body)(MpiProgress*), MpiProgress* of) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread([body, of] { body(of); });
    pthread_setname_np(thread.native_handle(), "tutti-mpi");
    thread.detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void MpiProgress::want(std::shared_ptr<MpiLink> link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(std::move(link));
  sending_ = true;
  if (!running_) {
    try {
      running_ = true;
      start_deaf([](MpiProgress* of) { of->run(); }, this);
    } catch (const std::exception&) {
      running_ = false;  // calls go on by themselves; the next one tries again
    }
  }
  changed_.notify_one();
}

void MpiProgress::keep(std::shared_ptr<MpiLink> link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(std::move(link));
}

void MpiProgress::abandon(std::shared_ptr<MpiLink> link) {
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(std::move(link));
}

void MpiProgress::prepare_by(std::function<void()> prepare) {
  const std::lock_guard lock(mutex_);
  prepare_ = std::move(prepare);
}

MpiProgress::Looked MpiProgress::look(std::unique_lock<std::mutex>& lock) {
  looked_.wait(lock, [this] { return !looking_; });
  Links links = std::exchange(links_, {});
  looking_ = true;
  sending_ = false;
  lock.unlock();
  Looked result;
  // A link that is done may take its communicator with it: outside of all locks.
  std::erase_if(links, [&](const std::shared_ptr<MpiLink>& link) {
    const MpiLink::Advance advance = link->advance();
    result.moved |= advance.moved;
    result.sending |= advance.sending && !advance.done;
    result.waits |= advance.waits && !advance.done;
    return advance.done;
  });
  lock.lock();
  looking_ = false;
  sending_ |= result.sending;
  links_.insert(links_.end(), std::make_move_iterator(links.begin()), std::make_move_iterator(links.end()));
  looked_.notify_all();
  if (sending_) changed_.notify_one();  // where another one looks, the thread may have found nothing to do
  return result;
}

void MpiProgress::sweep() {
  std::unique_lock lock(mutex_);
  if (!over_ && !links_.empty()) look(lock);
}

void MpiProgress::drain(milliseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  const auto until = start + patience;
  std::unique_lock lock(mutex_);
  over_ = true;
  // The thread may be in a call of MPI's that does not come back.
  if (!looked_.wait_until(lock, until, [this] { return !looking_; })) return;
  while (!links_.empty()) {
    const Looked found = look(lock);
    const auto now = std::chrono::steady_clock::now();
    if (now >= until || (!found.waits && now >= start + kSilence)) break;
    if (found.moved) continue;
    lock.unlock();
    std::this_thread::sleep_for(kSoon);
    lock.lock();
  }
  Links left = links_;
  left.insert(left.end(), abandoned_.begin(), abandoned_.end());
  lock.unlock();
  for (const std::shared_ptr<MpiLink>& link : left) link->give_up();
}

void MpiProgress::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return sending_ && !over_; });
    microseconds pause = kFirst;
    while (sending_ && !over_) {
      changed_.wait_for(lock, pause, [this] { return over_; });
      if (over_) break;
      if (prepare_) prepare_();
      pause = look(lock).moved ? kSoon : std::min(pause * 2, kLate);
    }
  }
}

MpiProgress& mpi_progress() {
  static MpiProgress& progress = *new MpiProgress;
  return progress;
}

}  // namespace tutti::transport
