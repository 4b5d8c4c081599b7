/* The worker of bench/compare and bench/hosts for Tutti: a client of nccl.h. With BY_MPI its ranks are mpirun's, and MPI carries their data
 * between hosts. */
#include "compare_worker.h"

#include <nccl.h>
#ifdef BY_MPI
#include <tutti/launch.h>
#endif
#include <string.h>

typedef struct Connection {
  ncclComm_t comm;
} Connection;

static Connection connections[kRanksMax]; /* ranks may be threads */

static void must(const Cell* cell, ncclResult_t result) {
  if (__builtin_expect(result != ncclSuccess, 0))
    worker_fail(cell->rank, "%s", ncclGetLastError(((Connection*)cell->rank->context)->comm));
}

#ifdef BY_MPI
/* Who this rank is, and the id. */
static ncclResult_t meet(Rank* rank, ncclUniqueId* id) {
  tuttiLaunchInfo_t me;
  ncclResult_t result = tuttiLaunchDetect(&me);
  if (result != ncclSuccess) return result;
  rank->rank = me.rank;
  rank->ranks = me.size;
  result = tuttiLaunchInitMpi();
  return result == ncclSuccess ? tuttiLaunchUniqueId(&me, id) : result;
}
#else
static ncclResult_t meet(Rank* rank, ncclUniqueId* id) {
  const ncclResult_t result = rank->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
  if (result == ncclSuccess) worker_share(rank, id, sizeof *id);
  return result;
}
#endif

static void open_rank(Rank* rank) {
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  if (meet(rank, &id) != ncclSuccess) worker_fail(rank, "%s", ncclGetLastError(NULL));
  Connection* mine = &connections[rank->rank];
  rank->context = mine;
  if (ncclCommInitRank(&mine->comm, rank->ranks, id, rank->rank) != ncclSuccess)
    worker_fail(rank, "%s", ncclGetLastError(NULL));
}

static void close_rank(Rank* rank) {
  ncclCommDestroy(((Connection*)rank->context)->comm);
#ifdef BY_MPI
  tuttiLaunchFinalizeMpi();
#endif
}

static ncclDataType_t type_of(const Cell* cell) {
  static const ncclDataType_t types[] = {ncclFloat, ncclDouble, ncclInt32, ncclHalf, ncclBfloat16};
  return types[cell->type];
}

static void call(Cell* cell) {
  const ncclComm_t comm = ((Connection*)cell->rank->context)->comm;
  const ncclDataType_t type = type_of(cell);
  const int ranks = cell->rank->ranks, me = cell->rank->rank;
  switch (cell->collective) {
    case kAllReduce:
      must(cell, ncclAllReduce(cell->send, cell->receive, cell->count, type, ncclSum, comm, NULL));
      break;
    case kAllGather: must(cell, ncclAllGather(cell->send, cell->receive, cell->part, type, comm, NULL)); break;
    case kReduceScatter:
      must(cell, ncclReduceScatter(cell->send, cell->receive, cell->part, type, ncclSum, comm, NULL));
      break;
    case kBroadcast: must(cell, ncclBroadcast(cell->send, cell->receive, cell->count, type, 0, comm, NULL)); break;
    case kReduce: must(cell, ncclReduce(cell->send, cell->receive, cell->count, type, ncclSum, 0, comm, NULL)); break;
    case kAllToAll: must(cell, ncclAlltoAll(cell->send, cell->receive, cell->part, type, comm, NULL)); break;
    default:
      must(cell, ncclGroupStart());
      must(cell, ncclSend(cell->send, cell->count, type, (me + 1) % ranks, comm, NULL));
      must(cell, ncclRecv(cell->receive, cell->count, type, (me + ranks - 1) % ranks, comm, NULL));
      must(cell, ncclGroupEnd());
  }
}

/* ---- Registered buffers, which ranks share ---- */

typedef struct Registration {
  void *send, *receive;
} Registration;

static Registration registrations[kRanksMax];

static void allocate(Cell* cell, size_t send_bytes, size_t receive_bytes) {
  const ncclComm_t comm = ((Connection*)cell->rank->context)->comm;
  Registration* mine = &registrations[cell->rank->rank];
  must(cell, ncclMemAlloc((void**)&cell->receive, receive_bytes));
  must(cell, ncclCommRegister(comm, cell->receive, receive_bytes, &mine->receive));
  if (cell->in_place) return;
  must(cell, ncclMemAlloc((void**)&cell->send, send_bytes));
  must(cell, ncclCommRegister(comm, cell->send, send_bytes, &mine->send));
}

static void release(Cell* cell) {
  const ncclComm_t comm = ((Connection*)cell->rank->context)->comm;
  Registration* mine = &registrations[cell->rank->rank];
  must(cell, ncclCommDeregister(comm, mine->receive));
  must(cell, ncclMemFree(cell->receive));
  if (cell->in_place) return;
  must(cell, ncclCommDeregister(comm, mine->send));
  must(cell, ncclMemFree(cell->send));
}

int main(int argc, char** argv) {
  static const Peer peer = {
#ifdef BY_MPI
      .launched = 1,
#endif
      .open = open_rank,
      .call = call,
      .allocate = allocate,
      .release = release,
      .close = close_rank};
  return worker_main(argc, argv, &peer);
}
