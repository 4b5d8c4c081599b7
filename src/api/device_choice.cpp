#include "api/device_choice.h"

#include "base/config.h"

#include <fmt/format.h>

namespace tutti::api {
namespace {

thread_local tuttiDevice_t chosen = tuttiDeviceAuto;

constexpr const char* kNoCuda = "this library was built without CUDA and works on host memory only";

}  // namespace

Status choose_device(tuttiDevice_t device) {
  switch (device) {
    case tuttiDeviceCuda:
      return error(Code::kInvalidUsage,
                   fmt::format("GPU memory was asked for, but {}; pass tuttiDeviceHost or tuttiDeviceAuto", kNoCuda));
    case tuttiDeviceAuto:
    case tuttiDeviceHost: chosen = device; return {};
  }
  return error(Code::kInvalidArgument,
               fmt::format("device is {}; pass tuttiDeviceAuto (0), tuttiDeviceHost (1) or tuttiDeviceCuda (2)",
                           static_cast<int>(device)));
}

Status check_device() {
  if (chosen == tuttiDeviceHost || config().device != "cuda") return {};
  return error(Code::kInvalidUsage,
               fmt::format("TUTTI_DEVICE=cuda, but {}; unset it or set TUTTI_DEVICE=host", kNoCuda));
}

}  // namespace tutti::api
