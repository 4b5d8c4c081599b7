// What holds of every graph that a reader returns, however odd its input: it is written and read back the same. A fuzzer ends
// with a trap where it does not.
#pragma once

#include "base/result.h"
#include "topology/graph.h"
#include "topology/nccl_xml.h"
#include "topology/text_form.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline void check(const tutti::Result<tutti::topology::Graph>& graph) {
  if (!graph.ok()) {
    if (graph.error().message.empty()) __builtin_trap();
    return;
  }
  // With sanitizers the largest graphs take seconds; small ones find as much.
  constexpr std::size_t kLinksChecked = 1 << 14;
  if (graph.value().links().size() > kLinksChecked) return;
  const auto again = tutti::topology::parse_text(tutti::topology::to_text(graph.value()));
  if (!again.ok() || !(again.value() == graph.value())) __builtin_trap();
  if (tutti::topology::to_nccl_xml(graph.value()).empty()) __builtin_trap();
}

}  // namespace fuzz
