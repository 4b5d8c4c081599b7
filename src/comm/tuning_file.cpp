#include "comm/tuning_file.h"

#include "base/config.h"
#include "base/descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

namespace tutti::comm {
namespace {

/// One byte more than there may be, so that a file that is too long is seen to be.
Result<std::string> read_file(const std::string& path) {
  const std::string what = fmt::format("TUTTI_TUNING_FILE={}", path);
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_error(what);
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return system_error(what);
  if (!S_ISREG(facts.st_mode)) return error(Code::kSystem, what + ": not a regular file");
  std::string text(planner::kTuningBytesMax + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(what);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > planner::kTuningBytesMax) {
    return error(Code::kInvalidUsage, fmt::format("{}: the file is larger than {} bytes; leave out comments, and rules "
                                                  "for other numbers of ranks",
                                                  what, planner::kTuningBytesMax));
  }
  text.resize(size);
  return text;
}

Result<std::shared_ptr<const planner::Tuning>> read_tuning(std::string_view text) {
  TUTTI_TRY_ASSIGN(planner::Tuning tuning, planner::parse_tuning(text));
  return std::shared_ptr<const planner::Tuning>(std::make_shared<planner::Tuning>(std::move(tuning)));
}

}  // namespace

Result<std::shared_ptr<const planner::Tuning>> publish_tuning(const Control& control) {
  const std::string& path = config().tuning_file;
  if (path.empty()) return std::shared_ptr<const planner::Tuning>();
  TUTTI_TRY_ASSIGN(const std::string text, read_file(path));
  auto tuning = read_tuning(text);
  if (!tuning.ok()) {
    return error(Code::kInvalidUsage, fmt::format("TUTTI_TUNING_FILE={}: {}", path, tuning.error().message));
  }
  if (control.ranks() == 1) return tuning;
  std::memcpy(control.tuning_text(), text.data(), text.size());
  control.settings().tuning_bytes = static_cast<std::uint32_t>(text.size());
  return tuning;
}

Result<std::shared_ptr<const planner::Tuning>> published_tuning(const Control& control) {
  const std::uint32_t bytes = control.settings().tuning_bytes;
  if (bytes == 0) return std::shared_ptr<const planner::Tuning>();
  return read_tuning({control.tuning_text(), bytes});
}

}  // namespace tutti::comm
