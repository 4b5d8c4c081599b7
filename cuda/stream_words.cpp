#include "cuda/stream_words.h"

#include "cuda/driver.h"

#include <fmt/format.h>

#include <utility>

namespace tutti::cuda {
namespace {

CUcontext context_of(const Device& device) { return static_cast<CUcontext>(device.context()); }
CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

Result<RegisteredMemory> RegisteredMemory::add(std::shared_ptr<Device> device, void* memory, std::size_t bytes) {
  const ContextScope scope(context_of(*device));
  TUTTI_TRY(scope.status());
  if (Status made = driver().host_register(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE); !made.ok()) {
    return error(Code::kUnhandledCuda, fmt::format("pinning {} bytes of host memory: {}", bytes, made.error().message));
  }
  RegisteredMemory registered;
  registered.device_ = std::move(device);
  registered.memory_ = memory;
  return registered;
}

RegisteredMemory::~RegisteredMemory() {
  if (!memory_) return;
  const ContextScope scope(context_of(*device_));
  if (scope.is_gone()) return;
  (void)driver().host_unregister(memory_);
}

Status copy_on_stream(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return {};
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  return driver().copy_async(address(to), address(from), bytes, static_cast<CUstream>(stream));
}

Status copy_by_engine(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  // Of few bytes the driver makes work for what kernels run on; of rows it does not (580, H100: up to 1 KiB).
  constexpr std::size_t kFew = 2048;
  if (bytes >= kFew || bytes < 2) return copy_on_stream(device, to, from, bytes, stream);
  CUDA_MEMCPY2D rows{};
  rows.Height = bytes % 2 == 0 ? 2 : bytes;
  rows.WidthInBytes = rows.srcPitch = rows.dstPitch = bytes / rows.Height;
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  rows.srcDevice = address(from);
  rows.dstDevice = address(to);
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  return driver().copy_rows_async(&rows, static_cast<CUstream>(stream));
}

Status write_word(const Device& device, std::uint32_t* word, std::uint32_t value, StreamHandle stream) {
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  return driver().stream_write_value(static_cast<CUstream>(stream), address(word), value,
                                     CU_STREAM_WRITE_VALUE_DEFAULT);
}

Result<bool> can_flush(const Device& device) {
  CUdevice handle = 0;
  TUTTI_TRY(driver().device_get(&handle, device.facts().ordinal));
  int can = 0;
  TUTTI_TRY(driver().device_attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, handle));
  return can != 0;
}

Status wait_for_word(const Device& device, const std::uint32_t* word, std::uint32_t value, StreamHandle stream,
                     bool flushes) {
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  unsigned how = CU_STREAM_WAIT_VALUE_GEQ;
  if (flushes) how |= CU_STREAM_WAIT_VALUE_FLUSH;
  return driver().stream_wait_value(static_cast<CUstream>(stream), address(word), value, how);
}

Status call_host(const Device& device, void (*function)(void*), void* data, StreamHandle stream) {
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  return driver().launch_host(static_cast<CUstream>(stream), function, data);
}

}  // namespace tutti::cuda
