#include "buffers.h"

#include "nccl_status.h"

#include <tutti/tutti.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tutti::bench {

Result<Buffer> Buffer::make(std::size_t bytes, Kind kind, ncclComm_t registered_with, const Gpu* gpu) {
  Buffer buffer;
  buffer.gpu_ = gpu;
  buffer.kind_ = kind;
  const std::size_t total = (bytes + 2 * kGuardBytes + 4095) / 4096 * 4096;
  void* memory = nullptr;
  if (kind == Kind::kShared && gpu) {
    TUTTI_TRY(nccl(ncclMemAlloc(&memory, total), fmt::format("ncclMemAlloc of {} bytes", total)));
  } else if (kind == Kind::kShared) {
    TUTTI_TRY(nccl(tuttiMemAlloc(&memory, total, nullptr), fmt::format("tuttiMemAlloc of {} bytes", total)));
  } else if (gpu) {
    TUTTI_TRY_ASSIGN(memory, gpu->allocate(total));
  } else {
    memory = std::aligned_alloc(4096, total);
    if (!memory)
      return error(Code::kSystem, fmt::format("no memory for a buffer of {} bytes; choose a smaller -e", total));
  }
  buffer.base_ = static_cast<std::byte*>(memory);
  if (gpu) {
    try {
      buffer.copy_.resize(total);
    } catch (const std::bad_alloc&) {
      return error(Code::kSystem,
                   fmt::format("no memory for the host's copy of {} bytes on a GPU; choose a smaller -e", total));
    }
    TUTTI_TRY(gpu->copy(memory, buffer.copy_.data(), total));
  } else {
    std::memset(memory, 0, total);  // pages are there before anything is timed
  }
  if (registered_with) {
    TUTTI_TRY(nccl(ncclCommRegister(registered_with, memory, total, &buffer.registration_), "ncclCommRegister"));
    buffer.comm_ = registered_with;
  }
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      gpu_(other.gpu_),
      copy_(std::move(other.copy_)),
      kind_(other.kind_),
      comm_(std::exchange(other.comm_, nullptr)),
      registration_(other.registration_) {}

Buffer::~Buffer() {
  if (comm_) (void)ncclCommDeregister(comm_, registration_);
  if (kind_ == Kind::kShared) {
    if (base_) (void)(gpu_ ? ncclMemFree(base_) : tuttiMemFree(base_));
  } else if (gpu_) {
    if (base_) gpu_->free(base_);
  } else {
    std::free(base_);
  }
}

Status Buffer::upload(std::size_t bytes) const {
  return gpu_ ? gpu_->copy(base_, copy_.data(), bytes + 2 * kGuardBytes) : Status();
}

Status Buffer::download(std::size_t bytes) {
  return gpu_ ? gpu_->copy(copy_.data(), base_, bytes + 2 * kGuardBytes) : Status();
}

void Buffer::set_guards(std::size_t bytes) {
  std::fill_n(host(), kGuardBytes, kGuard);
  std::fill_n(data() + bytes, kGuardBytes, kGuard);
}

std::size_t Buffer::damaged_guards(std::size_t bytes) const {
  const auto changed = [](const std::byte* from) {
    return kGuardBytes - static_cast<std::size_t>(std::count(from, from + kGuardBytes, kGuard));
  };
  return changed(host()) + changed(data() + bytes);
}

}  // namespace tutti::bench
