#include "plan_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

namespace tutti::bench {
namespace {

constexpr std::size_t kBytesMax = std::size_t{64} << 20;  ///< the library takes no longer text

struct Close {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

std::string read_all(const std::string& path, std::string& text) {
  const std::unique_ptr<std::FILE, Close> file(path == "-" ? stdin : std::fopen(path.c_str(), "re"));
  if (!file) return fmt::format("--plan {}: {}", path, std::strerror(errno));
  std::vector<char> piece(std::size_t{64} << 10);
  while (text.size() <= kBytesMax) {
    const std::size_t bytes = std::fread(piece.data(), 1, piece.size(), file.get());
    text.append(piece.data(), bytes);
    if (bytes < piece.size()) break;
  }
  if (std::ferror(file.get())) return fmt::format("--plan {}: {}", path, std::strerror(errno));
  if (text.size() > kBytesMax)
    return fmt::format("--plan {}: longer than {} bytes, which no schedule may be", path, kBytesMax);
  if (text.find('\0') != std::string::npos) return fmt::format("--plan {}: holds zero bytes; it is not text", path);
  return {};
}

/// The words of the first line that starts with "schedule"; the lines before it become empty ones.
std::vector<std::string> cut_to_header(std::string& text) {
  std::size_t skipped = 0;
  for (std::size_t begin = 0; begin < text.size(); ++skipped) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::istringstream line(text.substr(begin, end - begin));
    std::string word;
    if (line >> word && word == "schedule") {
      std::vector<std::string> words{word};
      while (words.size() < 16 && line >> word) words.push_back(word);
      text = std::string(skipped, '\n') + text.substr(begin);
      return words;
    }
    begin = end + 1;
  }
  return {};
}

std::optional<int> number(const std::string& word) {
  int value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::string read_plan_file(const std::string& path, PlanFile& plan) {
  plan.name = path;
  if (std::string problem = read_all(path, plan.text); !problem.empty()) return problem;
  const std::vector<std::string> words = cut_to_header(plan.text);
  if (words.empty()) return fmt::format("--plan {}: no line starts with \"schedule\"", path);
  // schedule NAME COLLECTIVE ranks N [root N] ...
  const std::string collective = words.size() > 2 ? words[2] : "";
  plan.collective = collective_named(collective);
  if (!plan.collective || plan.collective->plan == tuttiSend)
    return fmt::format("--plan {}: a schedule for \"{}\"; expected one for a collective, such as all_reduce", path,
                       collective.substr(0, 40));
  const std::optional<int> ranks = words.size() > 4 && words[3] == "ranks" ? number(words[4]) : std::nullopt;
  if (!ranks || *ranks < 1 || *ranks > 1024)
    return fmt::format("--plan {}: its schedule line needs \"ranks\" and a number from 1 to 1024 after \"{}\"", path,
                       collective);
  plan.ranks = *ranks;
  if (plan.collective->rooted) {
    plan.root = words.size() > 6 && words[5] == "root" ? number(words[6]).value_or(plan.ranks) : 0;
    if (*plan.root >= plan.ranks) return fmt::format("--plan {}: its root is none of its {} ranks", path, plan.ranks);
  }
  return {};
}

}  // namespace tutti::bench
