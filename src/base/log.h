// Log lines in NCCL's manner: "host:pid:tid [level] text" to stderr or NCCL_DEBUG_FILE, by NCCL_DEBUG's level and
// NCCL_DEBUG_SUBSYS.
#pragma once

#include "base/config.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace tutti {

bool log_enabled(LogLevel level);
/// At INFO, and lines about this are wanted (NCCL_DEBUG_SUBSYS).
bool log_enabled(LogSubject subject);
void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarn)) log_line(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(LogSubject subject, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(subject)) log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
/// About initialisation.
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_info(LogSubject::kInit, format, std::forward<Args>(args)...);
}

}  // namespace tutti
