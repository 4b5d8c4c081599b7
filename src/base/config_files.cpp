#include "base/config_files.h"

#include "base/regular_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

constexpr const char* kMachineFile = "/etc/nccl.conf";
constexpr std::size_t kBytesMax = std::size_t{1} << 20;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

void read(const std::string& path, const std::string& name, ConfigFiles& files) {
  auto text = read_regular_file(path, name + " is ignored", kBytesMax);
  if (text.ok())
    files.add(text.value(), path);
  else
    files.complaints.push_back(std::move(text).error().message);
}

/// One that need not be.
void read_if_there(const std::string& path, ConfigFiles& files) {
  if (access(path.c_str(), F_OK) == 0) read(path, path, files);
}

}  // namespace

void ConfigFiles::add(std::string_view text, std::string_view path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // Windows' programs put it before UTF-8
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || name.empty() || name.find_first_of(" \t") != std::string_view::npos) {
      complaints.push_back(fmt::format("{}, line {}: \"{}\" is ignored: expected NAME=value", path, number, line));
      continue;
    }
    values.try_emplace(std::string(name), trimmed(line.substr(equals + 1)));
  }
}

ConfigFiles read_config_files(const std::string& user_file, const std::string& home) {
  ConfigFiles files;
  if (!user_file.empty()) {
    read(user_file, "NCCL_CONF_FILE=" + user_file, files);
  } else if (!home.empty()) {
    read_if_there(home + "/.nccl.conf", files);
  }
  read_if_there(kMachineFile, files);
  return files;
}

}  // namespace tutti
