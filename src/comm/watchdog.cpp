#include "comm/watchdog.h"

#include "base/assert.h"
#include "comm/private_descriptor.h"
#include "comm/quiet_thread.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace tutti::comm {
namespace {

/// How often processes without a descriptor are looked at.
constexpr int kLookMs = 50;
constexpr int kTries = 100;
/// A program may have closed all descriptors, this library's too: nothing wakes the thread then, and the end would wait for it.
constexpr int kRareLookMs = 1000;

PrivateDescriptor open_pidfd(std::int32_t pid) {
  return PrivateDescriptor::open([pid] { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); });
}

/// Without a pidfd. A zombie counts as dead: it answers kill, but it never runs again.
bool looks_dead(std::int32_t pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  const std::string path = fmt::format("/proc/{}/stat", pid);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[512] = {};
  const ssize_t got = read(file, text, sizeof(text) - 1);
  close(file);
  // "pid (name) state ...", and the name may hold anything.
  const char* after_name = got > 0 ? strrchr(text, ')') : nullptr;
  return after_name != nullptr && (strncmp(after_name, ") Z", 3) == 0 || strncmp(after_name, ") X", 3) == 0);
}

/// The thread and what it watches. Lives as long as any watch; then stops the thread and waits for it.
class Watchdog {
 public:
  static Result<std::shared_ptr<Watchdog>> start();
  ~Watchdog();

  Result<std::uint64_t> watch(std::int32_t pid, std::function<void()> on_exit);
  void unwatch(std::uint64_t id);
  pid_t owner() const { return owner_; }

 private:
  struct Callback {
    std::uint64_t id;
    std::function<void()> on_exit;
  };
  struct Process {
    PrivateDescriptor pidfd;  ///< empty: looked at in intervals
    std::vector<Callback> callbacks;
  };

  void run();
  void wait_for_events(std::unique_lock<std::mutex>& lock);
  void look_without_descriptor();
  void bury(std::map<std::int32_t, Process>::iterator dead);
  static bool has_run(const std::function<void()>& on_exit);
  void call_due(std::unique_lock<std::mutex>& lock);
  void wake();

  const pid_t owner_ = getpid();
  PrivateDescriptor wake_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::map<std::int32_t, Process> processes_;
  std::deque<Callback> due_;  ///< of dead processes, not called yet
  std::uint64_t last_id_ = 0;
  std::uint64_t running_id_ = 0;  ///< whose callback runs now, 0 = none
  bool stopping_ = false;
};

Result<std::shared_ptr<Watchdog>> Watchdog::start() {
  auto dog = std::make_shared<Watchdog>();
  // Without a descriptor for it the thread looks around often enough by itself.
  dog->wake_ = PrivateDescriptor::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  TUTTI_TRY_ASSIGN(dog->thread_, start_quiet_thread("tutti-watchdog", [raw = dog.get()] { raw->run(); }));
  return dog;
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  TUTTI_ASSERT(thread_.get_id() != std::this_thread::get_id());
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void Watchdog::wake() {
  const std::uint64_t one = 1;
  // A full counter wakes as well, so the result does not matter.
  if (wake_) (void)!write(wake_.get(), &one, sizeof(one));
}

Result<std::uint64_t> Watchdog::watch(std::int32_t pid, std::function<void()> on_exit) {
  if (pid <= 0) return error(Code::kInternal, fmt::format("process {} cannot be watched", pid));
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = ++last_id_;
    const auto [entry, fresh] = processes_.try_emplace(pid);
    entry->second.callbacks.push_back({id, std::move(on_exit)});
    if (fresh) {
      entry->second.pidfd = open_pidfd(pid);
      if (!entry->second.pidfd && errno == ESRCH) bury(entry);
    }
  }
  wake();
  return id;
}

void Watchdog::unwatch(std::uint64_t id) {
  const auto is_mine = [id](const Callback& callback) { return callback.id == id; };
  std::unique_lock lock(mutex_);
  std::erase_if(due_, is_mine);
  for (auto entry = processes_.begin(); entry != processes_.end(); ++entry) {
    if (std::erase_if(entry->second.callbacks, is_mine) == 0) continue;
    if (entry->second.callbacks.empty()) processes_.erase(entry);
    break;
  }
  idle_.wait(lock, [&] { return running_id_ != id; });
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    try {
      if (due_.empty()) wait_for_events(lock);
      look_without_descriptor();
    } catch (const std::exception&) {  // for want of memory, with the lock: once more
      lock.unlock();
      poll(nullptr, 0, kLookMs);
      lock.lock();
    }
    call_due(lock);
  }
}

