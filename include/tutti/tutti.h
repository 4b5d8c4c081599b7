/* tutti/tutti.h: what Tutti offers beyond NCCL's API: communicators on host memory, their streams, events and shared
 * memory, and the plan behind a call. Link with libtutti.so (-ltutti).
 *
 *   ncclComm_t comm;                       // id from ncclGetUniqueId, rank and size from anywhere (tutti/launch.h)
 *   cudaStream_t stream;
 *   tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
 *   config.reproducible = 1;
 *   tuttiCommInitRank(&comm, size, id, rank, &config);
 *   tuttiStreamCreate(&stream);
 *   ncclAllReduce(gradient, gradient, count, ncclFloat, ncclAvg, comm, stream);
 *   tuttiStreamSynchronize(stream);
 *
 * Every function returns ncclSuccess or an error whose text is in ncclGetLastError(NULL). Besides what is said at each
 * of them: ncclInvalidArgument for a NULL pointer or a handle that is not (or no longer) one, ncclSystemError where the
 * operating system refuses or memory runs out, ncclInternalError for a defect of the library. All functions may be
 * called from any thread.
 */
#ifndef TUTTI_TUTTI_H
#define TUTTI_TUTTI_H

#include <stdint.h>

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

/* "Tutti 0.1.0 (NCCL API 2.28.9)". Static. */
const char* tuttiGetVersionString(void);

/* ---- Host streams ---------------------------------------------------------------------------------------------------
 * A stream runs what is given to it in order, on a thread of its own. It goes where nccl calls take a cudaStream_t, for
 * communicators on host memory. Buffers must stay valid, and untouched by others, until the work on them is done. */

/* Makes a stream. The caller owns it. ncclSystemError: no thread could be started. */
ncclResult_t tuttiStreamCreate(cudaStream_t* stream);

/* Waits until everything given to the stream so far is done, or has failed: ncclCommGetAsyncError tells for each
 * communicator.
 * ncclInvalidUsage: called by work that runs on this stream. */
ncclResult_t tuttiStreamSynchronize(cudaStream_t stream);

/* ncclSuccess: everything given to the stream so far is done. ncclInProgress: not yet. Never waits. */
ncclResult_t tuttiStreamQuery(cudaStream_t stream);

/* Waits as tuttiStreamSynchronize does, then frees the stream. The handle is invalid afterwards.
 * ncclInvalidUsage: called by work that runs on this stream; it stays. */
ncclResult_t tuttiStreamDestroy(cudaStream_t stream);

/* ---- Events: points in a stream --------------------------------------------------------------------------------- */

typedef struct tuttiEvent* tuttiEvent_t;

/* Makes an event that is complete. The caller owns it. */
ncclResult_t tuttiEventCreate(tuttiEvent_t* event);

/* The event completes when the stream has done everything given to it so far. Recording again moves the event. */
ncclResult_t tuttiEventRecord(tuttiEvent_t event, cudaStream_t stream);

/* Waits for the event's last record; returns at once if there is none. */
ncclResult_t tuttiEventSynchronize(tuttiEvent_t event);

/* ncclSuccess: the last record is complete, or there is none. ncclInProgress: not yet. Never waits. */
ncclResult_t tuttiEventQuery(tuttiEvent_t event);

/* Frees the event; streams that wait for its last record still do. The handle is invalid afterwards. */
ncclResult_t tuttiEventDestroy(tuttiEvent_t event);

/* What is given to `stream` from now on waits for the event's last record. The caller does not wait. */
ncclResult_t tuttiStreamWaitEvent(cudaStream_t stream, tuttiEvent_t event);

/* ---- Shared host memory ---------------------------------------------------------------------------------------------
 * Memory that ranks in other processes can map, so that collectives read and write it in place. */

