#include "comm/split_exchange.h"

#include "comm/call.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tutti::comm {
namespace {

/// An exchange of a split under way. Its announcement cannot be taken back, so when the user aborts the child before the
/// others have come, the parent fails.
class SplitExchange : public executor::Task {
 public:
  SplitExchange(Communicator& parent, const Communicator& child, const CallArgs& args)
      : parent_(parent), child_(child), call_(parent) {
    call_.set_internal();
    call_.start(args);
  }
  executor::Progress advance() override {
    const executor::Progress progress = ended_ == executor::Progress::kBlocked ? call_.advance() : ended_;
    Bridge* const bridge = parent_.members().bridge.get();
    if (bridge == nullptr) return progress;
    const bool moved = bridge->progress();
    const bool ended = progress == executor::Progress::kDone || progress == executor::Progress::kFailed;
    if (ended) ended_ = progress;
    if (ended && parent_.failed()) bridge->give_up();
    if (ended && (bridge->is_sent() || parent_.failed())) return progress;
    return moved || progress == executor::Progress::kAdvanced ? executor::Progress::kAdvanced
                                                              : executor::Progress::kBlocked;
  }
  void check_patience() override {
    heed_abort(parent_, child_);
    if (parent_.members().bridge) parent_.check_streams();
    if (ended_ == executor::Progress::kBlocked) return static_cast<executor::Task&>(call_).check_patience();
    parent_.check_sending("the end of a split's exchange", sending_);
  }
  const Status& status() const { return call_.status(); }

  static void heed_abort(Communicator& parent, const Communicator& child) {
    if (!child.is_cancelled() || parent.failed()) return;
    parent.fail(Code::kRemote, parent.rank(), why_ended(parent, child, "ncclCommSplit"));
  }

 private:
  Communicator& parent_;
  const Communicator& child_;
  CollectiveCall call_;
  executor::Progress ended_ = executor::Progress::kBlocked;  ///< over hosts: what it came to while not all is sent
  Sending sending_;
};

}  // namespace

std::string why_ended(const Communicator& parent, const Communicator& child, const char* call) {
  return fmt::format("rank {} gave up the communicator that {} was making: {}", parent.rank(), call,
                     child.why_stopped().message);
}

ParentTurn::~ParentTurn() {
  if (!ticket_ && !is_under_way_) return;  // it is over, or never began: the parent may have ended since
  char room[96];                           // there may be no memory
  const auto end = fmt::format_to_n(
      room, sizeof(room), "rank {} broke off a split or shrink for want of memory or threads", parent_.rank());
  const std::string_view why(room, std::min(end.size, sizeof(room)));
  if (ticket_) {
    parent_.give_up_ticket(*ticket_, Code::kSystem, why);
  } else {
    parent_.fail(Code::kSystem, parent_.rank(), why);
  }
  ticket_.reset();
  finish();
}

void ParentTurn::begin() {
  is_under_way_ = true;
  shows_ = !parent_.options().blocking;
  if (shows_) parent_.begin_child();
  take();
}

void ParentTurn::finish() {
  end();
  is_under_way_ = false;
  if (shows_) parent_.end_child();
  shows_ = false;
}

void ParentTurn::wait(const Communicator& child) {
  executor::Backoff backoff(parent_.yields());
  while (!has_come()) {
    SplitExchange::heed_abort(parent_, child);
    backoff.wait();
  }
}

void ParentTurn::end() {
  if (!ticket_) return;
  ticket_.reset();
  parent_.complete_ticket();
}

Status exchange_in_turn(Communicator& parent, const Communicator& child, const void* own, std::size_t bytes,
                        void* all) {
  CallArgs args;
  args.collective = Collective::kAllGather;
  args.send = own;
  args.receive = all;
  args.count = bytes;
  args.type = DataType::kUint8;
  SplitExchange call(parent, child, args);
  executor::Task* task = &call;
  executor::run_tasks({&task, 1}, parent.yields());
  return call.status();
}

Status exchange(Communicator& parent, const Communicator& child, const void* own, std::size_t bytes, void* all) {
  ParentTurn turn(parent);
  turn.take();
  turn.wait(child);
  Status status = exchange_in_turn(parent, child, own, bytes, all);
  turn.end();
  return status;
}

}  // namespace tutti::comm
