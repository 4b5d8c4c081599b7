// What the interpreter's backends share, on whatever machine: a protocol, and a case as the World's call.
#pragma once

#include "backend.h"
#include "sim/world.h"

namespace tutti::conformance {

class InterpreterBackend : public Backend {
 public:
  explicit InterpreterBackend(sim::Protocol protocol) : protocol_(protocol) {}
  std::string skip_reason(const Case& c) const override;

 protected:
  /// What every protocol's interpreter has.
  Capabilities interpreter_capabilities() const;
  /// The call with its plans, or why there is none.
  Result<sim::PlannedCall> plan(const sim::RunShape& shape, const Case& c) const;
  /// Several rounds of the slots and lines that `shape` has.
  virtual std::uint64_t rounds_count() const = 0;
  std::uint64_t count_of(Size size) const;

  sim::Protocol protocol_;
};

}  // namespace tutti::conformance
