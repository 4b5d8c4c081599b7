// Short files of /sys and /proc, whole.
#pragma once

#include "base/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <system_error>

namespace tutti::comm {

/// At most 16 KiB of it; empty if it cannot be read.
inline std::string content_of(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(std::size_t{16} << 10, '\0');
  ssize_t got = -1;
  do {
    got = file ? read(file.get(), text.data(), text.size()) : -1;
  } while (got < 0 && errno == EINTR);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

/// Which it begins with; nullopt: it cannot be read, or begins with something else.
inline std::optional<int> number_in(const std::string& path) {
  const std::string text = content_of(path);
  int number = 0;
  const auto [after, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace tutti::comm
