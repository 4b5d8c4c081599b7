#include "cuda/device.h"

#include "cuda/driver.h"
#include "cuda/driver_use.h"
#include "cuda/kernel_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace tutti::cuda {
namespace {

/// Never destroyed: communicators may outlive the static objects.
std::mutex& devices_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::map<int, std::weak_ptr<Device>>& devices() {
  static auto* table = new std::map<int, std::weak_ptr<Device>>;
  return *table;
}

CUstream stream_of(StreamHandle stream) { return static_cast<CUstream>(stream); }

}  // namespace

Status find_devices() {
  const Result<const Driver*> found = find_driver();
  return found.ok() ? Status() : Status(found.error());
}

bool devices_are_known() { return driver_is_open(); }

Result<int> device_count() {
  TUTTI_TRY_ASSIGN(const Driver* d, find_driver());
  int count = 0;
  TUTTI_TRY(d->device_count(&count));
  return count;
}

Result<int> current_device() {
  TUTTI_TRY_ASSIGN(const Driver* d, find_driver());
  CUcontext context = nullptr;
  TUTTI_TRY(d->context_get(&context));
  if (!context) return 0;
  CUdevice device = 0;
  TUTTI_TRY(d->context_device(&device));
  return device;
}

Result<std::shared_ptr<Device>> Device::open(int ordinal) {
  TUTTI_TRY_ASSIGN(const int count, device_count());
  if (ordinal < 0 || ordinal >= count) {
    return error(
        Code::kInvalidArgument,
        fmt::format("device {} does not exist: this process sees {} device(s), numbered from 0", ordinal, count));
  }
  const std::lock_guard lock(devices_mutex());
  if (std::shared_ptr<Device> known = devices()[ordinal].lock()) return known;
  std::shared_ptr<Device> device(new Device);
  TUTTI_TRY(device->start(ordinal));
  devices()[ordinal] = device;
  return device;
}

Status Device::start(int ordinal) {
  const Driver& d = driver();
  CUdevice handle = 0;
  TUTTI_TRY(d.device_get(&handle, ordinal));
  facts_.ordinal = ordinal;
  CUuuid uuid{};
  TUTTI_TRY(d.device_uuid(&uuid, handle));
  std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), facts_.uuid.begin());
  TUTTI_TRY(d.device_bus_id(facts_.bus_id.data(), static_cast<int>(facts_.bus_id.size()), handle));
  int multiprocessors = 0;
  TUTTI_TRY(d.device_attribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle));
  facts_.multiprocessors = static_cast<std::uint32_t>(multiprocessors);
  CUcontext context = nullptr;
  TUTTI_TRY(d.primary_retain(&context, handle));
  context_ = context;
  static std::once_flag with_a_context;
  std::call_once(with_a_context, end_uses_at_exit);
  const ContextScope scope(context);
  TUTTI_TRY(scope.status());
  return load_kernels();
}

Status Device::load_kernels() {
  const Driver& d = driver();
  if (kernel_images().empty()) {
    return error(Code::kInvalidUsage,
                 "this library was built without GPU kernels (nvcc was not there); "
                 "build it where the CUDA toolkit is, or set TUTTI_DEVICE=host");
  }
  const auto function_of = [&](CUmodule module, const std::string& name) -> Result<CUfunction> {
    CUfunction function = nullptr;
    TUTTI_TRY(d.module_function(&function, module, name.c_str()));
    return function;
  };
  std::uint32_t resident = ~0u;
  for (const KernelImage& image : kernel_images()) {
    CUmodule module = nullptr;
    if (Status loaded = d.module_load(&module, image.begin); !loaded.ok()) {
      int version = 0;
      (void)d.driver_version(&version);
      return error(Code::kUnhandledCuda,
                   fmt::format("the kernels for {} cannot be loaded on device {}: {}; the driver is of CUDA {}.{}, and "
                               "has to be of the major version of the toolkit that built this library, or a later one",
                               name_of(image.dtype), facts_.ordinal, loaded.error().message, version / 1000,
                               version % 1000 / 10));
    }
    modules_.push_back(module);
    for (int kind = 0; kind < kKernelKinds; ++kind) {
      TUTTI_TRY_ASSIGN(CUfunction function,
                       function_of(module, fmt::format("tutti_{}_{}", kKernelKindNames[kind], name_of(image.dtype))));
      kernels_[kind][static_cast<int>(image.dtype)] = function;
      int blocks = 0;
      TUTTI_TRY(d.occupancy(&blocks, function, static_cast<int>(kThreads), 0));
      resident = std::min(resident, static_cast<std::uint32_t>(blocks) * facts_.multiprocessors);
    }
    if (image.dtype != DataType::kUint8) continue;
    TUTTI_TRY_ASSIGN(copy_, function_of(module, kCopyKernel));
    TUTTI_TRY_ASSIGN(nothing_, function_of(module, kNothingKernel));
  }
  resident_blocks_ = resident;
  return {};
}

