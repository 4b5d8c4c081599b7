// A call that differs from its thread's last one in its buffers only: what was checked then need not be checked again. Found without
// calling a function, as the smallest calls take no longer than a few dozen instructions.
#pragma once

#include "api/validation.h"

#include <cstdint>

namespace tutti::api {

/// What is left to check of a call that is like the one before.
struct KnownCall {
  RawCall call;
  comm::CallArgs args;
  std::size_t send_bytes = 0;  ///< 0: not used
  std::size_t receive_bytes = 0;
  std::uintptr_t in_place_distance = 0;  ///< from sendbuff to recvbuff
};
inline constexpr std::size_t kKnownCalls = 2;
/// Receives by themselves: they come in pairs with sends.
inline std::size_t known_index(Collective collective) { return collective == Collective::kReceive ? 1 : 0; }

/// The thread's, kKnownCalls of them, once there is one (comm/this_thread.h says more). `args.identity` tells them apart.
extern constinit thread_local KnownCall* known_calls [[gnu::tls_model("initial-exec")]];

/// Whether other buffers are right too; notes them, if so.
bool take_buffers(KnownCall& known, const void* send, void* receive);

/// The call that this thread last found right by checked_call, if this one differs from it in its buffers only, and they are right
/// too; else nullptr, which says nothing about the call. Valid until the thread's next call of either.
[[gnu::always_inline]] inline const comm::CallArgs* repeated_call(const RawCall& call) {
  if (known_calls == nullptr) [[unlikely]]
    return nullptr;
  KnownCall& known = known_calls[known_index(call.collective)];
  const RawCall& last = known.call;
  if (call.comm != last.comm || call.count != last.count || call.collective != last.collective ||
      call.type != last.type || call.op != last.op || call.root != last.root || call.stream || !call.comm) {
    return nullptr;
  }
  if (call.send == last.send && call.receive == last.receive) [[likely]]
    return &known.args;
  return take_buffers(known, call.send, call.receive) ? &known.args : nullptr;
}

}  // namespace tutti::api
