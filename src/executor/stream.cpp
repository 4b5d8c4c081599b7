#include "executor/stream.h"

#include "executor/handle_table.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace tutti::executor {
namespace {

/// A queue and the thread that empties it.
/// 1. enqueued_ and finished_ only grow and are guarded by mutex_; "everything so far" is finished_ reaching a value
///    that enqueued_ had.
/// 2. The thread takes one piece of work at a time and counts it as finished after its closure is destroyed, so that
///    whoever waits finds everything that the closure held released.
/// 3. closing_ is set once, by close(). Afterwards nothing is accepted, and the thread ends when the queue is empty.
class Stream {
 public:
  Stream() : owner_(getpid()) {}
  ~Stream() {
    if (thread_.joinable()) close();  // there was no memory for its handle
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Status start() {
    // Signals are for the application's own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Status started;
    try {
      thread_ = std::thread([this] { run(); });
      worker_ = thread_.get_id();
    } catch (const std::exception& failure) {
      started = error(Code::kSystem, fmt::format("cannot start a host stream's thread: {}; the limit of threads "
                                                 "(ulimit -u, pids.max) may be reached",
                                                 failure.what()));
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  bool is_worker() const { return std::this_thread::get_id() == worker_; }
  bool is_forked_copy() const { return getpid() != owner_; }
  int owner() const { return owner_; }

  bool enqueue(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return false;
      queue_.push_back(std::move(work));
      ++enqueued_;
    }
    work_added_.notify_one();
    return true;
  }

  void synchronize() {
    std::unique_lock lock(mutex_);
    const std::uint64_t target = enqueued_;
    work_done_.wait(lock, [&] { return finished_ >= target; });
  }

  bool idle() {
    const std::lock_guard lock(mutex_);
    return finished_ == enqueued_;
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    work_added_.notify_one();
    thread_.join();
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "tutti-stream");
    std::unique_lock lock(mutex_);
    for (;;) {
      work_added_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      ++finished_;
      work_done_.notify_all();
    }
  }

  const int owner_;
  std::mutex mutex_;
  std::condition_variable work_added_;
  std::condition_variable work_done_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t enqueued_ = 0;
  std::uint64_t finished_ = 0;
  bool closing_ = false;
  std::thread thread_;
  std::thread::id worker_;
};

using StreamTable = HandleTable<Stream, 0x51>;

// Never destroyed: streams that the application leaves behind may still run while the process exits.
StreamTable& streams() {
  static StreamTable& table = [&]() -> StreamTable& {
    auto* created = new StreamTable;
    pthread_atfork([] { streams().lock_for_fork(); }, [] { streams().unlock_after_fork(); },
                   [] { streams().unlock_after_fork(); });
    return *created;
  }();
  return table;
}

Error not_a_stream(StreamHandle handle) {
  return error(Code::kInvalidArgument,
               fmt::format("{} is not a host stream: it was never made by tuttiStreamCreate, or is destroyed already",
                           fmt::ptr(handle)));
}

Result<std::shared_ptr<Stream>> find_stream(StreamHandle handle) {
  std::shared_ptr<Stream> stream = streams().find(handle);
  if (!stream) return not_a_stream(handle);
  if (stream->is_forked_copy())
    return error(Code::kInvalidUsage,
                 fmt::format("host stream {} belongs to process {}, from which this process was forked; make a new "
                             "stream after fork",
                             fmt::ptr(handle), stream->owner()));
  return stream;
}

Error called_from_own_thread(const char* what) {
  return error(Code::kInvalidUsage,
               fmt::format("{} of a host stream was called by work that runs on the same stream; it would wait for "
                           "itself",
                           what));
}

}  // namespace

Result<StreamHandle> stream_create() {
  auto stream = std::make_shared<Stream>();
  TUTTI_TRY(stream->start());
  StreamHandle handle = streams().insert(stream);
  if (!handle) {
    stream->close();
    return error(Code::kInvalidUsage, "too many host streams exist; destroy some");
  }
  return handle;
}

Status stream_synchronize(StreamHandle handle) {
  TUTTI_TRY_ASSIGN(const std::shared_ptr<Stream> stream, find_stream(handle));
  if (stream->is_worker()) return called_from_own_thread("synchronize");
  stream->synchronize();
  return {};
}

Result<bool> stream_query(StreamHandle handle) {
  TUTTI_TRY_ASSIGN(const std::shared_ptr<Stream> stream, find_stream(handle));
  return stream->idle();
}

Status stream_destroy(StreamHandle handle) {
  TUTTI_TRY_ASSIGN(std::shared_ptr<Stream> stream, find_stream(handle));
  if (stream->is_worker()) return called_from_own_thread("destroy");
  // Of several threads that destroy the same stream, one gets it.
  stream = streams().remove(handle);
  if (!stream) return not_a_stream(handle);
  stream->close();
  return {};
}

/// Without find_stream()'s text, as calls on GPU memory ask each time.
bool stream_valid(StreamHandle handle) {
  const std::shared_ptr<Stream> stream = streams().find(handle);
  return stream && !stream->is_forked_copy();
}

Status stream_enqueue(StreamHandle handle, std::function<void()> work) {
  TUTTI_TRY_ASSIGN(const std::shared_ptr<Stream> stream, find_stream(handle));
  if (!stream->enqueue(std::move(work))) return not_a_stream(handle);
  return {};
}

}  // namespace tutti::executor
