#include "cuda/mapped_memory.h"

#include "cuda/driver.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <numeric>

namespace tutti::cuda {
namespace {

constexpr CUmemAllocationHandleType kByDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

Result<Descriptor> export_piece(CUdeviceptr begin) {
  CUmemGenericAllocationHandle piece{};
  TUTTI_TRY(driver().retain_handle(&piece, reinterpret_cast<void*>(begin)));
  int fd = -1;
  Status exported = driver().mem_export(&fd, piece, kByDescriptor, 0);
  Descriptor descriptor(exported.ok() ? fd : -1);
  if (descriptor) (void)fcntl(descriptor.get(), F_SETFD, FD_CLOEXEC);
  TUTTI_TRY(driver().release_handle(piece));
  TUTTI_TRY(exported);
  return descriptor;
}

Status map_piece(CUdeviceptr at, std::size_t bytes, const Descriptor& descriptor) {
  CUmemGenericAllocationHandle piece{};
  void* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor.get()));
  TUTTI_TRY(driver().mem_import(&piece, number, kByDescriptor));
  Status mapped = driver().mem_map(at, bytes, 0, piece, 0);
  // The mapping keeps the piece, whatever becomes of this.
  (void)driver().release_handle(piece);
  return mapped;
}

}  // namespace

std::size_t SharedPieces::total() const { return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}); }

Result<SharedPieces> export_pieces(const Device& device, const void* address, std::size_t bytes, Sharing sharing,
                                   std::size_t most) {
  if (sharing == Sharing::kByHandle || sharing == Sharing::kByNothing) {
    return error(Code::kInvalidArgument, "it is no memory of cuMemMap");
  }
  const ContextScope scope(static_cast<CUcontext>(device.context()));
  TUTTI_TRY(scope.status());
  SharedPieces shared;
  const auto end = reinterpret_cast<CUdeviceptr>(address) + bytes;
  for (auto at = reinterpret_cast<CUdeviceptr>(address); at < end;) {
    CUdeviceptr begin = 0;
    std::size_t piece_bytes = 0;
    TUTTI_TRY(driver().address_range(&begin, &piece_bytes, at));
    if (shared.bytes.empty()) shared.begin = begin;
    if (shared.bytes.size() == most) {
      return error(Code::kInvalidArgument,
                   fmt::format("{} bytes of memory of cuMemMap in more than {} pieces", bytes, most));
    }
    TUTTI_TRY_ASSIGN(Descriptor descriptor, export_piece(begin));
    shared.bytes.push_back(piece_bytes);
    shared.descriptors.push_back(std::move(descriptor));
    at = begin + piece_bytes;
  }
  return shared;
}

Result<ImportedPieces> ImportedPieces::open(const Device& device, const SharedPieces& pieces) {
  const ContextScope scope(static_cast<CUcontext>(device.context()));
  TUTTI_TRY(scope.status());
  ImportedPieces made;
  made.context_ = device.context();
  CUdeviceptr begin = 0;
  TUTTI_TRY(driver().address_reserve(&begin, pieces.total(), 0, 0, 0));
  made.begin_ = begin;
  made.reserved_ = pieces.total();
  CUdeviceptr at = begin;
  for (std::size_t i = 0; i < pieces.bytes.size(); ++i) {
    TUTTI_TRY(map_piece(at, pieces.bytes[i], pieces.descriptors[i]));
    made.mapped_.push_back(pieces.bytes[i]);
    at += pieces.bytes[i];
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device.facts().ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  TUTTI_TRY(driver().set_access(begin, made.reserved_, &access, 1));
  return made;
}

ImportedPieces::~ImportedPieces() {
  if (reserved_ == 0) return;
  const ContextScope scope(static_cast<CUcontext>(context_));
  if (scope.is_gone()) return;
  CUdeviceptr at = begin_;
  for (const std::size_t bytes : mapped_) {
    (void)driver().mem_unmap(at, bytes);
    at += bytes;
  }
  (void)driver().address_free(begin_, reserved_);
}

}  // namespace tutti::cuda
