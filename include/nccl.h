/* nccl.h: the C API of NCCL 2.28.9 - its names, values and layouts - as Tutti implements it.
 *
 * A program written for NCCL compiles against this header and links with libnccl.so.2 or libtutti.so unchanged. What is
 * particular to host memory (streams, shared allocations) is in tutti/tutti.h; what is not supported yet, in
 * docs/api.md.
 *
 * Macros that a program may define before including this header:
 *   TUTTI_NCCL_HEADER_LEVEL=22707   declares what NCCL 2.27.7 declares, and says so in the version macros, for programs
 *                                   that would use the CUDA device API with a newer header
 *   TUTTI_NCCL_NO_CUDA_HEADERS      does not include CUDA's headers even where they are installed
 *
 * Every function that returns ncclResult_t can return, besides what is said at each of them:
 *   ncclInvalidArgument  an argument is wrong; the communicator stays usable
 *   ncclInvalidUsage     the call is not allowed here, or is not supported
 *   ncclSystemError      the operating system refused something, or memory ran out
 *   ncclRemoteError      another rank died, aborted or disagrees
 *   ncclInternalError    a defect of the library
 * ncclGetLastError has the reason in words. Every function also exists under its profiling name, pnccl...
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>

#if !defined(TUTTI_NCCL_HEADER_LEVEL) || TUTTI_NCCL_HEADER_LEVEL == 22809
#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#elif TUTTI_NCCL_HEADER_LEVEL == 22707
#define NCCL_MAJOR 2
#define NCCL_MINOR 27
#define NCCL_PATCH 7
#define NCCL_VERSION_CODE 22707
#else
#error "TUTTI_NCCL_HEADER_LEVEL can be 22809 (the default) or 22707"
#endif
#define NCCL_SUFFIX ""

/* A version as one number, to compare with NCCL_VERSION_CODE; the scale changed after 2.8. */
#define NCCL_VERSION(X, Y, Z) (((X) < 3 && (Y) < 9 ? 1000 : 10000) * (X) + 100 * (Y) + (Z))

/* cudaStream_t: CUDA's own where its headers are present, else a compatible opaque pointer. */
#if defined(__has_include) && !defined(TUTTI_NCCL_NO_CUDA_HEADERS)
#if __has_include(<cuda_runtime.h>)
#define TUTTI_NCCL_HAS_CUDA_HEADERS 1
#include <cuda_runtime.h>

#include <cuda_fp16.h>
#if CUDART_VERSION >= 11000
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif
#endif
#endif
#if !defined(TUTTI_NCCL_HAS_CUDA_HEADERS) && !defined(__DRIVER_TYPES_H__) && !defined(TUTTI_CUDA_STREAM_DEFINED)
#define TUTTI_CUDA_STREAM_DEFINED 1
typedef struct CUstream_st* cudaStream_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles, constants and enumerations ------------------------------------------------------------------------ */

/* One rank's membership in a group of ranks. The value is checked on use; one that was destroyed is an error. */
typedef struct ncclComm* ncclComm_t;
#define NCCL_COMM_NULL NULL

/* Memory registered on every rank of a communicator. */
typedef struct ncclWindow_vidmem* ncclWindow_t;

/* What the ranks of a new communicator share. Plain bytes, to be copied between processes; treat it as a secret. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7, /* a non-blocking communicator is still at work: ask ncclCommGetAsyncError */
  ncclNumResults = 8
} ncclResult_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6, /* IEEE 754 binary16 */
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,    /* the upper half of a binary32 */
  ncclFloat8e4m3 = 10, /* 4 exponent bits, 3 of mantissa, no infinities (OCP e4m3fn) */
  ncclFloat8e5m2 = 11, /* 5 exponent bits, 2 of mantissa, IEEE-like */
  ncclNumTypes = 12
} ncclDataType_t;

/* Only its size is of interest: ncclRedOp_t's is the same. */
typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;

typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,    /* the sum divided by the number of ranks */
  ncclNumOps = 5, /* from here on: made by ncclRedOpCreate... */
  ncclMaxRedOp = 0x7fffffff >> (8 * (sizeof(int) - sizeof(ncclRedOp_dummy_t)))
} ncclRedOp_t;

