// Devices, contexts, modules.
#include "calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include <sys/mman.h>

namespace fake_driver {
namespace {

/// FAKE_CUDA_VERSION: another one, as CUDA counts.
int version_of_driver() {
  const char* const version = std::getenv("FAKE_CUDA_VERSION");
  return version ? std::atoi(version) : 13000;
}

/// FAKE_CUDA_PEERS_MOST: so many for each device.
CUresult add_peer(int device, int other) {
  static std::mutex mutex;
  static std::map<int, std::set<int>> enabled;
  const char* const most = std::getenv("FAKE_CUDA_PEERS_MOST");
  const std::lock_guard lock(mutex);
  std::set<int>& peers = enabled[device];
  if (peers.contains(other)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  if (most != nullptr && peers.size() >= std::strtoull(most, nullptr, 10)) return CUDA_ERROR_TOO_MANY_PEERS;
  peers.insert(other);
  return CUDA_SUCCESS;
}

/// As the process exits pinned memory goes away, whoever still looks at it.
void unmap_pinned_memory() {
  const std::lock_guard lock(world().mutex);
  for (const auto& [address, memory] : world().allocations) {
    if (memory.kind == Allocation::Kind::kHost)
      (void)mprotect(reinterpret_cast<void*>(address), memory.bytes, PROT_NONE);
  }
}

CUresult init(unsigned) {
  FAKE_CALL("cuInit");
  static const int at_exit = std::atexit(unmap_pinned_memory);
  if (at_exit != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return world().devices == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult driver_version(int* version) {
  FAKE_CALL("cuDriverGetVersion");
  *version = version_of_driver();
  return CUDA_SUCCESS;
}
CUresult device_count(int* count) {
  FAKE_CALL("cuDeviceGetCount");
  *count = world().devices;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
  FAKE_CALL("cuDeviceGet");
  if (ordinal < 0 || ordinal >= world().devices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult device_name(char* name, int length, CUdevice device) {
  FAKE_CALL("cuDeviceGetName");
  std::snprintf(name, static_cast<std::size_t>(length), "Fake %d", device);
  return CUDA_SUCCESS;
}
CUresult device_uuid(CUuuid* uuid, CUdevice device) {
  FAKE_CALL("cuDeviceGetUuid");
  std::memset(uuid->bytes, 0x11 + device, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  FAKE_CALL("cuDeviceGetAttribute");
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES: *value = 1; return CUDA_SUCCESS;
    default: *value = 0; return CUDA_SUCCESS;
  }
}
CUresult device_bus_id(char* text, int length, CUdevice device) {
  FAKE_CALL("cuDeviceGetPCIBusId");
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", 0x17 + device);
  return CUDA_SUCCESS;
}
CUresult device_can_access(int* can, CUdevice device, CUdevice other) {
  FAKE_CALL("cuDeviceCanAccessPeer");
  *can = reaches(device, other) ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult primary_retain(CUcontext* context, CUdevice device) {
  FAKE_CALL("cuDevicePrimaryCtxRetain");
  ++world().counts.contexts;
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult primary_release(CUdevice) {
  FAKE_END("cuDevicePrimaryCtxRelease");
  --world().counts.contexts;
  return failure;
}
CUresult context_get(CUcontext* context) {
  FAKE_CALL("cuCtxGetCurrent");
  *context = context_stack().empty() ? nullptr : context_stack().back();
  return CUDA_SUCCESS;
}
CUresult context_device(CUdevice* device) {
  FAKE_CALL("cuCtxGetDevice");
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_device();
  return CUDA_SUCCESS;
}
CUresult context_push(CUcontext context) {
  FAKE_CALL("cuCtxPushCurrent");
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}
CUresult context_pop(CUcontext* context) {
  FAKE_END("cuCtxPopCurrent");
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = context_stack().back();
  context_stack().pop_back();
  return failure;
}
CUresult context_set(CUcontext context) {
  FAKE_CALL("cuCtxSetCurrent");
  if (!context_stack().empty()) context_stack().pop_back();
  if (context) context_stack().push_back(context);
  return CUDA_SUCCESS;
}
CUresult context_enable_peer(CUcontext context, unsigned) {
  FAKE_CALL("cuCtxEnablePeerAccess");
  if (!reaches(current_device(), device_of(context))) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return add_peer(current_device(), device_of(context));
}

CUresult module_load(CUmodule* module, const void*) {
  FAKE_CALL("cuModuleLoadData");
  FAKE_SAFE();
  ++world().counts.modules;
  auto made = std::make_shared<Module>();
  made->device = current_device();
  *module = reinterpret_cast<CUmodule>(new std::shared_ptr<Module>(std::move(made)));
  return CUDA_SUCCESS;
}
CUresult module_unload(CUmodule module) {
  FAKE_END("cuModuleUnload");
  --world().counts.modules;
  auto* const held = reinterpret_cast<std::shared_ptr<Module>*>(module);
  if (held->use_count() > 1) end_over_unloaded_kernels();
  delete held;
  return failure;
}
CUresult module_function(CUfunction* function, CUmodule module, const char* name) {
  FAKE_CALL("cuModuleGetFunction");
  const Kernel* const kernel = find_kernel(name);
  if (!kernel) return CUDA_ERROR_NOT_FOUND;
  const auto& held = *reinterpret_cast<std::shared_ptr<Module>*>(module);
  held->functions.push_back({kernel, held});
  *function = reinterpret_cast<CUfunction>(&held->functions.back());
  return CUDA_SUCCESS;
}
CUresult function_attribute(int* value, CUfunction_attribute, CUfunction) {
  FAKE_CALL("cuFuncGetAttribute");
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult function_set_attribute(CUfunction, CUfunction_attribute, int) {
  FAKE_CALL("cuFuncSetAttribute");
  return CUDA_SUCCESS;
}
CUresult occupancy(int* blocks, CUfunction, int, std::size_t) {
  FAKE_CALL("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  *blocks = 2;
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    default: *name = "CUDA_ERROR_OF_THE_FAKE"; break;
  }
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "so says the fake driver";
  return CUDA_SUCCESS;
}

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::vector<Entry> device_entries() {
  return {{"cuInit", address(init)},
          {"cuDriverGetVersion", address(driver_version)},
          {"cuDeviceGetCount", address(device_count)},
          {"cuDeviceGet", address(device_get)},
          {"cuDeviceGetName", address(device_name)},
          {"cuDeviceGetUuid", address(device_uuid)},
          {"cuDeviceGetAttribute", address(device_attribute)},
          {"cuDeviceGetPCIBusId", address(device_bus_id)},
          {"cuDeviceCanAccessPeer", address(device_can_access)},
          {"cuDevicePrimaryCtxRetain", address(primary_retain)},
          {"cuDevicePrimaryCtxRelease", address(primary_release)},
          {"cuCtxGetCurrent", address(context_get)},
          {"cuCtxSetCurrent", address(context_set)},
          {"cuCtxGetDevice", address(context_device)},
          {"cuCtxPushCurrent", address(context_push)},
          {"cuCtxPopCurrent", address(context_pop)},
          {"cuCtxEnablePeerAccess", address(context_enable_peer)},
          {"cuModuleLoadData", address(module_load)},
          {"cuModuleUnload", address(module_unload)},
          {"cuModuleGetFunction", address(module_function)},
          {"cuFuncGetAttribute", address(function_attribute)},
          {"cuFuncSetAttribute", address(function_set_attribute)},
          {"cuOccupancyMaxActiveBlocksPerMultiprocessor", address(occupancy)},
          {"cuGetErrorName", address(error_name)},
          {"cuGetErrorString", address(error_string)}};
}

}  // namespace fake_driver

#undef cuGetProcAddress

/// The one name that is looked up in the library itself.
extern "C" FAKE_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int, cuuint64_t) {
  using fake_driver::Entry;
  static const std::vector<Entry> all = [] {
    std::vector<Entry> entries = fake_driver::device_entries();
    for (auto* more : {fake_driver::memory_entries, fake_driver::mapped_entries, fake_driver::stream_entries,
                       fake_driver::graph_entries, fake_driver::word_entries}) {
      const std::vector<Entry> some = more();
      entries.insert(entries.end(), some.begin(), some.end());
    }
    return entries;
  }();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Entry& e) { return std::string(e.name) == symbol; });
  const char* const missing = std::getenv("FAKE_CUDA_MISSING");
  const bool is_there = found != all.end() && (missing == nullptr || std::string(missing) != symbol);
  *function = is_there ? found->function : nullptr;
  return is_there ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