/// A process that is unwatched meanwhile is not found again afterwards; its descriptor may be closed or even be another
/// by then, which a wrong event cannot hurt: the process is looked at again before it is buried.
void Watchdog::wait_for_events(std::unique_lock<std::mutex>& lock) {
  std::vector<pollfd> watched = {{wake_.get(), POLLIN, 0}};
  std::vector<std::int32_t> pids = {0};
  bool look_often = !wake_;
  for (const auto& [pid, process] : processes_) {
    // Not in the list, which must not be longer than RLIMIT_NOFILE.
    if (!process.pidfd) {
      look_often = true;
      continue;
    }
    watched.push_back({process.pidfd.get(), POLLIN, 0});
    pids.push_back(pid);
  }
  lock.unlock();
  const int ready = poll(watched.data(), watched.size(), look_often ? kLookMs : kRareLookMs);
  const bool was_refused = ready < 0 && errno != EINTR;  // the limit of descriptors is lower by now: one by one
  if (was_refused) poll(nullptr, 0, kLookMs);
  lock.lock();
  if (ready <= 0 && !was_refused) return;
  std::uint64_t count = 0;
  if (watched[0].revents != 0) (void)!read(wake_.get(), &count, sizeof(count));
  for (std::size_t i = 1; i < watched.size(); ++i) {
    const auto entry = processes_.find(pids[i]);
    if ((watched[i].revents == 0 && !was_refused) || entry == processes_.end() || !entry->second.pidfd) continue;
    pollfd again = {entry->second.pidfd.get(), POLLIN, 0};
    const int is_over = poll(&again, 1, 0);
    // Below a limit of 1 not even that is allowed.
    if (is_over == 1 || (is_over < 0 && looks_dead(entry->first))) bury(entry);
  }
}

void Watchdog::look_without_descriptor() {
  for (auto entry = processes_.begin(); entry != processes_.end();) {
    const auto current = entry++;
    if (current->second.pidfd) continue;
    current->second.pidfd = open_pidfd(current->first);  // Descriptors may be free again.
    if (current->second.pidfd) continue;
    if (errno == ESRCH || looks_dead(current->first)) bury(current);
  }
}

void Watchdog::bury(std::map<std::int32_t, Process>::iterator dead) {
  // One by one: there may be no memory for the next.
  auto& callbacks = dead->second.callbacks;
  for (; !callbacks.empty(); callbacks.pop_back()) due_.push_back(std::move(callbacks.back()));
  processes_.erase(dead);
}

/// Not for want of memory, of which there may be some later.
bool Watchdog::has_run(const std::function<void()>& on_exit) {
  try {
    on_exit();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Watchdog::call_due(std::unique_lock<std::mutex>& lock) {
  while (!due_.empty()) {
    Callback callback = std::move(due_.front());
    due_.pop_front();
    running_id_ = callback.id;
    lock.unlock();
    for (int tries = 0; tries < kTries && !has_run(callback.on_exit); ++tries) poll(nullptr, 0, kLookMs);
    callback.on_exit = nullptr;  // What it holds is given back before unwatch returns.
    lock.lock();
    running_id_ = 0;
    idle_.notify_all();
  }
}

class Watch final : public ProcessWatch {
 public:
  Watch(std::shared_ptr<Watchdog> dog, std::uint64_t id) : dog_(std::move(dog)), id_(id) {}
  ~Watch() override {
    if (dog_->owner() == getpid()) {
      dog_->unwatch(id_);
    } else {
      // A copy in a forked child, which has no such thread to wait for: the memory is given up.
      new std::shared_ptr<Watchdog>(std::move(dog_));
    }
  }

 private:
  std::shared_ptr<Watchdog> dog_;
  std::uint64_t id_;
};

/// Where the process's watchdog is found. A forked child makes a slot of its own: the lock of the old one may have been
/// held by a thread that the child does not have.
struct Slot {
  const pid_t owner = getpid();
  std::mutex mutex;
  std::weak_ptr<Watchdog> dog;
};

Slot& slot() {
  static std::atomic<Slot*> current{nullptr};
  Slot* found = current.load();
  while (found == nullptr || found->owner != getpid()) {
    auto made = std::make_unique<Slot>();
    if (current.compare_exchange_strong(found, made.get())) found = made.release();
  }
  return *found;
}

}  // namespace

Result<std::unique_ptr<ProcessWatch>> watch_process(std::int32_t pid, std::function<void()> on_exit) {
  Slot& mine = slot();
  std::shared_ptr<Watchdog> dog;
  {
    const std::lock_guard lock(mine.mutex);
    dog = mine.dog.lock();
    if (!dog) {
      TUTTI_TRY_ASSIGN(dog, Watchdog::start());
      mine.dog = dog;
    }
  }
  TUTTI_TRY_ASSIGN(const std::uint64_t id, dog->watch(pid, std::move(on_exit)));
  return std::unique_ptr<ProcessWatch>(std::make_unique<Watch>(std::move(dog), id));
}

}  // namespace tutti::comm
