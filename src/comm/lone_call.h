// The hot path: a call outside groups and streams, on host memory, runs in the caller's thread, and nothing is allocated.
#pragma once

#include "comm/comm.h"
#include "comm/communicator.h"

#include <cstdint>

namespace tutti::comm {

/// A place in the communicator's order that has come: what the communicator keeps for its calls may be used.
class HeldTurn {
 public:
  explicit HeldTurn(Communicator& communicator)
      : comm_(communicator), ticket_(communicator.turns().enter() ? kOwned : wait_for_ticket(communicator)) {}
  /// Another thread's call was under way, or may have been.
  bool had_to_wait() const { return ticket_ != kOwned; }
  /// After end() nothing; before, an exception is on its way.
  ~HeldTurn() {
    if (held_) [[unlikely]]
      give_up(comm_, ticket_);
  }
  HeldTurn(const HeldTurn&) = delete;
  HeldTurn& operator=(const HeldTurn&) = delete;
  void end() {
    held_ = false;
    if (ticket_ == kOwned) [[likely]]
      return comm_.turns().leave();
    comm_.turns().offer();
    comm_.complete_ticket();
  }

 private:
  static constexpr std::uint64_t kOwned = ~std::uint64_t{0};  ///< no ticket: the thread owns the order

  // Static, so that the object can stay in registers.
  static std::uint64_t wait_for_ticket(Communicator& communicator);
  static void give_up(Communicator& communicator, std::uint64_t ticket);

  Communicator& comm_;
  const std::uint64_t ticket_;
  bool held_ = true;
};

/// Of a communicator of one host that is in use and has not failed.
Status run_lone(Communicator& communicator, const CallArgs& args);

/// To run at the end of the thread's group.
Status queue_call(Communicator& communicator, const CallArgs& args);

/// Any other call: run on streams, on a device, over hosts, to this rank itself, or refused.
Status submit_any(Communicator& communicator, const CallArgs& args);

}  // namespace tutti::comm
