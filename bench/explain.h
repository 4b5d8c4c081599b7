// What --explain prints.
#pragma once

#include "collective.h"

#include "base/result.h"

#include <cstddef>

namespace tutti::bench {

/// The plan of such a call, in words and as a schedule that --plan reads, and its certificate. `bytes`: of the larger of the two buffers.
Status print_plan(const Call& call, const Collective& collective, std::size_t bytes);

}  // namespace tutti::bench