/* *ptr = `bytes` bytes, zero-filled and page-aligned (0 bytes give a valid pointer too). If fd is not NULL, *fd = a
 * descriptor of the memory, to pass to other processes (fork, SCM_RIGHTS); the caller owns it and may close it at
 * once. Free with tuttiMemFree or ncclMemFree. */
ncclResult_t tuttiMemAlloc(void** ptr, size_t bytes, int* fd);

/* Maps memory made by tuttiMemAlloc in another process, or in this one: *ptr, and, if bytes is not NULL, its size
 * rounded up to pages. The caller keeps fd, and may close it. Free with tuttiMemFree.
 * ncclInvalidArgument: fd is not a descriptor of such memory. */
ncclResult_t tuttiMemImport(int fd, void** ptr, size_t* bytes);

/* Unmaps; the memory is gone when the last process has unmapped it and closed its descriptors. NULL is allowed.
 * ncclInvalidArgument: ptr is not the start of an allocation or import. */
ncclResult_t tuttiMemFree(void* ptr);

/* ---- Communicators ---------------------------------------------------------------------------------------------- */

typedef enum {
  tuttiDeviceAuto = 0, /* TUTTI_DEVICE of the environment, else whatever is usable */
  tuttiDeviceHost = 1, /* host memory, on processor cores */
  tuttiDeviceCuda = 2  /* GPU memory */
} tuttiDevice_t;

/* Which memory the communicators that this thread makes from now on work on (ncclCommInit..., tuttiCommInitRank).
 * ncclInvalidUsage: tuttiDeviceCuda where no CUDA device can be used. ncclInvalidArgument: not one of the three. */
ncclResult_t tuttiSetDevice(tuttiDevice_t device);

/* Start from TUTTI_CONFIG_INITIALIZER. Fields that a later version adds come at the end; `size` tells which are there.
 * */
typedef struct tuttiConfig {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;     /* 1: calls return when done; 0: they may return ncclInProgress */
  int reproducible; /* 1: sums are added in rank order, the same bits for every size and machine; 0: in any order */
  const char* name; /* for messages; copied. NULL: none */
  int wideWire;     /* 1: partial sums of 16- and 8-bit floats travel as float32, so that a sum is rounded once, at its
                     * end; 0: in the data type, rounded at every hop of a ring or tree */
} tuttiConfig_t;

#define TUTTI_CONFIG_MAGIC 0x74757474u
#define TUTTI_CONFIG_INITIALIZER                                                                 \
  {                                                                                              \
    sizeof(tuttiConfig_t), TUTTI_CONFIG_MAGIC, 1u, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT                                             \
  }

/* ncclCommInitRankConfig with Tutti's configuration (NULL: defaults). Unset fields follow TUTTI_REPRODUCIBLE,
 * TUTTI_WIRE, NCCL_COMM_BLOCKING and the defaults. Returns what ncclCommInitRankConfig returns. */
ncclResult_t tuttiCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                               const tuttiConfig_t* config);

/* ---- Plans ------------------------------------------------------------------------------------------------------ */

typedef enum {
  tuttiAllReduce = 0,
  tuttiReduce = 1,
  tuttiBroadcast = 2,
  tuttiReduceScatter = 3,
  tuttiAllGather = 4,
  tuttiAlltoAll = 5,
  tuttiGather = 6,
  tuttiScatter = 7,
  tuttiSend = 8,
  tuttiRecv = 9
} tuttiCollective_t;

/* The plan that the library would run for a call on `comm`: in words, then the schedule as text. Nothing is sent; any
 * rank may ask.
 *
 * count, datatype, op and root are those of the nccl function (op: for reductions only; root: the root, or the peer of
 * send and receive; elsewhere they are ignored). The text goes to text[size], cut to fit and always ended by a zero
 * byte; text may be NULL if
 * size is 0. *needed (if not NULL) is the size that holds all of it, the zero byte included.
 * ncclInvalidArgument: as the nccl function. */
