#include "comm/group_works.h"

#include "comm/batch.h"
#include "executor/stream.h"
#include "executor/task.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

/// A communicator's calls, which take their turn by a ticket. Nobody waits behind it for ever: calls that break off, or are dropped, give it
/// up, and the communicator fails.
class TicketedBatch : public executor::Task {
 public:
  explicit TicketedBatch(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)), batch_(*communicator_) {}
  ~TicketedBatch() override { give_up(Code::kSystem, kWhy); }
  TicketedBatch(const TicketedBatch&) = delete;
  TicketedBatch& operator=(const TicketedBatch&) = delete;

  void add(const CallArgs& args) { batch_.add(args); }
  void take_ticket() { ticket_ = communicator_->take_ticket(); }
  /// Once they have run, or do so, nothing.
  void give_up(Code code, std::string_view why) {
    if (ticket_) communicator_->give_up_ticket(*std::exchange(ticket_, std::nullopt), code, why);
  }

  executor::Progress advance() override {
    has_come_ = has_come_ || communicator_->is_turn(*ticket_);
    if (!has_come_) return executor::Progress::kBlocked;
    try {
      const executor::Progress progress = batch_.advance();
      if (progress == executor::Progress::kDone || progress == executor::Progress::kFailed) ticket_.reset();
      return progress;
    } catch (const std::exception&) {
      broke_off_ = true;
      give_up(Code::kSystem, kWhy);
      return executor::Progress::kFailed;
    }
  }
  void check_patience() override {
    try {
      batch_.check_patience();
    } catch (const std::exception&) {
      communicator_->fail(Code::kSystem, communicator_->rank(), kWhy);
    }
  }

  const executor::Crowding& yields() const { return communicator_->yields(); }
  /// After the end.
  Status status() const { return broke_off_ ? Status(communicator_->failure()) : batch_.status(); }
  /// For calls whose caller has gone on.
  void keep_failure() {
    try {
      if (const Status ended = status(); !ended.ok()) communicator_->keep_async(ended.error());
    } catch (const std::bad_alloc&) {
      communicator_->keep_async(Error{Code::kSystem, {}, std::source_location::current()});  // without a text
    }
  }

 private:
  static constexpr std::string_view kWhy = "a call broke off for want of memory or threads";

  const std::shared_ptr<Communicator> communicator_;
  Batch batch_;
  std::optional<std::uint64_t> ticket_;  ///< not given back yet
  bool has_come_ = false;                ///< its turn
  bool broke_off_ = false;
};

/// Batches that advance together, or ranks of one thread would wait for each other.
class Together {
 public:
  void add(std::shared_ptr<TicketedBatch> batch) {
    tasks_.push_back(batch.get());
    crowding_.join(batch->yields());
    batches_.push_back(std::move(batch));
  }
  void run() { executor::run_tasks(tasks_, crowding_); }
  void run_on_stream() {
    run();
    for (const auto& batch : batches_) batch->keep_failure();
  }

 private:
  std::vector<std::shared_ptr<TicketedBatch>> batches_;
  std::vector<executor::Task*> tasks_;
  executor::Crowding crowding_;
};

/// A communicator's calls in the group and the streams they name, in order of first use.
struct Work {
  std::shared_ptr<TicketedBatch> batch;
  std::vector<void*> streams;
  bool launched = false;
  bool waits = false;  ///< a call named no stream
};

class OwnEvent {
 public:
  explicit OwnEvent(executor::EventHandle handle) : handle_(handle) {}
  ~OwnEvent() { static_cast<void>(executor::event_destroy(handle_)); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  executor::EventHandle get() const { return handle_; }

 private:
  const executor::EventHandle handle_;
};

/// Work that names several streams runs on the first; the others wait for it, and it for what is on them.
Status join_streams(const Work& work, bool before) {
  for (std::size_t i = 1; i < work.streams.size(); ++i) {
    void* from = before ? work.streams[i] : work.streams[0];
    void* to = before ? work.streams[0] : work.streams[i];
    TUTTI_TRY_ASSIGN(const executor::EventHandle made, executor::event_create());
    const OwnEvent event(made);
    TUTTI_TRY(executor::event_record(event.get(), from));
    TUTTI_TRY(executor::stream_wait_event(to, event.get()));
  }
  return {};
}

std::vector<Work> sort_by_communicator(std::span<const QueuedCall> calls,
                                       std::span<const std::shared_ptr<Communicator>> communicators) {
  std::vector<Work> works;
  for (const auto& communicator : communicators) {
    Work& work = works.emplace_back();
    work.batch = std::make_shared<TicketedBatch>(communicator);
    for (const QueuedCall& call : calls) {
      if (call.communicator != communicator.get()) continue;
      work.batch->add(call.args);
      work.waits |= call.args.stream == nullptr;
      if (call.args.stream && std::ranges::find(work.streams, call.args.stream) == work.streams.end()) {
        work.streams.push_back(call.args.stream);
      }
    }
  }
  return works;
}

Together starting_on(const void* stream, const std::vector<Work>& works) {
  Together together;
  for (const Work& work : works) {
    if (!work.streams.empty() && work.streams[0] == stream) together.add(work.batch);
  }
  return together;
}

/// First all streams meet, then all work is given to them, then they meet again: in any other order a stream could wait
/// for work that waits for work behind it.
Status launch(std::vector<Work>& works) {
  for (const Work& work : works) TUTTI_TRY(join_streams(work, true));
  for (const Work& work : works) {
    if (work.streams.empty() || work.launched) continue;
    void* const stream = work.streams[0];
    Together together = starting_on(stream, works);
    TUTTI_TRY(
        executor::stream_enqueue(stream, [together = std::move(together)]() mutable { together.run_on_stream(); }));
    for (Work& other : works) other.launched |= !other.streams.empty() && other.streams[0] == stream;
  }
  for (const Work& work : works) TUTTI_TRY(join_streams(work, false));
  return {};
}

/// Calls come to streams in the order of their tickets, whichever threads make them: a stream that has come to a call would wait for ever for
/// one with an earlier ticket behind it. Nothing waits while it is held, and a forked child has a new one.
constinit std::mutex order_on_streams;
[[maybe_unused]] const int order_renewed = pthread_atfork(nullptr, nullptr, [] { new (&order_on_streams) std::mutex; });

Status begin_works(std::vector<Work>& works, bool on_streams) {
  std::unique_lock order(order_on_streams, std::defer_lock);
  if (on_streams) order.lock();
  for (const Work& work : works) work.batch->take_ticket();
  return launch(works);
}

}  // namespace

Status run_works(std::span<const QueuedCall> calls, std::span<const std::shared_ptr<Communicator>> communicators,
                 bool on_streams) {
  // What needs memory goes before the tickets.
  std::vector<Work> works = sort_by_communicator(calls, communicators);
  Together here;
  for (const Work& work : works) {
    if (work.streams.empty()) here.add(work.batch);
  }
  if (Status launched = begin_works(works, on_streams); !launched.ok()) {
    for (const Work& work : works) {
      if (!work.launched) work.batch->give_up(launched.error().code, launched.error().message);
    }
    return launched;
  }
  here.run();
  Status first;
  for (const Work& work : works) {
    if (!work.streams.empty() && !work.waits) continue;
    // Calls without a stream have their data when the group ends, also beside others with one, or that fail.
    Status status = work.streams.empty() ? Status() : executor::stream_synchronize(work.streams[0]);
    if (status.ok()) status = work.batch->status();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace tutti::comm
