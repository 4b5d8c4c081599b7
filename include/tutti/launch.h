/* tutti/launch.h: which rank am I, and how do the ranks of one job get one ncclUniqueId?
 *
 * Three ways to start ranks, one way to use them:
 *
 *   tuttiLaunchInfo_t me;               started by mpirun, srun or torchrun: each process asks who it is,
 *   ncclUniqueId id;
 *   tuttiLaunchDetect(&me);
 *   tuttiLaunchUniqueId(&me, &id);      and all get rank 0's id,
 *   ncclCommInitRank(&comm, me.size, id, me.rank);
 *
 *   tuttiLaunchLocal(4, body, context, &outcome);   or the program forks its ranks itself.
 *
 * No MPI library is used but by tuttiLaunchInitMpi. Every function returns ncclSuccess or an error whose text is in ncclGetLastError(NULL).
 */
#ifndef TUTTI_LAUNCH_H
#define TUTTI_LAUNCH_H

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Valid names of the launcher field. All are static strings. */
#define TUTTI_LAUNCHER_MPIRUN "mpirun"     /* Open MPI, MPICH or another that speaks PMI */
#define TUTTI_LAUNCHER_SRUN "srun"         /* a Slurm job step */
#define TUTTI_LAUNCHER_TORCHRUN "torchrun" /* RANK, WORLD_SIZE and the rest */
#define TUTTI_LAUNCHER_LOCAL "local"       /* a child of tuttiLaunchLocal */
#define TUTTI_LAUNCHER_NONE "none"         /* no launcher's variables: rank 0 of 1 */

#define TUTTI_LAUNCH_JOB_BYTES 192

typedef struct tuttiLaunchInfo {
  int rank;                         /* 0 .. size-1 */
  int size;                         /* ranks in the job */
  int local_rank;                   /* among the ranks on this host; -1 where the launcher does not tell */
  int local_size;                   /* ranks on this host; 0 where the launcher does not tell */
  const char* launcher;             /* one of the names above */
  char job[TUTTI_LAUNCH_JOB_BYTES]; /* what tells this job, and this restart of it, from all others; "" for none */
} tuttiLaunchInfo_t;

/* Reads rank and size from the launcher's variables, in this order (the innermost launcher first):
 *   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; the job is TORCHELASTIC_RUN_ID, MASTER_ADDR, MASTER_PORT
 *              and TORCHELASTIC_RESTART_COUNT. RANK and WORLD_SIZE alone will do beside TUTTI_RENDEZVOUS or NCCL_COMM_ID, and are an error without.
 *   mpirun     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; the job is PMIX_NAMESPACE or Open MPI's job id.
 *              PMI_RANK, PMI_SIZE (MPICH); the job is PMIX_NAMESPACE, PMI_JOBID, PMI_PORT or the parent process.
 *              PMI_ID beside PMI_PORT (mpiexec.hydra -pmi-port), which tells no number of ranks: WORLD_SIZE has to be set
 *   srun       SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE; the job is SLURM_JOB_ID,
 *              SLURM_STEP_ID and SLURM_RESTART_COUNT. A batch script itself is no rank.
 * Without any of them: rank 0 of 1, launcher "none", ncclSuccess.
 * ncclInvalidUsage: variables of a launcher are there but make no sense (named in the message).
 * ncclInvalidArgument: NULL. */
ncclResult_t tuttiLaunchDetect(tuttiLaunchInfo_t* info);

/* Rank 0 makes a unique id, the others get it. Called once by every rank per id, in the same order on all; the n-th
 * call of one rank meets the n-th call of the others. Returns when this rank has the id (rank 0: when all ranks have
 * it). Rank 0's process must live until the communicator is initialised.
 *
 * Ranks of one host meet at a Unix socket whose name comes from the user's number, info->job and the number of the call. It is
 * not bound to MASTER_PORT, which torchrun's agent may own. TUTTI_RENDEZVOUS=file:/path names a path for the socket
 * instead (for jobs whose launcher gives no identity of its own, or ranks in different network namespaces). Only
 * processes of the same user are let in, and only those of the same job, size and call number.
 *
 * Ranks on several hosts do not meet: each makes the same id of an address that all know, where rank 0 will listen. It is
 * TUTTI_RENDEZVOUS=tcp:host:port, or NCCL_COMM_ID=host:port, or, where the launcher says that not all ranks are on this host (or torchrun's
 * variables do not say, and MASTER_ADDR is not each host's own, as localhost is), MASTER_ADDR and the port after MASTER_PORT, or the first
 * node of srun's SLURM_STEP_NODELIST and a port from 20000 to 29999 that follows from the step's number; the n-th call's id has the n-th port
 * from there on. TUTTI_SECRET is the key (docs/hosts.md).
 *
 * ncclInvalidArgument: NULL, or rank or size out of range.
 * ncclInvalidUsage: ranks on several hosts without such an address, a bad TUTTI_RENDEZVOUS, or rank 0 refuses this rank (wrong job or size).
 * ncclSystemError: a system call failed.
 * ncclRemoteError: TUTTI_RENDEZVOUS_TIMEOUT_S (default 120) passed; the message lists the ranks that did not come, or
 * says what this rank waited for. */
