#include "base/log.h"

#include "base/regular_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

namespace tutti {
namespace {

constexpr const char* kLevelNames[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};

std::string short_host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  name[strcspn(name, ".")] = '\0';
  return name;
}

std::string expand(std::string_view pattern) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'h') {
      path += short_host_name();
    } else if (next == 'p') {
      path += std::to_string(getpid());
    } else if (next == '%') {
      path += '%';
    } else {
      path += pattern[i];
      continue;
    }
    ++i;
  }
  return path;
}

void write_whole(int fd, std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(fd, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    line.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// The file is opened for every line: nothing to leak, to lock or to repair after a fork, and lines are rare.
int open_log_file(const std::string& pattern) {
  const std::string path = expand(pattern);
  const int fd = open_for_writing(path, O_APPEND);
  static std::atomic<bool> told{false};
  if (fd < 0 && !told.exchange(true)) {
    const int number = errno;
    write_whole(
        STDERR_FILENO,
        fmt::format("Tutti: NCCL_DEBUG_FILE={} cannot be opened (error {}): the log goes to stderr\n", path, number));
  }
  return fd;
}

}  // namespace

bool log_enabled(LogLevel level) { return level != LogLevel::kNone && level <= config().log_level; }

bool log_enabled(LogSubject subject) {
  return log_enabled(LogLevel::kInfo) && (config().log_subjects & static_cast<unsigned>(subject)) != 0;
}

void log_line(LogLevel level, std::string_view text) {
  if (!log_enabled(level)) return;
  const int saved_errno = errno;
  // One write per line: lines of several threads and processes do not mix.
  const std::string line = fmt::format("{}:{}:{} [{}] Tutti {}\n", short_host_name(), getpid(), gettid(),
                                       kLevelNames[static_cast<int>(level)], text);
  const std::string& file = config().log_file;
  const int fd = file.empty() ? -1 : open_log_file(file);
  write_whole(fd >= 0 ? fd : STDERR_FILENO, line);
  if (fd >= 0) close(fd);
  errno = saved_errno;
}

}  // namespace tutti
