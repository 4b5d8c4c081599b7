// Mapping: the owner of one mmap; and memory files (memfd), the shared memory that has no name and dies with its users.
#pragma once

#include "base/descriptor.h"
#include "base/result.h"

#include <cstddef>
#include <utility>

namespace tutti {

/// kReserved takes the memory now, so that a lack of it is an error here. kOnTouch takes each page when it is first
/// touched: for large files that are mostly never touched; a lack of memory then kills the toucher.
enum class Backing { kReserved, kOnTouch };

/// A zero-filled memory file of exactly `bytes`, closed on exec, sealed so that no holder can resize it. `name` shows
/// in /proc only.
Result<Descriptor> create_memory_file(const char* name, std::size_t bytes, Backing backing);

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      unmap();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~Mapping() { unmap(); }

  /// Maps the first `bytes` of the file, shared, readable and writable. The descriptor may be closed afterwards. An
  /// error if the file is shorter, because touching the rest would kill the process.
  static Result<Mapping> map_file(int fd, std::size_t bytes);
  /// Private zero-filled memory.
  static Result<Mapping> map_anonymous(std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Mapping(void* data, std::size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  void unmap();

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tutti
