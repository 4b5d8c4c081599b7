#include "comm/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti::comm {

void Batch::begin() {
  open_ = false;
  ended_ = executor::Progress::kBlocked;
  idle_since_ = {};
  copies_.clear();
  collectives_.clear();
  next_collective_ = 0;
  collective_running_ = false;
  queue_count_ = 0;
  send_queues_ = 0;
  self_sends_.clear();
  self_receives_.clear();
  if (!status_.ok()) status_ = {};
}

void Batch::add(const CallArgs& call) { refer(copies_.emplace_back(call)); }

void Batch::refer(const CallArgs& call) {
  if (!is_point_to_point(call)) {
    collectives_.push_back(&call);
  } else if (call.root != comm_.rank()) {
    queue_for(call).calls.push_back(&call);
  } else {
    (call.collective == Collective::kSend ? self_sends_ : self_receives_).push_back(&call);
  }
}

Status check_pairs(const Communicator& communicator, std::span<const CallArgs> calls) {
  std::vector<const CallArgs*> sends, receives;
  for (const CallArgs& call : calls) {
    (call.collective == Collective::kSend ? sends : receives).push_back(&call);
  }
  if (sends.size() != receives.size()) {
    return error(
        Code::kInvalidUsage,
        fmt::format("rank {} sends to itself {} times and receives from itself {} times; give both in one group "
                    "(ncclGroupStart, ncclGroupEnd)",
                    communicator.rank(), sends.size(), receives.size()));
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (sends[i]->count == receives[i]->count && sends[i]->type == receives[i]->type) continue;
    return error(Code::kInvalidUsage,
                 fmt::format("rank {} sends itself count {} {} and receives count {} {}: they must be equal",
                             communicator.rank(), sends[i]->count, name_of(sends[i]->type), receives[i]->count,
                             name_of(receives[i]->type)));
  }
  return {};
}

Batch::Queue& Batch::queue_for(const CallArgs& call) {
  for (Queue& queue : queues()) {
    if (queue.calls[0]->root == call.root && queue.calls[0]->collective == call.collective) return queue;
  }
  if (queue_count_ == queues_.size()) queues_.emplace_back();
  Queue* queue = &queues_[queue_count_++];
  if (call.collective == Collective::kSend) {
    // Sends start first, whatever the order of the calls: others wait for them.
    Queue* const place = &queues_[send_queues_++];
    if (place != queue) std::swap(*place, *queue);
    queue = place;
  }
  queue->calls.clear();
  queue->next = 0;
  queue->running = nullptr;
  return *queue;
}

void Batch::keep(const Status& status) {
  if (status_.ok() && !status.ok()) status_ = status;
}

void Batch::copy_to_self() {
  for (std::size_t i = 0; i < self_sends_.size(); ++i) {
    const CallArgs& sent = *self_sends_[i];
    const std::size_t bytes = sent.count * size_of(sent.type);
    if (bytes != 0) std::memmove(self_receives_[i]->receive, sent.send, bytes);
  }
}

void Batch::open() {
  open_ = true;
  comm_.members().reach.settle();
  if (comm_.failed()) {
    keep(comm_.failure());
    next_collective_ = collectives_.size();
    queue_count_ = 0;
    return;
  }
  copy_to_self();
  // Receives are announced before the first send copies anything: or the other rank would wait for that with its own.
  for (Queue& queue : queues().subspan(send_queues_)) start_next(queue);
}

executor::Progress Batch::advance_collectives() {
  if (next_collective_ == collectives_.size()) return executor::Progress::kDone;
  CollectiveCall& call = comm_.collective_call();
  if (!collective_running_) {
    if (next_collective_ != 0 && has_lent()) return executor::Progress::kBlocked;
    call.start(*collectives_[next_collective_]);
    collective_running_ = true;
  }
  const executor::Progress progress = call.advance();
  if (progress != executor::Progress::kDone && progress != executor::Progress::kFailed) return progress;
  keep(call.status());
  collective_running_ = false;
  ++next_collective_;
  return next_collective_ == collectives_.size() ? executor::Progress::kDone : executor::Progress::kAdvanced;
}

/// Over hosts: what the last collective has sent from its buffers is still there, which the next one may write. After a failure it does not
/// leave any more.
bool Batch::has_lent() {
  Bridge* const bridge = comm_.members().bridge.get();
  if (bridge == nullptr) return false;
  if (!comm_.failed()) bridge->send();
  if (bridge->is_sent()) return false;
  if (comm_.failed()) bridge->give_up();
  return !comm_.failed();
}

