// A machine with its bound and its plan as one SVG picture, for a slide: hosts with what is in them, links with bandwidths,
// what binds in red, the blocks in tints, and the plan's lanes in colours. The same machine gives the same bytes.
#pragma once

#include "drawing/cables.h"

#include <string>

namespace tutti::drawing {

std::string svg(const Subject& subject);

}  // namespace tutti::drawing