ncclResult_t tuttiLaunchUniqueId(const tuttiLaunchInfo_t* info, ncclUniqueId* id);

/* For programs that want MPI to carry bytes between hosts (docs/hosts.md) and are linked with none, as tutti-perf --net mpi is: loads
 * the MPI of the mpirun or srun that started this process and calls MPI_Init_thread(MPI_THREAD_MULTIPLE). Called by every rank of
 * the job, before anything else of the library but tuttiLaunchDetect; does nothing the second time. tuttiLaunchUniqueId then gets
 * the id by MPI, and needs no place to meet. Programs that use MPI themselves call MPI_Init_thread and none of this.
 *
 * ncclInvalidUsage: started by no MPI's launcher, MPI is initialised already, or it has no MPI_THREAD_MULTIPLE.
 * ncclSystemError: there is no plug-in for that MPI (libtutti-openmpi.so, libtutti-mpich.so), or MPI_Init_thread failed. */
ncclResult_t tuttiLaunchInitMpi(void);

/* *wants: 1 where such a program should call tuttiLaunchInitMpi without being told to, as tutti-perf and tutti-train do, else 0. That is where
 * mpirun has put the ranks on several hosts and TUTTI_NET is "mpi", or is not "tcp" and the mpirun is Open MPI's and none of the variables is
 * set that say where ranks would meet by TCP (tuttiLaunchUniqueId), which would be an error. Called before tuttiLaunchInitMpi; the same on all ranks.
 * ncclInvalidArgument: NULL, or info was not filled in by tuttiLaunchDetect or tuttiLaunchLocal. */
ncclResult_t tuttiLaunchWantsMpi(const tuttiLaunchInfo_t* info, int* wants);

/* Ends what tuttiLaunchInitMpi began, by MPI_Finalize, which waits for all ranks of the job; nothing where it was not called. All
 * communicators are destroyed by then.
 * ncclSystemError: MPI_Finalize failed, or a rank has died and it was left out: it would wait for ever. */
ncclResult_t tuttiLaunchFinalizeMpi(void);

/* One rank's whole life. The return value becomes the process's exit code (its low 8 bits); an exception is printed, and the code is 1. */
typedef int (*tuttiLaunchBody_t)(const tuttiLaunchInfo_t* info, const ncclUniqueId* id, void* context);

typedef struct tuttiLaunchOutcome {
  int exit_code;   /* 0, or the first failure's: the rank's exit code, 128 + signal for a rank that a signal ended,
                      255 for one that other code of this process has waited for */
  int failed_rank; /* the rank that failed first; -1 where none did */
  int signal;      /* the signal that ended it; 0 where it exited */
} tuttiLaunchOutcome_t;

/* Makes a unique id, forks `ranks` (1 to 1024) children, each of which runs body(info, id, context) and ends, and waits
 * for them all. The calling process is no rank; call it before starting threads, and before any communicator exists.
 *
 * Children see `context` as it was at the fork; what they change stays with them. When one fails, the others have 3
 * seconds to end by themselves (the library tells them that a rank is gone), then get SIGTERM, then SIGKILL. SIGINT,
 * SIGTERM and SIGHUP that reach the caller while it waits are passed on. Children die with the caller. Where SIGCHLD is
 * ignored it is not until they have ended.
 *
 * ncclSuccess: all ranks have ended, *outcome says how (outcome may not be NULL).
 * Otherwise no rank is left running: ncclInvalidArgument, ncclSystemError (fork), or ncclGetUniqueId's error. */
ncclResult_t tuttiLaunchLocal(int ranks, tuttiLaunchBody_t body, void* context, tuttiLaunchOutcome_t* outcome);

#ifdef __cplusplus
}
#endif
#endif