/* Where a scalar lies and when it is read. For communicators on host memory both mean: host memory, during the call. */
typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

#define NCCL_SPLIT_NOCOLOR -1

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01

#if NCCL_VERSION_CODE >= 22800
#define NCCL_CTA_POLICY_ZERO 0x02
#define NCCL_REVOKE_DEFAULT 0x00
#endif

/* ---- Configuration of a communicator ---------------------------------------------------------------------------- */

/* Start from NCCL_CONFIG_INITIALIZER and set what should differ. size, magic and version tell the library which fields
 * the program knows; fields newer than `version` are not read. Which fields have an effect: docs/api.md. */
#if NCCL_VERSION_CODE >= 22800
typedef struct ncclConfig_v22800 {
#else
typedef struct ncclConfig_v22700 {
#endif
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;        /* 1 (default): calls return when done; 0: they may return ncclInProgress */
  int cgaClusterSize;  /* 0..8 */
  int minCTAs;         /* at least 1 */
  int maxCTAs;         /* at least minCTAs */
  const char* netName; /* copied */
  int splitShare;      /* 0 or 1 */
  int trafficClass;
  const char* commName; /* for messages; copied */
  int collnetEnable;    /* 0 or 1 */
  int CTAPolicy;        /* NCCL_CTA_POLICY_... */
  int shrinkShare;      /* 0 or 1 */
  int nvlsCTAs;         /* at least 1 */
#if NCCL_VERSION_CODE >= 22800
  int nChannelsPerNetPeer; /* at least 1 */
  int nvlinkCentricSched;  /* 0 or 1 */
#endif
} ncclConfig_t;

#if NCCL_VERSION_CODE >= 22800
#define TUTTI_NCCL_CONFIG_TAIL , NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT
#else
#define TUTTI_NCCL_CONFIG_TAIL
#endif

/* size, magic, version; blocking, cgaClusterSize, minCTAs, maxCTAs; netName; splitShare, trafficClass; commName; the
 * rest. */
#define NCCL_CONFIG_INITIALIZER                                                                        \
  {                                                                                                    \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT TUTTI_NCCL_CONFIG_TAIL                            \
  }

/* What ncclGroupSimulateEnd fills. Start from NCCL_SIM_INFO_INITIALIZER. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

/* ---- Functions -------------------------------------------------------------------------------------------------- */

#if defined(__GNUC__) || defined(__clang__)
#define TUTTI_NCCL_DEPRECATED __attribute__((deprecated))
#else
#define TUTTI_NCCL_DEPRECATED
#endif

/* Declares a function and its profiling twin. */
#define TUTTI_NCCL_FUNCTION(result, name, parameters) \
  result nccl##name parameters;                       \
  result pnccl##name parameters

/* -- Versions and errors -- */

/* *version = 10000 * major + 100 * minor + patch of the NCCL API that the library implements. */
TUTTI_NCCL_FUNCTION(ncclResult_t, GetVersion, (int* version));

/* A few words for a result code. Static; never NULL. */
TUTTI_NCCL_FUNCTION(const char*, GetErrorString, (ncclResult_t result));

/* The reason of the last failure of `comm`, or of any call of this thread for comm NULL; "" if there was none. Valid
 * until this thread's next failing call. */
TUTTI_NCCL_FUNCTION(const char*, GetLastError, (ncclComm_t comm));

/* Does nothing. */
TUTTI_NCCL_DEPRECATED void ncclResetDebugInit(void);
TUTTI_NCCL_DEPRECATED void pncclResetDebugInit(void);

/* -- Making communicators -- */

/* Makes an id for one communicator. The calling process need not become a rank (it may fork the ranks afterwards), but
 * must live until all ranks are initialised. */
TUTTI_NCCL_FUNCTION(ncclResult_t, GetUniqueId, (ncclUniqueId * uniqueId));

/* Joins the communicator of `commId` as `rank` of `nranks`; returns when all ranks have joined. Several ranks in one
 * thread: call it for each between ncclGroupStart and ncclGroupEnd. The caller owns *comm: ncclCommDestroy or
 * ncclCommAbort. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));

/* The same with a configuration (NULL: defaults), which is copied. With blocking 0 it may return ncclInProgress; *comm
 * is valid at once, and usable when ncclCommGetAsyncError says ncclSuccess. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommInitRankConfig,
                    (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config));

/* The same with nId (1 .. nranks) ids, the same on every rank, between which the work of meeting is divided. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommInitRankScalable,
                    (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                     ncclConfig_t* config));

/* Makes all `ndev` ranks of a communicator in this process: comms[ndev]. devlist[ndev] names each rank's device; NULL
 * means 0 .. ndev-1. On host memory the numbers have no effect and may repeat. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommInitAll, (ncclComm_t * comm, int ndev, const int* devlist));

/* Collective. Ranks with the same color form a new communicator, ordered by key, then by rank in `comm`. A color is >=
 * 0; NCCL_SPLIT_NOCOLOR takes part and gets *newcomm = NULL. config NULL: the parent's. Of a parent that does not block:
 * ncclInProgress, as is its state until *newcomm is ready. In a group *newcomm is valid at once, and usable when the group has
 * ended. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommSplit,
                    (ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config));

/* Collective among the ranks that are not listed, in their order; those that are listed do not call it and need not live. Every
 * caller passes the same ranks. NCCL_SHRINK_DEFAULT waits for the caller's own calls on `comm`, and leaves it usable if it was.
 * NCCL_SHRINK_ABORT ends the calls of all ranks first (ncclRemoteError), after which `comm` can only be asked, shrunk, aborted and
 * destroyed. config NULL: the parent's. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommShrink,
                    (ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                     ncclConfig_t* config, int shrinkFlags));

/* -- Ending communicators. NULL is allowed and does nothing. -- */

/* Collective. Completes what was enqueued; afterwards only ncclCommDestroy and the queries are allowed. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommFinalize, (ncclComm_t comm));

/* Finalizes if needed, and frees. The handle is invalid afterwards. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommDestroy, (ncclComm_t comm));

/* Ends pending calls with an error, on this rank and on its peers, and frees. From any thread. The handle is invalid
 * afterwards. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommAbort, (ncclComm_t comm));

#if NCCL_VERSION_CODE >= 22800
/* Ends pending calls of all ranks, and the others' later ones (ncclRemoteError that names this rank), but keeps the communicator, to be
 * asked (ncclSuccess on the ranks that have revoked it), shrunk, aborted or destroyed. Other calls: ncclInvalidUsage here. From any thread. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommRevoke, (ncclComm_t comm, int revokeFlags));
#endif

/* -- Asking communicators -- */

/* *asyncError: ncclSuccess, ncclInProgress, or why the communicator has failed. Never waits. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t* asyncError));
TUTTI_NCCL_FUNCTION(ncclResult_t, CommCount, (const ncclComm_t comm, int* count));
/* The CUDA device; 0 for a communicator on host memory. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int* device));
TUTTI_NCCL_FUNCTION(ncclResult_t, CommUserRank, (const ncclComm_t comm, int* rank));

/* -- Memory -- */

/* `size` bytes that other ranks can reach directly: shared host memory, zero-filled, page-aligned; where the thread's
 * communicators are on GPUs, memory of the current device. Free with ncclMemFree. */
TUTTI_NCCL_FUNCTION(ncclResult_t, MemAlloc, (void** ptr, size_t size));
/* NULL is allowed. Anything else must come from ncclMemAlloc, tuttiMemAlloc or tuttiMemImport. */
TUTTI_NCCL_FUNCTION(ncclResult_t, MemFree, (void* ptr));

/* Announces that `buff` will be used again and again. The caller keeps the memory, and must deregister before freeing
 * it. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommRegister, (const ncclComm_t comm, void* buff, size_t size, void** handle));
TUTTI_NCCL_FUNCTION(ncclResult_t, CommDeregister, (const ncclComm_t comm, void* handle));

/* Collective: the same for memory that every rank registers. `buff` is aligned to NCCL_WIN_REQUIRED_ALIGNMENT. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommWindowRegister,
                    (ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags));
/* NULL is allowed. */
TUTTI_NCCL_FUNCTION(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));

