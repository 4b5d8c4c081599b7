#include "executor/handle_table.h"
#include "executor/stream.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include <fmt/format.h>

namespace tutti::executor {
namespace {

/// One record of an event: a place in one stream, reached once. Whoever waits holds the record and not the event, so
/// that recording again, or destroying the event, changes nothing for earlier waiters.
class Record {
 public:
  void complete() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }
  bool done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

class Event {
 public:
  Event() : owner_(getpid()) {}
  bool is_forked_copy() const { return getpid() != owner_; }

  Status record(StreamHandle stream) {
    auto next = std::make_shared<Record>();
    // Held across both: two threads that record the same event leave the record that was enqueued last.
    const std::lock_guard lock(mutex_);
    TUTTI_TRY(stream_enqueue(stream, [next] { next->complete(); }));
    last_ = std::move(next);
    return {};
  }

  /// nullptr: never recorded.
  std::shared_ptr<Record> last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  const int owner_;
  std::mutex mutex_;
  std::shared_ptr<Record> last_;
};

using EventTable = HandleTable<Event, 0x52>;

// Never destroyed, as the streams' table.
EventTable& events() {
  static EventTable& table = [&]() -> EventTable& {
    auto* created = new EventTable;
    pthread_atfork([] { events().lock_for_fork(); }, [] { events().unlock_after_fork(); },
                   [] { events().unlock_after_fork(); });
    return *created;
  }();
  return table;
}

Error not_an_event(EventHandle handle) {
  return error(Code::kInvalidArgument,
               fmt::format("{} is not a host event: it was never made by tuttiEventCreate, or is destroyed already",
                           fmt::ptr(handle)));
}

Result<std::shared_ptr<Event>> find_event(EventHandle handle) {
  std::shared_ptr<Event> event = events().find(handle);
  if (!event) return not_an_event(handle);
  if (event->is_forked_copy())
    return error(Code::kInvalidUsage, fmt::format("host event {} belongs to the process from which this one was "
                                                  "forked; make a new event after fork",
                                                  fmt::ptr(handle)));
  return event;
}

}  // namespace

Result<EventHandle> event_create() {
  EventHandle handle = events().insert(std::make_shared<Event>());
  if (!handle) return error(Code::kInvalidUsage, "too many host events exist; destroy some");
  return handle;
}

Status event_record(EventHandle handle, StreamHandle stream) {
  TUTTI_TRY_ASSIGN(const std::shared_ptr<Event> event, find_event(handle));
  return event->record(stream);
}

Status stream_wait_event(StreamHandle stream, EventHandle handle) {
  TUTTI_TRY_ASSIGN(const std::shared_ptr<Event> event, find_event(handle));
  // A wait refers to a record that is enqueued already, so waits among streams cannot form a cycle.
  return stream_enqueue(stream, [record = event->last()] {
    if (record) record->wait();
  });
}

Status event_synchronize(EventHandle handle) {
  TUTTI_TRY_ASSIGN(const std::shared_ptr<Event> event, find_event(handle));
  if (const std::shared_ptr<Record> record = event->last()) record->wait();
  return {};
}

Result<bool> event_query(EventHandle handle) {
  TUTTI_TRY_ASSIGN(const std::shared_ptr<Event> event, find_event(handle));
  const std::shared_ptr<Record> record = event->last();
  return !record || record->done();
}

Status event_destroy(EventHandle handle) {
  TUTTI_TRY(find_event(handle));
  if (!events().remove(handle)) return not_an_event(handle);
  return {};
}

}  // namespace tutti::executor
