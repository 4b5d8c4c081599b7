// How much memory this process could still be given: the machine's and its control group's.
#pragma once

#include <cstdint>

namespace tutti::transport {

/// Bytes; the largest number there is when nothing is known.
std::uint64_t memory_available_bytes();

}  // namespace tutti::transport
