// Versions, names of errors, and the reason of the last failure.
#include "api/versions.h"

#include "api/boundary.h"
#include "api/export.h"
#include "api/validation.h"
#include "base/log.h"

#include <tutti/tutti.h>

#include <atomic>

#define TUTTI_TEXT_INNER(value) #value
#define TUTTI_TEXT(value) TUTTI_TEXT_INNER(value)
#define TUTTI_DOTTED(major, minor, patch) TUTTI_TEXT(major) "." TUTTI_TEXT(minor) "." TUTTI_TEXT(patch)
#define TUTTI_VERSION_NUMBERS                                                 \
  TUTTI_DOTTED(TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH) \
  " (NCCL API " TUTTI_DOTTED(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) ")"

void tutti::api::log_version() {
  static std::atomic<bool> told{false};
  if (log_enabled(LogLevel::kVersion) && !told.exchange(true)) log_line(LogLevel::kVersion, TUTTI_VERSION_NUMBERS);
}

TUTTI_NCCL_API(ncclResult_t, GetVersion, int* version) {
  return tutti::api::boundary("ncclGetVersion", nullptr, [&]() -> tutti::Status {
    TUTTI_TRY(tutti::api::checked_pointer(version, "version"));
    *version = NCCL_VERSION_CODE;
    return {};
  });
}

TUTTI_NCCL_API(const char*, GetErrorString, ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "success";
    case ncclUnhandledCudaError: return "a CUDA call failed (ncclGetLastError has the reason)";
    case ncclSystemError: return "a system call failed (ncclGetLastError has the reason)";
    case ncclInternalError: return "internal error, a defect of the library (ncclGetLastError has more)";
    case ncclInvalidArgument: return "invalid argument (ncclGetLastError says which)";
    case ncclInvalidUsage: return "invalid usage, or not supported (ncclGetLastError says what)";
    case ncclRemoteError: return "another rank failed (ncclGetLastError says which)";
    case ncclInProgress: return "in progress (ncclCommGetAsyncError tells when it is done)";
    case ncclNumResults: break;
  }
  return "unknown result code";
}

TUTTI_NCCL_API(const char*, GetLastError, ncclComm_t comm) {
  try {
    return tutti::comm::last_error(comm ? tutti::comm::find(comm) : nullptr);
  } catch (...) {
    return "out of memory";
  }
}

TUTTI_NCCL_API(void, ResetDebugInit) {}

// NCCL exports this one too, under one name only.
extern "C" TUTTI_EXPORT void tutti_api_ResetDebugInitInternal() {}
extern "C" TUTTI_EXPORT void ncclResetDebugInitInternal()
    __attribute__((nothrow, alias("tutti_api_ResetDebugInitInternal")));

TUTTI_API(const char*, tuttiGetVersionString) { return "Tutti " TUTTI_VERSION_NUMBERS; }
