/* Compiles where an MPI's compiler has its headers; never linked. */
#include <mpi.h>

int has_mpi(void);
int has_mpi(void) { return MPI_VERSION; }
