#include "interpreter.h"

namespace tutti::conformance {

using sim::Protocol;

Capabilities InterpreterBackend::interpreter_capabilities() const {
  constexpr Capability kCarriers[] = {Capability::kSlots, Capability::kLines, Capability::kMapped,
                                      Capability::kSingleCopy, Capability::kAnnounceLines};
  return bits(kCarriers[static_cast<std::size_t>(protocol_)], Capability::kOneThread, Capability::kAlgorithms,
              Capability::kAborts);
}

std::uint64_t InterpreterBackend::count_of(Size size) const {
  switch (size) {
    case Size::kNone: return 0;
    case Size::kOne: return 1;
    case Size::kCacheLine: return 64 / sizeof(sim::Value);
    case Size::kPrime: return 37;
    default: return rounds_count();
  }
}

std::string InterpreterBackend::skip_reason(const Case& c) const {
  if (protocol_ == Protocol::kSlots || protocol_ == Protocol::kLines) return "";
  const std::string_view algorithm = c.algorithm->name;
  if (protocol_ != Protocol::kAnnounce) {
    if (c.in_place ? c.algorithm->direct_in_place : c.algorithm->direct) return "";
    return "the algorithm has no direct form for this";
  }
  if (algorithm != "oneshot") return "in announce lines there are no algorithms: once is enough";
  const sim::CallCase call{c.request, c.algorithm, protocol_, count_of(c.size), c.in_place};
  return sim::announced_bytes(call) <= sim::kCarriedBytesMax ? "" : "the input does not fit beside an announce line";
}

Result<sim::PlannedCall> InterpreterBackend::plan(const sim::RunShape& shape, const Case& c) const {
  const sim::CallCase call{c.request, c.algorithm, protocol_, count_of(c.size), c.in_place};
  TUTTI_TRY_ASSIGN(auto plans, sim::make_plans(shape, call));
  return sim::PlannedCall{call, std::move(plans)};
}

}  // namespace tutti::conformance
