// What tests ask a graph.
#pragma once

#include "topology/graph.h"

#include <string>
#include <string_view>

namespace tutti::topology {

inline std::string all_warnings(const Graph& graph) {
  std::string all;
  for (const std::string& warning : graph.warnings()) all += warning + "\n";
  return all;
}

/// 0: there is no such link.
inline double gbps_of(const Graph& graph, std::string_view from, std::string_view to, LinkKind kind) {
  const Link* link = graph.find_link(graph.find(from), graph.find(to), kind);
  return link == nullptr ? 0 : gbps(link->bandwidth);
}

}  // namespace tutti::topology