void Batch::start_next(Queue& queue) {
  const CallArgs& args = *queue.calls[queue.next];
  queue.running = &comm_.point_to_point_call(args);
  queue.running->start(args);
}

executor::Progress Batch::advance_queue(Queue& queue) {
  if (queue.next == queue.calls.size()) return executor::Progress::kDone;
  if (!queue.running) start_next(queue);
  const executor::Progress progress = queue.running->advance();
  if (progress != executor::Progress::kDone && progress != executor::Progress::kFailed) return progress;
  keep(queue.running->status());
  queue.running = nullptr;
  ++queue.next;
  return queue.next == queue.calls.size() ? executor::Progress::kDone : executor::Progress::kAdvanced;
}

executor::Progress Batch::advance() {
  if (!open_) open();
  Bridge* const bridge = comm_.members().bridge.get();
  const executor::Progress progress = bridge == nullptr ? advance_calls() : advance_over_hosts(*bridge);
  const bool ended = progress == executor::Progress::kDone || progress == executor::Progress::kFailed;
  if (ended && turn_ == Turn::kEnds) comm_.complete_ticket();
  return progress;
}

executor::Progress Batch::advance_calls() {
  executor::Progress progress = advance_collectives();
  bool done = progress == executor::Progress::kDone;
  bool moved = progress == executor::Progress::kAdvanced;
  for (Queue& queue : queues()) {
    progress = advance_queue(queue);
    done &= progress == executor::Progress::kDone;
    moved |= progress == executor::Progress::kAdvanced;
  }
  if (!done) return moved ? executor::Progress::kAdvanced : executor::Progress::kBlocked;
  return status_.ok() ? executor::Progress::kDone : executor::Progress::kFailed;
}

/// The calls are over when what they wrote for other hosts is in the kernel's hands.
executor::Progress Batch::advance_over_hosts(Bridge& bridge) {
  const bool was_blocked = ended_ == executor::Progress::kBlocked;
  const executor::Progress progress = was_blocked ? advance_calls() : ended_;
  bool moved = bridge.send();
  const bool ended = progress == executor::Progress::kDone || progress == executor::Progress::kFailed;
  if (ended) ended_ = progress;
  const bool is_over = ended && bridge.is_sent();
  // What they have written for others does not come there any more, nor what they waited for to their buffers.
  const bool gives_up = ended && comm_.failed();
  if (gives_up) bridge.give_up();
  if (is_over) return ended_;
  if (gives_up) {
    keep(comm_.failure());
    return ended_ = executor::Progress::kFailed;
  }
  moved |= bridge.receive(ended ? -1 : awaited());
  if (!moved && progress != executor::Progress::kAdvanced) return idle(bridge);
  idle_since_ = {};
  return executor::Progress::kAdvanced;
}

/// The rank for whose line all waits; -1: not only for one.
int Batch::awaited() { return collective_running_ && queue_count_ == 0 ? comm_.collective_call().awaited() : -1; }

/// Some of it may be MPI's to go on with, which nothing tells of.
bool Batch::has_message() const {
  if (collective_running_ && comm_.collective_call().has_messages()) return true;
  const std::span queues(queues_.data(), queue_count_);
  return std::ranges::any_of(queues, [](const Queue& queue) { return queue.running && queue.running->is_message(); });
}

/// A lone batch leaves the processor to others until something comes, if nothing has for a while.
executor::Progress Batch::idle(Bridge& bridge) {
  constexpr auto kPatient = std::chrono::microseconds(2000);
  constexpr auto kCrowded = std::chrono::microseconds(50);
  if (turn_ == Turn::kEnds || !bridge.carries_all() || has_message()) return executor::Progress::kBlocked;
  const auto now = std::chrono::steady_clock::now();
  if (idle_since_ == std::chrono::steady_clock::time_point{}) idle_since_ = now;
  if (now - idle_since_ > (comm_.crowded() ? kCrowded : kPatient)) bridge.wait(1);
  return executor::Progress::kBlocked;
}

void Batch::check_patience() {
  if (!open_) return;
  if (comm_.members().bridge) comm_.check_streams();
  bool is_running = collective_running_;
  if (collective_running_) static_cast<executor::Task&>(comm_.collective_call()).check_patience();
  for (Queue& queue : queues()) {
    if (queue.running) static_cast<executor::Task&>(*queue.running).check_patience();
    is_running = is_running || queue.running;
  }
  if (is_running) {
    sending_ = {};
  } else {
    comm_.check_sending("the end of a call", sending_);
  }
}

}  // namespace tutti::comm
