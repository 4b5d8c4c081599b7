// What a tool writes. Standard output: a full disk must not look like success, and a reader that has gone is no error to talk about. Files: whether
// they can be written is asked before the work begins.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace tutti {

/// Prints, and never throws: end_output() finds out what did not arrive.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
}

/// To standard error, and never throws: who has closed that wants no reasons.
template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

/// Ends the process by a signal, as if it had not been caught. Returns the exit code of such an end where the signal is blocked.
inline int end_by(int signal) {
  (void)std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
  return 128 + signal;
}

/// Ends the process as a program ends whose reader has gone (`| head`).
inline int end_without_reader() { return end_by(SIGPIPE); }

/// Of the signals by which people and schedulers end a tool.
inline bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

/// After such a signal, when that has been told: a shell's loop around a tool ends if the tool ends by Ctrl-C, and a scheduler tells an end
/// that it asked for from a failure.
inline int end_asked(int signal) {
  (void)std::fflush(nullptr);
  return end_by(signal);
}

/// At the end of a tool: `code`, or 1 in place of 0 where not all of standard output could be written, which is said then.
inline int end_output(const char* tool, int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  // Of a failure long ago the reason is lost with the text. Another line's end, where text is missing anyway, fails for the same.
  if (errno == 0 && std::fputc('\n', stdout) != EOF) (void)std::fflush(stdout);
  const int number = errno;
  if (number == EPIPE) return end_without_reader();
  std::fprintf(stderr, "%s: standard output: %s\n", tool,
               number != 0 ? std::strerror(number) : "not all of it could be written");
  return code != 0 ? code : 1;
}

/// Empty, or why the file cannot be written. What is not there is not there afterwards, and what is stays as it is.
inline std::string why_unwritable(const std::string& path) {
  std::error_code none;
  // Whoever reads from a pipe would take the end of this look for the end of all.
  if (std::filesystem::is_fifo(path, none)) return {};
  const bool existed = std::filesystem::exists(path, none);
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (!file) return std::strerror(errno);
  (void)std::fclose(file);
  if (!existed) std::filesystem::remove(std::filesystem::canonical(path, none), none);  // of a link, what it leads to
  return {};
}

/// Writes the whole file. Empty, or why it could not be: then no part of it is left that could be taken for the whole.
inline std::string why_unwritten(const std::string& path, std::string_view text) {
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (!file) return std::strerror(errno);
  int number = std::fwrite(text.data(), 1, text.size(), file) == text.size() ? 0 : errno;
  if (std::fclose(file) != 0 && number == 0) number = errno;
  if (number == 0) return {};
  std::error_code none;
  const std::filesystem::path real = std::filesystem::canonical(path, none);
  if (std::filesystem::is_regular_file(real, none)) std::filesystem::remove(real, none);
  return std::strerror(number);
}

}  // namespace tutti