ncclResult_t tuttiExplain(ncclComm_t comm, tuttiCollective_t collective, size_t count, ncclDataType_t datatype,
                          ncclRedOp_t op, int root, char* text, size_t size, size_t* needed);

/* What would run for such calls on `comm`, from which size on, up to 1 GiB: a line for each change, with what is expected of it
 * and why it was chosen. Arguments and text as in tuttiExplain, and errors. */
ncclResult_t tuttiCommPlan(ncclComm_t comm, tuttiCollective_t collective, ncclDataType_t datatype, ncclRedOp_t op,
                           int root, char* text, size_t size, size_t* needed);

/* How good the plan of a call can be: the bounds that the machine sets (memory: every input read and every output written
 * once; links between NUMA nodes, where the ranks sit on several; over hosts all links, with the cut that binds, the same text on
 * every rank), the time that is expected of what would run, and
 * why it was chosen. The memory's rate comes from the machine graph or, where that has none, is measured (on one host) by the first
 * rank that asks: some tens of milliseconds on as many threads as it may use processors (16 at most).
 * Arguments and text as in tuttiExplain, and errors. Without the plug-in of tuttiCommTopology only memory bounds. */
ncclResult_t tuttiCommCertificate(ncclComm_t comm, tuttiCollective_t collective, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, int root, char* text, size_t size, size_t* needed);

/* ---- The machine ------------------------------------------------------------------------------------------------ */

/* The machine graph that the ranks of `comm` see together, in the text form of docs/topology.md, which tutti-topo reads,
 * and a comment line for each rank that says where it sits. The same on every rank. Any rank may ask; the first one looks
 * at the machine, once for all ranks of its host (tens of milliseconds, more where drivers of GPUs have to wake up); over hosts one
 * rank of each has looked when the communicator was made. What is not known of a host, and why, is in the graph's warnings.
 *
 * The text goes to text[size], cut to fit and always ended by a zero byte; text may be NULL if size is 0. *needed (if not
 * NULL) is the size that holds all of it, the zero byte included.
 * ncclSystemError: libtutti-topology.so is not beside libtutti.so or does not load (the message has the reason), or the machine
 * cannot be looked at. ncclRemoteError: the rank that looks at it for all has not come to an end.
 * ncclInvalidUsage: the communicator is not initialised yet. */
ncclResult_t tuttiCommTopology(ncclComm_t comm, char* text, size_t size, size_t* needed);

/* ---- Schedules and tunings of your own ----------------------------------------------------------------------------- */

/* In which calls a schedule is right; one bit each. */
typedef enum {
  tuttiScheduleOutOfPlace = 1,       /* out of place, data through slots */
  tuttiScheduleOutOfPlaceDirect = 2, /* out of place, pull and push in the peers' buffers */
  tuttiScheduleInPlace = 4,
  tuttiScheduleInPlaceDirect = 8
} tuttiScheduleForm_t;

/* Sets a schedule, in the text form of docs/schedule.md, in place of the planner's choice: collective calls on `comm` that it
 * fits (the same collective and number of ranks, for rooted ones the same root) run it from now on, whatever NCCL_ALGO
 * says. text NULL: the planner's choice again. A later schedule replaces this one; communicators split from `comm` do not
 * inherit it.
 *
 * Before anything runs the schedule is proved right: with the communicator's slots, out of place and in place, through
 * slots and direct; in rank order on a reproducible communicator. *forms (if not NULL) gets the forms of
 * tuttiScheduleForm_t in which it is right. Calls use a direct form only where it is; one that some ranks make in place and
 * others out of place goes through slots, and the schedule has to be right there both ways; a call for which no form is
 * left fails with ncclInvalidUsage before anything moves.
 *
 * Local, and every rank must set the same: calls of ranks that have set different ones fail with ncclInvalidUsage, which
 * names them. No call of `comm` may be under way.
 * ncclInvalidArgument: not a schedule; the message has the line, what was found and what was expected.
 * ncclInvalidUsage: right in no form (the message says which rank, lane and step does what wrong), for another number of
 * ranks, for send or recv, of more than 32 lanes (two among more than 64 ranks); or a group is open or a call under way. What was
 * set before stays. */
