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
  const bool existed = std::filesystem::exists(std::filesystem::symlink_status(path, none));
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (!file) return fmt::format("{} {}: {}", option, path, std::strerror(errno));
  (void)std::fclose(file);
  if (!existed) (void)std::remove(path.c_str());
  return {};
}

}  // namespace tutti::bench
