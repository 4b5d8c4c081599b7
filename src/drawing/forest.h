// Which node is drawn in which: the graph's own nesting or, where it has none, what the links say; without PCI bridges that
// pass on to one device alone, and without whatever leads nowhere.
#pragma once

#include "drawing/cables.h"

#include <vector>

namespace tutti::drawing {

/// Boxes in boxes; a bridge that is deeper counts as one with the bridge around it.
inline constexpr int kNestingMax = 6;

struct Forest {
  std::vector<int> parent;                 ///< by graph node, drawn ones only; kNone: in the host itself
  std::vector<std::vector<int>> children;  ///< by graph node; containers first, then caches, GPUs, NICs
  std::vector<std::vector<int>> roots;     ///< by host
  std::vector<char> drawn;                 ///< by graph node; switches and networks are not in the forest
};

/// Where a bridge is left out, marks.cables has one cable with the lesser bandwidth instead of two.
Forest plant(const Subject& subject, Marks& marks);

}  // namespace tutti::drawing