ncclResult_t tuttiCommSetSchedule(ncclComm_t comm, const char* text, int* forms);

/* Sets measured crossovers, in the text form of docs/tuning.md: the algorithm that runs from a size on, in place of the one that
 * the cost model takes for the cheapest. NCCL_ALGO, reproducible sums, a float32 wire, TUTTI_SINGLE_COPY_MIN_BYTES and
 * schedules that are set win over it. text NULL or "": again those of TUTTI_TUNING_FILE, which communicators start with. A
 * later text replaces this one; communicators split from `comm` do not inherit it.
 *
 * Local, and every rank must set the same: calls of ranks that have set different ones fail with ncclInvalidUsage, which
 * names them. No call of `comm` may be under way.
 * ncclInvalidArgument: not such a text, or longer than 16 KiB; the message has the line, what was found and what was expected.
 * ncclInvalidUsage: a group is open or a call under way. What was set before stays. */
ncclResult_t tuttiCommSetTuning(ncclComm_t comm, const char* text);

/* *bytes gets how many bytes this rank has sent to other ranks by a network so far, headers of the library's own included:
 * since the communicator was made, its making excluded. 0 where all ranks are on one host. To be asked by a thread that makes the
 * communicator's calls, between two of them.
 * ncclInvalidArgument: NULL. ncclInvalidUsage: still initialising. */
ncclResult_t tuttiCommWireBytes(ncclComm_t comm, uint64_t* bytes);

/* *name gets what carries bytes between this communicator's ranks: "mpi", "tcp", or "local" where all are on one host; a static
 * string. TUTTI_NET chooses between the first two (docs/hosts.md).
 * ncclInvalidArgument: NULL. ncclInvalidUsage: still initialising. */
ncclResult_t tuttiCommTransport(ncclComm_t comm, const char** name);

/* What could run for a call on `comm`: one line for each candidate, which is the tuning rule that makes it run for calls of
 * such a size; the line of the one that would run now comes first. Empty where there is no choice: with one rank, with count 0, and for
 * calls so small that their data travels in the lines that open them. Nothing is sent; the answer is for buffers that are on
 * every rank what sendbuff and recvbuff are here (only whether memory is shared, and whether both are one, matters).
 *
 * Arguments and text as in tuttiExplain, and errors; ncclInvalidUsage too where a schedule is set for such calls. */
ncclResult_t tuttiCandidateRules(ncclComm_t comm, tuttiCollective_t collective, const void* sendbuff, void* recvbuff,
                                 size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root, char* text,
                                 size_t size, size_t* needed);

/* ---- Diagnosis -------------------------------------------------------------------------------------------------- */

/* Where every rank of `comm` is, for whoever wonders why nothing moves: a line per rank with its last collective call ("rank 2: call
 * #16, all_reduce count 100 float32 sum; 1 behind; its process has ended"), a line for each send or receive that waits for the other,
 * and the failure if there is one. Never waits and takes part in nothing: any thread may ask while calls hang. A rank may be through
 * with the call that it is shown in. A call that waits for 10 s, and then again whenever it has waited for twice as long, logs the same
 * (NCCL_DEBUG=WARN).
 *
 * The text goes to text[size], cut to fit and always ended by a zero byte; text may be NULL if size is 0. *needed (if not NULL) is
 * the size that holds all of it, the zero byte included.
 * ncclInvalidArgument: text is NULL and size is not 0. ncclInvalidUsage: `comm` is not initialised yet. */
ncclResult_t tuttiCommReport(ncclComm_t comm, char* text, size_t size, size_t* needed);

#ifdef __cplusplus
}
#endif

#endif
