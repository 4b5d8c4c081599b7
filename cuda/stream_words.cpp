#include "cuda/stream_words.h"

#include "cuda/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace tutti::cuda {
namespace {

CUcontext context_of(const Device& device) { return static_cast<CUcontext>(device.context()); }
CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

/// Where kernels find memory that CUDA may take for the host's; null: it is the device's alone, or they do not reach it.
Result<void*> found_as_host_memory(const void* data) {
  unsigned type = 0;
  unsigned managed = 0;
  CUdeviceptr on_device = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void* values[] = {&type, &managed, &on_device};
  const CUresult result = driver().pointer_attributes.raw(std::size(attributes), attributes, values, address(data));
  if (result == CUDA_ERROR_INVALID_VALUE) return nullptr;  // older drivers' answer for what they do not know
  if (result != CUDA_SUCCESS) return driver_error(driver().pointer_attributes.name(), result);
  const bool may_be_host = managed != 0 || type == CU_MEMORYTYPE_HOST;
  return may_be_host ? reinterpret_cast<void*>(on_device) : nullptr;
}

/// The copy that a kernel has to do; nothing to do for it: `to` is null.
Result<CopyLaunch> copy_for_kernel(void* to, const void* from, std::size_t bytes) {
  TUTTI_TRY_ASSIGN(void* const source, found_as_host_memory(from));
  if (source == nullptr) return CopyLaunch{};
  TUTTI_TRY_ASSIGN(void* const target, found_as_host_memory(to));
  return target == nullptr ? CopyLaunch{} : CopyLaunch{source, target, bytes};
}

Status launch(const Device& device, const CopyLaunch& copy, StreamHandle stream) {
  // What a link to the host takes, with some to spare.
  constexpr std::uint32_t kBlocks = 32;
  const std::uint32_t useful = fold_blocks(copy.bytes, device.facts().multiprocessors);
  return device.launch_copy(copy, std::min(useful, kBlocks), stream);
}

}  // namespace

Result<RegisteredMemory> RegisteredMemory::add(std::shared_ptr<Device> device, void* memory, std::size_t bytes) {
  const ContextScope scope(context_of(*device));
  TUTTI_TRY(scope.status());
  if (Status made = driver().host_register(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
      !made.ok()) {
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
  TUTTI_TRY_ASSIGN(const CopyLaunch by_kernel, copy_for_kernel(to, from, bytes));
  if (by_kernel.to != nullptr) return launch(device, by_kernel, stream);
  return driver().copy_async(address(to), address(from), bytes, static_cast<CUstream>(stream));
}

Status copy_by_engine(const Device& device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  // Of few bytes the driver makes work for what kernels run on; of rows it does not (580, H100: up to 1 KiB).
  constexpr std::size_t kFew = 2048;
  if (bytes >= kFew || bytes < 2) return copy_on_stream(device, to, from, bytes, stream);
  const ContextScope scope(context_of(device));
  TUTTI_TRY(scope.status());
  TUTTI_TRY_ASSIGN(const CopyLaunch by_kernel, copy_for_kernel(to, from, bytes));
  if (by_kernel.to != nullptr) return launch(device, by_kernel, stream);
  CUDA_MEMCPY2D rows{};
  rows.Height = bytes % 2 == 0 ? 2 : bytes;
  rows.WidthInBytes = rows.srcPitch = rows.dstPitch = bytes / rows.Height;
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  rows.srcDevice = address(from);
  rows.dstDevice = address(to);
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
