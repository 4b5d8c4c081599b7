// What a communicator's ranks tell each other while another one is made of them: an all-gather that no user call may meet.
#pragma once

#include "comm/communicator.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti::comm {

/// The place of a split, or of a shrink, among its parent's calls. It is taken in the program's own thread, in the order of its calls, and
/// what it makes runs elsewhere: without it, a call that the program makes next, or another split, could come first on some ranks.
class ParentTurn {
 public:
  explicit ParentTurn(Communicator& parent) : parent_(parent) {}
  /// Of work that never came to run, or broke off by what was thrown: the parent fails, as the others may wait for this rank.
  ~ParentTurn();
  ParentTurn(const ParentTurn&) = delete;
  ParentTurn& operator=(const ParentTurn&) = delete;

  Communicator& parent() { return parent_; }
  void take() { ticket_ = parent_.take_ticket(); }
  /// The same for what the caller makes: a parent that does not block is in progress until finish(), as programs wait for that.
  void begin();
  bool has_come() const { return parent_.is_turn(*ticket_); }
  /// Until the calls before are over; if the user aborts `child` meanwhile, the parent fails.
  void wait(const Communicator& child);
  void end();
  /// When what was to be made is there, or never will be.
  void finish();

 private:
  Communicator& parent_;
  std::optional<std::uint64_t> ticket_;
  bool is_under_way_ = false;  ///< from begin() to finish()
  bool shows_ = false;         ///< the parent is in progress
};

/// Why a `call` of this rank's that makes `child` is over for all, once that is_cancelled().
std::string why_ended(const Communicator& parent, const Communicator& child, const char* call);

/// `own`, `bytes` long, of every rank of `parent`, in order. It cannot be taken back: if `child`, for which it is made, is aborted before all have
/// come, the parent fails.
Status exchange(Communicator& parent, const Communicator& child, const void* own, std::size_t bytes, void* all);
/// The same by who has the turn already.
Status exchange_in_turn(Communicator& parent, const Communicator& child, const void* own, std::size_t bytes, void* all);

}  // namespace tutti::comm
