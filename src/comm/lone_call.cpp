#include "comm/lone_call.h"

#include "comm/call.h"
#include "comm/this_thread.h"
#include "executor/backoff.h"

namespace tutti::comm {

constinit thread_local ThisThread this_thread;

std::uint64_t HeldTurn::wait_for_ticket(Communicator& communicator) {
  const std::uint64_t ticket = communicator.take_ticket();
  executor::Backoff backoff(communicator.yields());
  while (!communicator.is_turn(ticket)) backoff.wait();
  return ticket;
}

void HeldTurn::give_up(Communicator& communicator, std::uint64_t ticket) {
  static constexpr const char* kWhy = "a call broke off for want of memory or threads";
  if (ticket != kOwned) return communicator.give_up_ticket(ticket, Code::kSystem, kWhy);
  communicator.fail(Code::kSystem, communicator.rank(), kWhy);
  communicator.turns().leave();
}

namespace {

void run(Communicator& communicator, const CallArgs& args, Status& status) {
  if (is_point_to_point(args)) {
    PointToPointCall& call = communicator.point_to_point_call(args);
    call.run(args);
    if (!call.status().ok()) [[unlikely]]
      status = call.status();
  } else {
    CollectiveCall& call = communicator.collective_call();
    call.run(args);
    if (!call.status().ok()) [[unlikely]]
      status = call.status();
  }
  communicator.members().reach.settle();
}

}  // namespace

[[gnu::hot]] Status run_lone(Communicator& communicator, const CallArgs& args) {
  Status status;
  HeldTurn turn(communicator);
  if (turn.had_to_wait() && communicator.failed()) [[unlikely]] {
    turn.end();
    return communicator.failure();
  }
  run(communicator, args, status);
  turn.end();
  return status;
}

[[gnu::hot]] Status submit(Communicator& communicator, const CallArgs& args) {
  if (this_thread.group_depth > 0) return queue_call(communicator, args);
  const bool lone = args.stream == nullptr && communicator.takes_lone_calls();
  const bool to_self = is_point_to_point(args) && args.root == communicator.rank();
  if (lone && !to_self) [[likely]]
    return run_lone(communicator, args);
  return submit_any(communicator, args);
}

}  // namespace tutti::comm
