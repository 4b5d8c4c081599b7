// Files that the environment names: whatever else lies at such a path, nobody waits for it, and memory is not filled with it.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <string>

namespace tutti {

/// All of the file. An error begins with `what`: no regular file, or it cannot be read (kSystem), or it is longer than that (kInvalidUsage).
Result<std::string> read_regular_file(const std::string& path, const std::string& what, std::size_t bytes_max);

/// open() for writing, with O_CREAT, to which `flags` are added. A FIFO that nobody reads is ENXIO.
int open_for_writing(const std::string& path, int flags);

}  // namespace tutti
