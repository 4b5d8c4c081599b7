// NCCL's configuration files: NAME=value lines that stand for environment variables. NCCL_CONF_FILE, or else ~/.nccl.conf, and then
// /etc/nccl.conf. The environment comes before all of them, the user's file before the machine's.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct ConfigFiles {
  std::map<std::string, std::string, std::less<>> values;
  std::vector<std::string> complaints;  ///< lines that are none, a file that cannot be read

  /// Adds what the text of a file says and is not there yet. Blank lines and those that begin with # say nothing.
  void add(std::string_view text, std::string_view path);
};

/// Reads the files that there are. `user_file`: NCCL_CONF_FILE, or empty; `home`: for ~, or empty.
ConfigFiles read_config_files(const std::string& user_file, const std::string& home);

}  // namespace tutti
