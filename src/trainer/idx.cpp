#include "trainer/idx.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tutti::trainer {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kValuesBytesMax = std::size_t{4} << 30;

struct CloseGz {
  void operator()(gzFile_s* file) const { gzclose(file); }
};
using GzFile = std::unique_ptr<gzFile_s, CloseGz>;

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

/// Reads up to `bytes`; fewer mean the end of the file.
Outcome<std::size_t> read_some(gzFile file, const std::string& path, std::uint8_t* out, std::size_t bytes) {
  const int got = gzread(file, out, static_cast<unsigned>(bytes));
  int code = Z_OK;
  const char* reason = gzerror(file, &code);
  // zlib reports a stream cut in the middle as Z_BUF_ERROR, on the read that comes back short.
  if (code == Z_BUF_ERROR) return Failure{fmt::format("{}: the gzip data is cut short; fetch the file again", path)};
  if (got < 0 || code != Z_OK) {
    return Failure{fmt::format("{}: {}", path, code == Z_ERRNO ? std::strerror(errno) : reason)};
  }
  return static_cast<std::size_t>(got);
}

Outcome<std::vector<std::size_t>> read_header(gzFile file, const std::string& path, int dimension_count) {
  std::uint8_t bytes[4 + 4 * 4];
  const std::size_t wanted = 4 + 4 * static_cast<std::size_t>(dimension_count);
  auto got = read_some(file, path, bytes, wanted);
  if (!got) return got.failure();
  if (*got < 4) return Failure{fmt::format("{}: {} bytes long, too short for an IDX file", path, *got)};
  const std::uint32_t magic = big_endian(bytes);
  const std::uint32_t expected = 0x0800u + static_cast<std::uint32_t>(dimension_count);
  if (magic != expected) {
    return Failure{fmt::format("{}: starts with 0x{:08x}, not with 0x{:08x}, the mark of an IDX file of {}", path,
                               magic, expected, dimension_count == 1 ? "labels" : "images")};
  }
  if (*got < wanted) return Failure{fmt::format("{}: ends inside the header", path)};
  std::vector<std::size_t> dimensions;
  for (int d = 0; d < dimension_count; ++d) {
    dimensions.push_back(big_endian(bytes + 4 + 4 * d));
    if (dimensions.back() == 0) return Failure{fmt::format("{}: dimension {} is 0: the file is empty", path, d)};
  }
  return dimensions;
}

}  // namespace

Outcome<IdxArray> read_idx(const std::string& path, int dimension_count) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Failure{fmt::format("{}: {}", path, std::strerror(errno))};
  if (!S_ISREG(info.st_mode)) return Failure{fmt::format("{}: not a regular file", path)};
  GzFile file(gzopen(path.c_str(), "rb"));  // reads plain files as they are
  if (!file) return Failure{fmt::format("{}: {}", path, std::strerror(errno))};
  gzbuffer(file.get(), 1u << 17);

  auto dimensions = read_header(file.get(), path, dimension_count);
  if (!dimensions) return dimensions.failure();
  std::size_t total = 1;
  for (const std::size_t size : *dimensions) {
    if (size > kValuesBytesMax / total) {
      return Failure{fmt::format("{}: the header promises more than {} bytes", path, kValuesBytesMax)};
    }
    total *= size;
  }

  IdxArray array{*dimensions, {}};
  std::uint8_t past_end = 0;
  while (array.values.size() < total) {
    const std::size_t have = array.values.size();
    const std::size_t piece = std::min(kPieceBytes, total - have);
    array.values.resize(have + piece);
    auto got = read_some(file.get(), path, array.values.data() + have, piece);
    if (!got) return got.failure();
    if (*got < piece) {
      return Failure{fmt::format("{}: holds {} bytes of values, its header promises {}", path, have + *got, total)};
    }
  }
  auto more = read_some(file.get(), path, &past_end, 1);
  if (!more) return more.failure();
  if (*more != 0) return Failure{fmt::format("{}: holds more than the {} bytes its header promises", path, total)};
  return array;
}

}  // namespace tutti::trainer
