// Memory of cuMemMap among processes: pieces of physical memory at consecutive addresses, each of which travels as a descriptor.
#pragma once

#include "base/descriptor.h"
#include "base/result.h"
#include "cuda/device.h"
#include "cuda/pointers.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::cuda {

/// What another process needs to map the pieces that a range lies in, one behind the other.
struct SharedPieces {
  std::uint64_t begin = 0;         ///< of the first piece, in the process that exports it
  std::vector<std::size_t> bytes;  ///< of each
  std::vector<Descriptor> descriptors;

  std::size_t total() const;
};

/// Failure: this is no such memory, or it was made without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or lies in more than `most` pieces.
/// `sharing`: what sharing_of() says of its beginning.
Result<SharedPieces> export_pieces(const Device& device, const void* address, std::size_t bytes, Sharing sharing,
                                   std::size_t most);

/// The pieces of another process at consecutive addresses of this one, which `device` may use, while this lives.
class ImportedPieces {
 public:
  ImportedPieces() = default;
  ImportedPieces(ImportedPieces&& other) noexcept { swap(other); }
  ImportedPieces& operator=(ImportedPieces&& other) noexcept {
    swap(other);
    return *this;
  }
  ~ImportedPieces();
  static Result<ImportedPieces> open(const Device& device, const SharedPieces& pieces);
  std::uint64_t begin() const { return begin_; }

 private:
  void swap(ImportedPieces& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(begin_, other.begin_);
    std::swap(reserved_, other.reserved_);
    std::swap(mapped_, other.mapped_);
  }
  void* context_ = nullptr;
  std::uint64_t begin_ = 0;
  std::size_t reserved_ = 0;
  std::vector<std::size_t> mapped_;  ///< bytes of the pieces that are
};

}  // namespace tutti::cuda
