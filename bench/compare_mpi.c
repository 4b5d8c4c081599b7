/* bench/compare's worker for an MPI library: built once by Open MPI's mpicc and once by MPICH's. */
#include "compare_worker.h"

#include <mpi.h>

static void must(const Rank* rank, int result) {
  if (__builtin_expect(result != MPI_SUCCESS, 0)) worker_fail(rank, "MPI returned %d", result);
}

static void open_rank(Rank* rank) {
  must(rank, MPI_Init(NULL, NULL));
  must(rank, MPI_Comm_rank(MPI_COMM_WORLD, &rank->rank));
  must(rank, MPI_Comm_size(MPI_COMM_WORLD, &rank->ranks));
}

static void close_rank(Rank* rank) { must(rank, MPI_Finalize()); }

static MPI_Datatype type_of(const Cell* cell) {
  switch (cell->type) {
    case kFloat: return MPI_FLOAT;
    case kDouble: return MPI_DOUBLE;
    case kInt32: return MPI_INT32_T;
    default: return MPI_DATATYPE_NULL;
  }
}

static void begin(Cell* cell) {
  if (type_of(cell) == MPI_DATATYPE_NULL) worker_fail(cell->rank, "MPI has no such data type");
  /* In place, MPI reads the whole buffer and leaves a rank's part at its start. */
  if (cell->collective == kReduceScatter && cell->in_place) cell->receive = cell->send;
}

static void call(Cell* cell) {
  const MPI_Datatype type = type_of(cell);
  const MPI_Comm comm = MPI_COMM_WORLD;
  const int ranks = cell->rank->ranks, me = cell->rank->rank;
  const int count = (int)cell->count, part = (int)cell->part;
  const void* send = cell->in_place ? MPI_IN_PLACE : cell->send;
  int result;
  switch (cell->collective) {
    case kAllReduce: result = MPI_Allreduce(send, cell->receive, count, type, MPI_SUM, comm); break;
    case kAllGather: result = MPI_Allgather(send, part, type, cell->receive, part, type, comm); break;
    case kReduceScatter: result = MPI_Reduce_scatter_block(send, cell->receive, part, type, MPI_SUM, comm); break;
    case kBroadcast: result = MPI_Bcast(cell->receive, count, type, 0, comm); break;
    case kReduce:
      result = MPI_Reduce(cell->in_place && me != 0 ? cell->send : send, cell->receive, count, type, MPI_SUM, 0, comm);
      break;
    case kAllToAll: result = MPI_Alltoall(cell->send, part, type, cell->receive, part, type, comm); break;
    default:
      result = MPI_Sendrecv(cell->send, count, type, (me + 1) % ranks, 0, cell->receive, count, type,
                            (me + ranks - 1) % ranks, 0, comm, MPI_STATUS_IGNORE);
  }
  must(cell->rank, result);
}

int main(int argc, char** argv) {
  static const Peer peer = {.launched = 1, .open = open_rank, .begin = begin, .call = call, .close = close_rank};
  return worker_main(argc, argv, &peer);
}
