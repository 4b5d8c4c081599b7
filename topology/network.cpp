#include "topology/network.h"

#include <map>
#include <utility>

namespace tutti::topology {

bool Network::full_duplex() const {
  std::map<std::pair<int, int>, Bandwidth> capacities;
  for (const Arc& arc : arcs) capacities[{arc.from, arc.to}] += arc.capacity;
  for (const auto& [ends, capacity] : capacities) {
    const auto back = capacities.find({ends.second, ends.first});
    if (back == capacities.end() || back->second != capacity) return false;
  }
  return true;
}

}  // namespace tutti::topology
