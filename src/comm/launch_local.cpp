#include "comm/launch.h"

#include "comm/registry.h"

#include <fmt/format.h>
#include <pthread.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kGrace = std::chrono::seconds(3);  // for the others to end by themselves
constexpr auto kKillAfterTerm = std::chrono::seconds(2);
/// Of a child that somebody else in this process has waited for: how it ended is not known.
constexpr int kTakenStatus = 255;

/// What the process does about SIGCHLD, of all launches that are under way.
struct OnChild {
  std::mutex mutex;
  int launches = 0;
  struct sigaction before {};  ///< while there are some
};
constinit OnChild on_child;

/// Where SIGCHLD is ignored, which a process inherits, the system would keep to itself how children end.
bool keeps_ends(const struct sigaction& action) {
  return (action.sa_flags & SA_NOCLDWAIT) != 0 || ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN);
}

/// A forked child, of a launch or of another thread meanwhile, has no launch under way but those that it begins.
[[maybe_unused]] const int stays_whole = pthread_atfork([] { on_child.mutex.lock(); }, [] { on_child.mutex.unlock(); },
                                                        [] {
                                                          if (on_child.launches > 0 && keeps_ends(on_child.before))
                                                            sigaction(SIGCHLD, &on_child.before, nullptr);
                                                          on_child.launches = 0;
                                                          on_child.mutex.unlock();
                                                        });

/// The signals the caller takes while it waits: SIGCHLD wakes it, the others are passed on.
class WaitedSignals {
 public:
  WaitedSignals() {
    sigemptyset(&set_);
    for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &old_);
    const std::lock_guard lock(on_child.mutex);
    if (on_child.launches++ > 0) return;
    struct sigaction told {};
    told.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, nullptr, &on_child.before);
    if (keeps_ends(on_child.before)) sigaction(SIGCHLD, &told, nullptr);
  }
  ~WaitedSignals() {
    const std::lock_guard lock(on_child.mutex);
    if (--on_child.launches == 0 && keeps_ends(on_child.before)) sigaction(SIGCHLD, &on_child.before, nullptr);
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  WaitedSignals(const WaitedSignals&) = delete;
  WaitedSignals& operator=(const WaitedSignals&) = delete;
  void restore_in_child() const { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  /// The next signal, or 0 after `pause`.
  int next(std::chrono::milliseconds pause) const {
    const timespec limit{0, std::chrono::nanoseconds(pause).count()};
    const int signal = sigtimedwait(&set_, nullptr, &limit);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_, old_;
};

class Family {
 public:
  /// Room for all: a child that has begun is not to be lost.
  explicit Family(int ranks) { children_.reserve(static_cast<std::size_t>(ranks)); }
  ~Family() {
    signal_all(SIGKILL);
    for (pid_t& child : children_)
      while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  }

  void add(pid_t child) {
    children_.push_back(child);
    ++alive_;
  }
  bool empty() const { return alive_ == 0; }
  bool failed() const { return outcome_.failed_rank >= 0; }
  Clock::time_point failed_at() const { return failed_at_; }
  const tuttiLaunchOutcome_t& outcome() const { return outcome_; }

  void signal_all(int signal) const {
    for (const pid_t child : children_)
      if (child > 0) kill(child, signal);
  }

  /// Notes who has ended; the first failure is the outcome's.
  void collect() {
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      int status = 0;
      if (children_[rank] <= 0) continue;
      const pid_t ended = waitpid(children_[rank], &status, WNOHANG);
      if (ended < 0 && errno == ECHILD) {
        status = kTakenStatus << 8;
      } else if (ended != children_[rank]) {
        continue;
      }
      children_[rank] = 0;
      --alive_;
      const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      const int code = signal ? 128 + signal : WEXITSTATUS(status);
      if (code == 0 || failed()) continue;
      outcome_ = tuttiLaunchOutcome_t{code, static_cast<int>(rank), signal};
      failed_at_ = Clock::now();
    }
  }

 private:
  std::vector<pid_t> children_;  // by rank; 0 = has ended
  int alive_ = 0;
  tuttiLaunchOutcome_t outcome_{0, -1, 0};
  Clock::time_point failed_at_{};
};

/// Nothing may unwind further: Family would end the siblings, and the caller's code would go on in this process, too.
int run_body(tuttiLaunchBody_t body, const tuttiLaunchInfo_t& info, const ncclUniqueId& id, void* context) noexcept {
  try {
    return body(&info, &id, context);
  } catch (const std::exception& thrown) {
    std::fprintf(stderr, "rank %d: %s\n", info.rank, thrown.what());
  } catch (...) {
    std::fprintf(stderr, "rank %d: an exception of a type of its own\n", info.rank);
  }
  return 1;
}

[[noreturn]] void run_child(pid_t parent, const WaitedSignals& signals, tuttiLaunchBody_t body,
                            const tuttiLaunchInfo_t& info, const ncclUniqueId& id, void* context) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL);  // it died before the line above
  signals.restore_in_child();
  const int code = run_body(body, info, id, context);
  // As by exit(), but the caller's statics are not this process's to destroy.
  leave_all();
  std::fflush(nullptr);
  _exit(code & 0xff);
}

void supervise(Family& family, const WaitedSignals& signals) {
  bool told = false;
  for (family.collect(); !family.empty(); family.collect()) {
    const int signal = signals.next(std::chrono::milliseconds(50));
    if (signal != 0 && signal != SIGCHLD) family.signal_all(signal);
    if (!family.failed()) continue;
    const auto waited = Clock::now() - family.failed_at();
    if (waited > kGrace + kKillAfterTerm) {
      family.signal_all(SIGKILL);
    } else if (waited > kGrace && !told) {
      family.signal_all(SIGTERM);
      told = true;
    }
  }
}

}  // namespace

Result<tuttiLaunchOutcome_t> launch_local(int ranks, tuttiLaunchBody_t body, void* context) {
  // Blocked before the root's thread starts, so that it inherits the mask and leaves the signals to this thread.
  const WaitedSignals signals;
  TUTTI_TRY_ASSIGN(UnstartedRoot root, prepare_root());
  ncclUniqueId id;
  static_assert(sizeof(id) == sizeof(root.id));
  std::memcpy(&id, &root.id, sizeof(id));

  std::fflush(nullptr);  // or the children would print what the parent has buffered, too
  const pid_t parent = getpid();
  tuttiLaunchInfo_t info{0, ranks, 0, ranks, TUTTI_LAUNCHER_LOCAL, {}};
  // The secret part of the id is not shown; its address is enough to be the only job of this name.
  std::snprintf(info.job, sizeof(info.job), "local %d %.80s", parent, root.id.address);
  Family family(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    info.rank = info.local_rank = rank;
    const pid_t child = fork();
    if (child < 0) return system_error(fmt::format("fork rank {} of {}", rank, ranks));
    if (child == 0) run_child(parent, signals, body, info, id, context);
    family.add(child);
  }
  // Not before: a thread might hold a lock at a fork, of a sanitizer's allocator for one, and the child would wait for it for ever.
  const auto over = std::make_shared<std::atomic<bool>>(false);
  TUTTI_TRY(std::move(root).start(over));
  supervise(family, signals);
  *over = true;  // ranks that made no communicator of the id never will
  return family.outcome();
}

}  // namespace tutti::comm
