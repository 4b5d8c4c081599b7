// Sizes that are multiples of another.
#pragma once

#include <cstddef>

namespace tutti {

/// The least multiple of `to` that is not less.
constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace tutti
