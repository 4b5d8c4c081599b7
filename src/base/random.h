// Random bytes from the kernel, for secrets and names.
#pragma once

#include "base/result.h"

#include <sys/random.h>

#include <cerrno>
#include <cstddef>

namespace tutti {

/// All bytes or an error, never fewer.
inline Status fill_random(void* data, std::size_t bytes) {
  auto* out = static_cast<unsigned char*>(data);
  while (bytes > 0) {
    const ssize_t got = getrandom(out, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return system_error("getrandom");
    out += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace tutti
