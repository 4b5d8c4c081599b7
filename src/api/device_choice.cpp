#include "api/device_choice.h"

#include "base/config.h"
#include "base/log.h"
#include "comm/device_memory.h"

#include <fmt/format.h>

#include <mutex>

namespace tutti::api {
namespace {

thread_local tuttiDevice_t chosen = tuttiDeviceAuto;

Error unusable(const char* who, const char* instead, const Error& why) {
  return error(Code::kInvalidUsage, fmt::format("{}, but {}; {}", who, why.message, instead));
}

}  // namespace

Status choose_device(tuttiDevice_t device) {
  switch (device) {
    case tuttiDeviceCuda:
      if (const Result<int> found = comm::usable_device(); !found.ok()) {
        return unusable("GPU memory was asked for", "pass tuttiDeviceHost or tuttiDeviceAuto", found.error());
      }
      chosen = device;
      return {};
    case tuttiDeviceAuto:
    case tuttiDeviceHost: chosen = device; return {};
  }
  return error(Code::kInvalidArgument,
               fmt::format("device is {}; pass tuttiDeviceAuto (0), tuttiDeviceHost (1) or tuttiDeviceCuda (2)",
                           static_cast<int>(device)));
}

Result<int> chosen_device() {
  const std::string& asked = config().device;
  if (chosen == tuttiDeviceHost || (chosen == tuttiDeviceAuto && asked == "host")) return comm::kHostMemory;
  const Status found = comm::find_devices();
  if (found.ok() || chosen == tuttiDeviceCuda) return comm::usable_device();
  if (asked == "cuda") return unusable("TUTTI_DEVICE=cuda", "unset it or set TUTTI_DEVICE=host", found.error());
  static std::once_flag told;
  std::call_once(told, [&] { log_info("communicators work on host memory: {}", found.error().message); });
  return comm::kHostMemory;
}

}  // namespace tutti::api