Device::~Device() {
  if (!context_) return;
  const Driver& d = driver();
  {
    const ContextScope scope(static_cast<CUcontext>(context_));
    if (scope.is_gone()) modules_.clear();
    for (void* module : modules_) (void)d.module_unload(static_cast<CUmodule>(module));
  }
  (void)d.primary_release(facts_.ordinal);
}

Status Device::run(void* function, std::uint32_t blocks, const void* arguments, StreamHandle stream) const {
  CUlaunchConfig shape{};
  shape.gridDimX = blocks;
  shape.gridDimY = shape.gridDimZ = 1;
  shape.blockDimX = kThreads;
  shape.blockDimY = shape.blockDimZ = 1;
  shape.hStream = stream_of(stream);
  void* parameters[] = {const_cast<void*>(arguments)};
  const ContextScope scope(static_cast<CUcontext>(context_), ContextUse::kStreams);
  TUTTI_TRY(scope.status());
  return driver().launch(&shape, static_cast<CUfunction>(function), arguments ? parameters : nullptr, nullptr);
}

Status Device::launch(KernelKind kind, DataType type, std::uint32_t blocks, const void* arguments,
                      StreamHandle stream) const {
  return run(kernels_[static_cast<int>(kind)][static_cast<int>(type)], blocks, arguments, stream);
}

Status Device::launch_copy(const CopyLaunch& copy, std::uint32_t blocks, StreamHandle stream) const {
  return run(copy_, blocks, &copy, stream);
}

Status Device::launch_nothing(StreamHandle stream) const { return run(nothing_, 1, nullptr, stream); }

Status make_current(const Device& device) { return driver().context_set(static_cast<CUcontext>(device.context())); }

Result<std::uint64_t> stream_id(const Device& device, StreamHandle stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= 1) return std::uint64_t{0};
  const ContextScope scope(static_cast<CUcontext>(device.context()), ContextUse::kStreams);
  TUTTI_TRY(scope.status());
  unsigned long long id = 0;
  TUTTI_TRY(driver().stream_id(stream_of(stream), &id));
  return std::uint64_t{id} + 1;
}

Result<bool> follows_default_stream(const Device& device, StreamHandle stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2) return true;
  const ContextScope scope(static_cast<CUcontext>(device.context()));
  TUTTI_TRY(scope.status());
  unsigned flags = 0;
  TUTTI_TRY(driver().stream_flags(stream_of(stream), &flags));
  return (flags & CU_STREAM_NON_BLOCKING) == 0;
}

Result<bool> Device::can_reach(const Device& other) const {
  if (other.context_ == context_) return true;
  int can = 0;
  TUTTI_TRY(driver().device_can_access(&can, facts_.ordinal, other.facts_.ordinal));
  return can != 0;
}

Result<bool> Device::reach(const Device& other) const {
  if (other.context_ == context_) return true;
  const ContextScope scope(static_cast<CUcontext>(context_));
  TUTTI_TRY(scope.status());
  const CUresult result = driver().context_enable_peer.raw(static_cast<CUcontext>(other.context_), 0);
  // Others in this process may have asked for it before.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return true;
  if (result == CUDA_ERROR_TOO_MANY_PEERS) return false;
  return driver_error(driver().context_enable_peer.name(), result);
}

}  // namespace tutti::cuda