/* -- Reduction operations -- */

/* *op = the sum of every rank's input times that rank's scalar. It belongs to `comm`, and works for `datatype` only.
 * The scalar, one element of `datatype`, is read during the call; on the device (ncclScalarDevice) by each call that uses
 * *op, when it runs. */
TUTTI_NCCL_FUNCTION(ncclResult_t, RedOpCreatePreMulSum,
                    (ncclRedOp_t * op, void* scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
                     ncclComm_t comm));
/* Calls made before are not affected. */
TUTTI_NCCL_FUNCTION(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* -- Collectives --
 * Counts are elements of `datatype`; n is the number of ranks. Every rank of `comm` calls with the same count,
 * datatype, op and root. Send and receive buffers must not overlap, except exactly in the in-place position named.
 * With count 0 buffers may be
 * NULL. On host memory `stream` is a host stream (tutti/tutti.h), and the call returns at once; or NULL, and it
 * returns when this rank's part is done. Inside a group it runs at the group's end. */

/* recvbuff[count] = the reduction of all ranks' sendbuff[count]. In place: sendbuff == recvbuff. */
TUTTI_NCCL_FUNCTION(ncclResult_t, AllReduce,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                     ncclComm_t comm, cudaStream_t stream));

/* The same, for rank `root` alone; recvbuff is not used elsewhere. In place: sendbuff == recvbuff. */
TUTTI_NCCL_FUNCTION(ncclResult_t, Reduce,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                     int root, ncclComm_t comm, cudaStream_t stream));

