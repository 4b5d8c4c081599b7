// Fills a call's buffers and checks what came back: every element bit for bit, the input unharmed, the guards whole.
#pragma once

#include "buffers.h"
#include "collective.h"
#include "reference.h"

#include <cstdint>
#include <string>

namespace tutti::bench {

struct CheckResult {
  std::int64_t wrong_elements = 0;
  std::int64_t damaged_guard_bytes = 0;
  std::string first;  ///< what is wrong first, in words; empty if nothing is
};

/// One call of one rank, in or out of place.
class Trial {
 public:
  Trial(const Collective& collective, const ElementType& type, const Reference& reference, Buffer& send,
        Buffer& receive)
      : collective_(collective), type_(type), reference_(reference), send_(send), receive_(receive) {}

  /// Points call.send and call.receive into the buffers; in place, both into `receive`.
  void place(Call& call, bool in_place) const;
  /// Writes the input, poison everywhere else, and the guards.
  Status fill(const Call& call, bool in_place) const;
  Result<CheckResult> check(const Call& call, bool in_place) const;

 private:
  std::size_t bytes(std::size_t count) const { return count * static_cast<std::size_t>(type_.bytes); }
  std::size_t receive_bytes(const Call& call, bool in_place) const;
  /// Where the program finds what a call finds there.
  std::byte* host_view(const void* address, bool in_place) const;
  void check_blocks(const Call& call, const std::byte* data, std::size_t blocks, bool output,
                    CheckResult& result) const;

  const Collective& collective_;
  const ElementType& type_;
  const Reference& reference_;
  Buffer& send_;
  Buffer& receive_;
};

}  // namespace tutti::bench
