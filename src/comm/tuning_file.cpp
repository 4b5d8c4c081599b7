#include "comm/tuning_file.h"

#include "base/config.h"
#include "base/regular_file.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

namespace tutti::comm {
namespace {

Result<std::string> read_file(const std::string& path) {
  auto text = read_regular_file(path, fmt::format("TUTTI_TUNING_FILE={}", path), planner::kTuningBytesMax);
  if (text.ok() || text.error().code != Code::kInvalidUsage) return text;
  return error(Code::kInvalidUsage,
               text.error().message + "; leave out comments, and rules for other numbers of ranks");
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
