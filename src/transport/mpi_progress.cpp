#include "transport/mpi_progress.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <system_error>
#include <thread>

namespace tutti::transport {
namespace {

using std::chrono::microseconds;

/// Between two looks: after one at which something moved, at first, and at most. Whoever is in a call looks all the time; this thread
/// is for ranks that are not.
constexpr microseconds kSoon{20};
constexpr microseconds kFirst{100};
constexpr microseconds kLateSending{2000};
/// Of links that only wait for the other side to end, which may take hours.
constexpr microseconds kLateClosed{50000};

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
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void MpiProgress::want(std::shared_ptr<MpiLink> link) {
  const std::lock_guard lock(mutex_);
  added_.push_back(std::move(link));
  if (!running_) {
    try {
      running_ = true;
      start_deaf([](MpiProgress* of) { of->run(); }, this);
    } catch (const std::system_error&) {
      running_ = false;  // calls go on by themselves; the next one tries again
    }
  }
  changed_.notify_one();
}

void MpiProgress::drain(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!running_) return;
  hurry_ = true;
  changed_.notify_one();
  idle_.wait_for(lock, patience, [this] { return added_.empty() && !busy_; });
  hurry_ = false;
}

void MpiProgress::run() {
  std::vector<std::shared_ptr<MpiLink>> links;
  microseconds pause = kFirst;
  std::unique_lock lock(mutex_);
  for (;;) {
    busy_ = !links.empty();
    if (added_.empty() && links.empty()) {
      idle_.notify_all();
      changed_.wait(lock, [this] { return !added_.empty(); });
      pause = kFirst;
      busy_ = true;
    }
    const bool hurry = hurry_;
    changed_.wait_for(lock, hurry ? kSoon : pause, [&] { return hurry_ && !hurry; });
    if (!added_.empty()) pause = kFirst;
    for (auto& link : added_) links.push_back(std::move(link));
    added_.clear();
    busy_ = true;  // also where the links came while this thread was on its way here
    lock.unlock();
    bool moved = false;
    bool sending = false;
    // A link that is done may take its communicator with it: outside of all locks.
    std::erase_if(links, [&](const std::shared_ptr<MpiLink>& link) {
      const MpiLink::Advance advance = link->advance();
      moved |= advance.moved;
      sending |= advance.sending;
      return advance.done;
    });
    pause = moved ? kSoon : std::min(pause * 2, sending ? kLateSending : kLateClosed);
    lock.lock();
  }
}

MpiProgress& mpi_progress() {
  static MpiProgress& progress = *new MpiProgress;
  return progress;
}

}  // namespace tutti::transport
