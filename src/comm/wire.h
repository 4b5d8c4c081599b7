// Little-endian encoding of what bootstrap messages carry. The reader checks every length: its bytes come from outside.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::comm {

using Bytes = std::vector<std::uint8_t>;

class WireWriter {
 public:
  template <class T>
  WireWriter& number(T value) {
    const auto wide = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::uint8_t>(wide >> (8 * i)));
    return *this;
  }
  WireWriter& raw(std::span<const std::uint8_t> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  WireWriter& text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// After a read beyond the end, ok() is false and everything read is zero or empty.
class WireReader {
 public:
  explicit WireReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    std::uint64_t wide = 0;
    const auto part = raw(sizeof(T));
    for (std::size_t i = 0; i < part.size(); ++i) wide |= std::uint64_t{part[i]} << (8 * i);
    return static_cast<T>(wide);
  }
  std::span<const std::uint8_t> raw(std::size_t size) {
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const auto part = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return part;
  }
  std::string text(std::size_t size_max) {
    const auto size = number<std::uint32_t>();
    if (size > size_max) ok_ = false;
    const auto part = raw(size);
    return std::string(part.begin(), part.end());
  }
  bool ok() const { return ok_; }
  /// True if everything was read and nothing is left.
  bool complete() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::uint8_t> bytes_;
  bool ok_ = true;
};

}  // namespace tutti::comm
