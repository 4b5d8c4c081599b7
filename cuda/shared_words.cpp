// Words in host memory that streams store and wait for.
#include "cuda/device.h"
#include "cuda/driver.h"

#include <condition_variable>
#include <map>
#include <mutex>

namespace tutti::cuda {
namespace {

/// What this process has registered: the driver takes memory once. While it takes or leaves some, which may take until a device is idle, only
/// who wants the same waits.
struct Registered {
  struct Memory {
    int holders = 0;
    bool changes = true;  ///< the driver is at it
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<const void*, Memory> all;
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
    std::unique_lock lock(table.mutex);
    table.changed.wait(lock, [&] {
      const auto found = table.all.find(memory);
      return found == table.all.end() || !found->second.changes;
    });
    const auto [own, is_new] = table.all.try_emplace(memory);
    if (is_new) {
      lock.unlock();
      // No text before others know: there may be no memory for one.
      const CUresult taken =
          driver().host_register.raw(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
      lock.lock();
      table.changed.notify_all();
      if (taken != CUDA_SUCCESS) {
        table.all.erase(own);
        return driver_error(driver().host_register.name(), taken);
      }
      own->second.changes = false;
    }
    ++own->second.holders;
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
  std::unique_lock lock(table.mutex);
  const auto own = table.all.find(memory_);
  if (--own->second.holders != 0) return;
  own->second.changes = true;
  lock.unlock();
  {
    const ContextScope scope(static_cast<CUcontext>(device_->context()));
    if (!scope.is_gone()) (void)driver().host_unregister(memory_);
  }
  lock.lock();
  table.all.erase(own);
  table.changed.notify_all();
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
