#include "writable.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace tutti::bench {

std::string check_writable(const char* option, const std::string& path) {
  // Whoever reads from a pipe would take the end of this look for the end of all.
  std::error_code none;
  if (path == "-" || std::filesystem::is_fifo(path, none)) return {};
  const bool existed = std::filesystem::exists(path, none);
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (!file) return fmt::format("{} {}: {}", option, path, std::strerror(errno));
  (void)std::fclose(file);
  if (!existed) std::filesystem::remove(std::filesystem::canonical(path, none), none);  // of a link, what it leads to
  return {};
}

}  // namespace tutti::bench
