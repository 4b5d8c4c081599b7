#include "base/config_files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace tutti {
namespace {

constexpr const char* kMachineFile = "/etc/nccl.conf";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// False: it cannot be read, errno says why.
bool read(const std::string& path, ConfigFiles& files) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    // An empty file leaves nothing to insert, which a stream calls a failure; so does a folder, which cannot be read.
    return file && file.peek() == std::ifstream::traits_type::eof() && !file.bad();
  }
  files.add(text.str(), path);
  return true;
}

}  // namespace

void ConfigFiles::add(std::string_view text, std::string_view path) {
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
    if (!read(user_file, files))
      files.complaints.push_back(fmt::format("NCCL_CONF_FILE={} is ignored: {}", user_file, std::strerror(errno)));
  } else if (!home.empty()) {
    (void)read(home + "/.nccl.conf", files);
  }
  (void)read(kMachineFile, files);
  return files;
}

}  // namespace tutti
