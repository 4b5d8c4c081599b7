#include "cuda/driver.h"

#include "base/log.h"
#include "cuda/driver_use.h"

#include <fmt/format.h>

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <optional>

namespace tutti::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

/// Never unloaded: the application, and whatever else it loads, use the same driver.
struct Opened {
  Driver driver;
  std::optional<Error> failure;
  bool has_device = false;
};

const Driver* opened_driver = nullptr;
std::atomic<bool> is_open{false};

Error unusable(std::string why) { return error(Code::kUnhandledCuda, std::move(why)); }

/// The driver's own way to its functions, of CUDA 12 or of 11.3.
struct Finder {
  PFN_cuGetProcAddress_v12000 newer = nullptr;
  PFN_cuGetProcAddress_v11030 older = nullptr;

  void* find(const char* name, int version) const {
    void* address = nullptr;
    const CUresult result = newer ? newer(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr)
                                  : older(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT);
    return result == CUDA_SUCCESS ? address : nullptr;
  }
};

/// Functions are asked for by the version of their ABI: a newer driver may have given the same name another meaning.
Status look_up(Driver& d, const Finder& finder) {
  const auto get = [&](const char* name, int version) { return finder.find(name, version); };
  d.error_name = reinterpret_cast<PFN_cuGetErrorName_v6000>(get("cuGetErrorName", 6000));
  d.error_string = reinterpret_cast<PFN_cuGetErrorString_v6000>(get("cuGetErrorString", 6000));
  std::string missing;
#define TUTTI_DRIVER_FUNCTION(member, function, version)               \
  if (void* const address = get(#function, version)) {                 \
    d.member.set(address);                                             \
  } else {                                                             \
    missing += (missing.empty() ? "" : ", ") + std::string(#function); \
  }
#include "cuda/driver_functions.def"
#undef TUTTI_DRIVER_FUNCTION
  if (missing.empty()) return {};
  return unusable(fmt::format("the CUDA driver has no {}: it is too old, install one of CUDA 12 or newer", missing));
}

Status open(Driver& d, bool& has_device) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) return unusable(fmt::format("no CUDA driver: {}", dlerror()));
  const Finder find{reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2")),
                    reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"))};
  if (!find.newer && !find.older)
    return unusable(fmt::format("{} has no cuGetProcAddress: install a driver of CUDA 12 or newer", kLibrary));
  const Status complete = look_up(d, find);
  opened_driver = &d;  // error names come from it
  if (Status begun = d.init(0); !begun.ok()) return complete.ok() ? begun : complete;
  int devices = 0;
  TUTTI_TRY(d.device_count(&devices));
  if (devices == 0) return unusable("the CUDA driver has no device (CUDA_VISIBLE_DEVICES may hide them)");
  has_device = true;
  if (!complete.ok()) return complete;
  end_uses_at_exit();
  int version = 0;
  TUTTI_TRY(d.driver_version(&version));
  log_info("CUDA driver of CUDA {}.{}, {} device(s)", version / 1000, version % 1000 / 10, devices);
  return {};
}

}  // namespace

Error driver_error(const char* function, CUresult result, std::source_location where) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (opened_driver && opened_driver->error_name) opened_driver->error_name(result, &name);
  if (opened_driver && opened_driver->error_string) opened_driver->error_string(result, &text);
  const std::string code = name ? name : fmt::format("error {}", static_cast<int>(result));
  return error(Code::kUnhandledCuda, fmt::format("{}: {}{}", function, code, text ? fmt::format(" ({})", text) : ""),
               where);
}

Result<const Driver*> find_driver() {
  static const Opened* const opened = [] {
    auto* made = new Opened;
    if (Status status = open(made->driver, made->has_device); !status.ok()) made->failure = status.error();
    is_open = made->has_device;
    return made;
  }();
  if (opened->failure) return *opened->failure;
  return &opened->driver;
}

bool driver_is_open() { return is_open.load(std::memory_order_acquire); }

const Driver& driver() { return *opened_driver; }

namespace {

/// The thread's innermost scope that has its context.
constinit thread_local const ContextScope* innermost [[gnu::tls_model("initial-exec")]] = nullptr;

}  // namespace

ContextScope::ContextScope(void* context, ContextUse use) : context_(context) {
  const bool for_streams = use == ContextUse::kStreams;
  if (innermost && innermost->context_ == context && (for_streams || innermost->exchanged_)) return;
  CUcontext current = nullptr;
  if (for_streams) status_ = driver().context_get(&current);
  if (!status_.ok()) return;
  if (!for_streams || static_cast<void*>(current) != context) {
    const CUresult result = driver().context_push.raw(static_cast<CUcontext>(context));
    pushed_ = result == CUDA_SUCCESS;
    is_gone_ = result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_CONTEXT ||
               result == CUDA_ERROR_DEINITIALIZED;
    if (!pushed_) {
      status_ = driver_error(driver().context_push.name(), result);
      return;
    }
  }
  if (!for_streams) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    status_ = driver().exchange_capture_mode(&mode);
    exchanged_ = status_.ok();
    mode_ = mode;
  }
  outer_ = innermost;
  entered_ = status_.ok();
  if (entered_) innermost = this;
}

ContextScope::~ContextScope() {
  if (entered_) innermost = outer_;
  if (exchanged_) {
    auto mode = static_cast<CUstreamCaptureMode>(mode_);
    (void)driver().exchange_capture_mode(&mode);
  }
  if (!pushed_) return;
  CUcontext popped = nullptr;
  (void)driver().context_pop(&popped);
}

}  // namespace tutti::cuda