/* recvbuff[count] = root's sendbuff[count]; sendbuff is not used elsewhere. In place: sendbuff == recvbuff. */
TUTTI_NCCL_FUNCTION(ncclResult_t, Broadcast,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                     ncclComm_t comm, cudaStream_t stream));

/* Broadcast in place. */
TUTTI_NCCL_FUNCTION(ncclResult_t, Bcast,
                    (void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                     cudaStream_t stream));

/* recvbuff[recvcount] = block `rank` of the reduction of all ranks' sendbuff[n * recvcount]. In place: recvbuff is
 * block `rank` of sendbuff. */
TUTTI_NCCL_FUNCTION(ncclResult_t, ReduceScatter,
                    (const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                     ncclComm_t comm, cudaStream_t stream));

/* Block r of recvbuff[n * sendcount] = rank r's sendbuff[sendcount]. In place: sendbuff is block `rank` of recvbuff. */
TUTTI_NCCL_FUNCTION(ncclResult_t, AllGather,
                    (const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                     cudaStream_t stream));

#if NCCL_VERSION_CODE >= 22800
/* Block r of recvbuff[n * count] = block `rank` of rank r's sendbuff[n * count]. In place: recvbuff == sendbuff
 * (an extension: NCCL defines none). */
TUTTI_NCCL_FUNCTION(ncclResult_t, AlltoAll,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                     cudaStream_t stream));

/* At root, block r of recvbuff[n * count] = rank r's sendbuff[count]. In place at root: sendbuff is block `root` of
 * recvbuff. */
TUTTI_NCCL_FUNCTION(ncclResult_t, Gather,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                     ncclComm_t comm, cudaStream_t stream));

/* recvbuff[count] = block `rank` of root's sendbuff[n * count]. In place at root: recvbuff is block `root` of
 * sendbuff. */
TUTTI_NCCL_FUNCTION(ncclResult_t, Scatter,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                     ncclComm_t comm, cudaStream_t stream));
#endif

/* -- Point to point. Matched in order per pair of ranks; count and datatype must agree. Sends and receives that need
 * each other go into one group. -- */
TUTTI_NCCL_FUNCTION(ncclResult_t, Send,
                    (const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                     cudaStream_t stream));
TUTTI_NCCL_FUNCTION(ncclResult_t, Recv,
                    (void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                     cudaStream_t stream));

/* -- Groups. Calls of this thread between start and the matching end are issued together, at the outermost end. -- */
TUTTI_NCCL_FUNCTION(ncclResult_t, GroupStart, (void));
/* Returns the first error of a call inside the group; then nothing of the group runs. */
TUTTI_NCCL_FUNCTION(ncclResult_t, GroupEnd, (void));
/* Ends the group without running it, and fills *simInfo with the time it would take. */
TUTTI_NCCL_FUNCTION(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * simInfo));

#ifdef __cplusplus
}
#endif

#endif
