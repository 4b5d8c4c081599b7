// The wires of a scene: cables between what is drawn, merged.
#pragma once

#include "drawing/scene.h"

#include <vector>

namespace tutti::drawing {

/// Adds the bars too. `owners`: by graph node, its item; kNone for what is not drawn.
void add_wires(const Subject& subject, std::vector<int>& owners, Scene& scene);

/// Several as one.
Wire merged(const std::vector<Wire>& wires);

}  // namespace tutti::drawing
