// Functions that NCCL has had since 2.29, as far as PyTorch and JAX look for them: the loader refuses to load what imports a name
// that is nowhere. All fail with the reason in ncclGetLastError. They are in libtutti.so.0 only: libnccl.so.2 has the names of
// 2.28.9, and the loader looks into what it needs too (decision 27).
#include "api/boundary.h"
#include "api/export.h"

#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

namespace tutti::api {
namespace {

ncclResult_t later(const char* function, const char* since, ncclComm_t comm = nullptr) noexcept {
  return boundary(function, comm, [&]() -> Status {
    return error(Code::kInvalidUsage,
                 fmt::format("{} came with NCCL {}; this library offers NCCL {}.{}.{}, as ncclGetVersion says",
                             function, since, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));
  });
}

}  // namespace
}  // namespace tutti::api

using tutti::api::later;

// nccl.h of 2.28.9 declares none of these; only the calling convention matters here: plain C.
extern "C" {
struct ncclWaitSignalDesc;
struct ncclCommProperties;
}

TUTTI_NCCL_API(ncclResult_t, CommGetUniqueId, ncclComm_t comm, ncclUniqueId*) {
  return later("ncclCommGetUniqueId", "2.29", comm);
}

TUTTI_NCCL_API(ncclResult_t, CommGrow, ncclComm_t comm, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*) {
  return later("ncclCommGrow", "2.29", comm);
}

TUTTI_NCCL_API(ncclResult_t, CommQueryProperties, ncclComm_t comm, ncclCommProperties*) {
  return later("ncclCommQueryProperties", "2.29", comm);
}

TUTTI_NCCL_API(ncclResult_t, WinGetUserPtr, ncclComm_t comm, ncclWindow_t, void**) {
  return later("ncclWinGetUserPtr", "2.29", comm);
}

TUTTI_NCCL_API(ncclResult_t, GetPeerDevicePointer, ncclWindow_t, std::size_t, int, void**) {
  return later("ncclGetPeerDevicePointer", "2.29");
}

TUTTI_NCCL_API(ncclResult_t, GetLsaDevicePointer, ncclWindow_t, std::size_t, int, void**) {
  return later("ncclGetLsaDevicePointer", "2.29");
}

TUTTI_NCCL_API(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t, std::size_t, void**) {
  return later("ncclGetLsaMultimemDevicePointer", "2.29");
}

TUTTI_NCCL_API(ncclResult_t, PutSignal, const void*, std::size_t, ncclDataType_t, int, ncclWindow_t, std::size_t, int,
               int, unsigned, ncclComm_t comm, cudaStream_t) {
  return later("ncclPutSignal", "2.29", comm);
}

TUTTI_NCCL_API(ncclResult_t, Signal, int, int, int, unsigned, ncclComm_t comm, cudaStream_t) {
  return later("ncclSignal", "2.29", comm);
}

TUTTI_NCCL_API(ncclResult_t, WaitSignal, int, ncclWaitSignalDesc*, ncclComm_t comm, cudaStream_t) {
  return later("ncclWaitSignal", "2.29", comm);
}

TUTTI_NCCL_API(ncclResult_t, CommSuspend, ncclComm_t comm, int) { return later("ncclCommSuspend", "2.30", comm); }

TUTTI_NCCL_API(ncclResult_t, CommResume, ncclComm_t comm) { return later("ncclCommResume", "2.30", comm); }

TUTTI_NCCL_API(ncclResult_t, CommMemStats, ncclComm_t comm, int, std::uint64_t*) {
  return later("ncclCommMemStats", "2.30", comm);
}
