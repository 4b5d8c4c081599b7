// Words in host memory that streams store and wait for.
#include "cuda/device.h"
#include "cuda/driver.h"

#include <map>
#include <mutex>

namespace tutti::cuda {
namespace {

/// How many in this process hold which memory: the driver takes it once.
struct Registered {
  std::mutex mutex;
  std::map<const void*, int> holders;
};
Registered& registered() {
  static auto* made = new Registered;
  return *made;
}

}  // namespace

Result<SharedWords> SharedWords::of(std::shared_ptr<Device> device, void* memory, std::size_t bytes) {
  const ContextScope scope(static_cast<CUcontext>(device->context()));
  TUTTI_TRY(scope.status());
  SharedWords made;
  {
    Registered& table = registered();
    const std::lock_guard lock(table.mutex);
    if (table.holders[memory] == 0) {
      TUTTI_TRY(driver().host_register(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    }
    ++table.holders[memory];
    made.memory_ = memory;
    made.device_ = std::move(device);
  }
  CUdeviceptr address = 0;
  TUTTI_TRY(driver().host_device_pointer(&address, memory, 0));
  made.address_ = address;
  return made;
}

SharedWords::~SharedWords() {
  if (!memory_) return;
  Registered& table = registered();
  const std::lock_guard lock(table.mutex);
  if (--table.holders[memory_] != 0) return;
  table.holders.erase(memory_);
  const ContextScope scope(static_cast<CUcontext>(device_->context()));
  if (scope.is_gone()) return;
  (void)driver().host_unregister(memory_);
}

Status give_words(const Device& device, std::span<const StreamWord> words, StreamHandle stream) {
  std::vector<CUstreamBatchMemOpParams> operations(words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    CUstreamBatchMemOpParams& one = operations[i];
    one = {};
    if (words[i].waits) {
      one.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      one.waitValue.address = words[i].address;
      one.waitValue.value = words[i].value;
      one.waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
    } else {
      one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      one.writeValue.address = words[i].address;
      one.writeValue.value = words[i].value;
      one.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    }
  }
  const ContextScope scope(static_cast<CUcontext>(device.context()));
  TUTTI_TRY(scope.status());
  return driver().stream_words(static_cast<CUstream>(stream), static_cast<unsigned>(operations.size()),
                               operations.data(), 0);
}

}  // namespace tutti::cuda
