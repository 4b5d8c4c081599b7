// The functions that are measured: this library's, or beside them those of another libnccl.so.2 (--against).
#pragma once

#include "base/result.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <string>
#include <string_view>

namespace tutti::bench {

/// Every function of NCCL that takes part in a measurement, once.
#define TUTTI_MEASURED_FUNCTIONS(F) \
  F(ncclAllGather)                  \
  F(ncclAllReduce)                  \
  F(ncclAlltoAll)                   \
  F(ncclBroadcast)                  \
  F(ncclCommAbort)                  \
  F(ncclCommDestroy)                \
  F(ncclCommGetAsyncError)          \
  F(ncclCommInitRank)               \
  F(ncclGather)                     \
  F(ncclGetErrorString)             \
  F(ncclGetLastError)               \
  F(ncclGetUniqueId)                \
  F(ncclGetVersion)                 \
  F(ncclGroupEnd)                   \
  F(ncclGroupStart)                 \
  F(ncclRecv)                       \
  F(ncclRedOpCreatePreMulSum)       \
  F(ncclRedOpDestroy)               \
  F(ncclReduce)                     \
  F(ncclReduceScatter)              \
  F(ncclScatter)                    \
  F(ncclSend)

/// Communicators, operations and ids of one library mean nothing to another.
struct Library {
  std::string file;                                ///< of another library; empty: this one
  decltype(&tuttiSetDevice) set_device = nullptr;  ///< where the library has it: it works on host memory too
#define TUTTI_MEMBER(name) decltype(&::name) name = nullptr;
  TUTTI_MEASURED_FUNCTIONS(TUTTI_MEMBER)
#undef TUTTI_MEMBER

  /// The outcome of a call of this library, with its reason.
  Status status(ncclResult_t code, std::string_view what) const;
  /// ncclCommInitRank, until the communicator is there.
  Result<ncclComm_t> join(const ncclUniqueId& id, int rank, int ranks) const;
};

/// The one that tutti-perf is linked with.
const Library& this_library();

/// The file of `asked`: "nccl" looks for a libnccl.so.2 that is not Tutti's where the loader looks, in what ldconfig lists and in /usr/local/cuda;
/// anything else is a file. Of a Tutti elsewhere that is its libtutti.so.0. kInvalidArgument: there is none, or it is this library.
Result<std::string> find_other(const std::string& asked);

/// That file's functions, for good. kInvalidUsage: it cannot be loaded, or lacks a function.
Result<Library> open_other(const std::string& file);

}  // namespace tutti::bench
