#include "trainer/text.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

namespace tutti::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTextBytesMax = std::size_t{256} << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

Problem append_file(const fs::path& path, Text& text) {
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) return Failure{fmt::format("{}: {}", path.string(), std::strerror(errno))};
  std::uint8_t piece[1 << 16];
  while (const std::size_t got = std::fread(piece, 1, sizeof(piece), file.get())) {
    if (text.bytes.size() + got > kTextBytesMax) {
      return Failure{
          fmt::format("{}: the text is larger than {} bytes; name fewer files", path.string(), kTextBytesMax)};
    }
    text.bytes.insert(text.bytes.end(), piece, piece + got);
  }
  if (std::ferror(file.get())) return Failure{fmt::format("{}: {}", path.string(), std::strerror(errno))};
  ++text.file_count;
  return {};
}

/// A file has one of these, whatever its names.
using FileId = std::pair<dev_t, ino_t>;

/// `seen`: so that a link to what was read already, or to a directory above, adds nothing.
Problem append(const fs::path& path, bool named_by_user, std::set<FileId>& seen, Text& text) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (!named_by_user) return {};  // a dangling link inside a directory
    return Failure{fmt::format("{}: {}", path.string(), std::strerror(errno))};
  }
  if (!seen.insert({info.st_dev, info.st_ino}).second) return {};
  if (S_ISREG(info.st_mode)) return append_file(path, text);
  if (!S_ISDIR(info.st_mode)) {
    if (!named_by_user) return {};
    return Failure{fmt::format("{}: neither a file nor a directory", path.string())};
  }
  std::error_code code;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(path, code), end; !code && it != end; it.increment(code))
    entries.push_back(it->path());
  if (code) return Failure{fmt::format("{}: {}", path.string(), code.message())};
  std::sort(entries.begin(), entries.end());
  for (const auto& entry : entries) {
    if (auto problem = append(entry, false, seen, text)) return problem;
  }
  return {};
}

}  // namespace

Outcome<Text> read_text(const std::vector<std::string>& paths) {
  Text text;
  std::set<FileId> seen;
  for (const auto& path : paths) {
    if (auto problem = append(path, true, seen, text)) return *problem;
  }
  if (text.bytes.empty()) {
    std::string names;
    for (const auto& path : paths) names += (names.empty() ? "" : ", ") + path;
    return Failure{fmt::format("{}: no text: 0 bytes in {} files", names, text.file_count)};
  }
  return text;
}

double unigram_bits(const std::vector<std::uint8_t>& bytes) {
  std::array<double, 256> counts{};
  for (const std::uint8_t byte : bytes) counts[byte] += 1.0;
  double bits = 0;
  for (const double count : counts) {
    const double share = count / static_cast<double>(bytes.size());
    if (count > 0) bits -= share * std::log2(share);
  }
  return bits;
}

}  // namespace tutti::trainer
