// What the plug-in calls, counted: the program's symbols go before the library's. For one file of a program.
#pragma once

#include <mpi.h>

#include <unistd.h>

#include <atomic>

static std::atomic<long> mpi_calls{0};
/// Who initialises MPI and ends it is the program, and nobody else.
static std::atomic<int> mpi_begun{0};
static std::atomic<int> mpi_ended{0};

/// Sends come upon a connection whose other end is gone, as Open MPI's may where a rank has died.
static std::atomic<bool> pipes_break{false};
static std::atomic<int> broken_pipes{0};

/// Before MPI_Comm_create_group, which is an error if this returns one.
static int (*creation)() = nullptr;

static void write_to_nobody() {
  int ends[2];
  if (pipe(ends) != 0) return;
  close(ends[0]);
  broken_pipes += write(ends[1], "x", 1) < 0;
  close(ends[1]);
}

#pragma GCC visibility push(default)  // for the plug-in to find them
extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  ++mpi_calls;
  if (pipes_break) write_to_nobody();
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  ++mpi_calls;
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  ++mpi_calls;
  return PMPI_Test(request, done, status);
}
int MPI_Testsome(int count, MPI_Request* requests, int* done_count, int* done, MPI_Status* statuses) {
  ++mpi_calls;
  return PMPI_Testsome(count, requests, done_count, done, statuses);
}
int MPI_Cancel(MPI_Request* request) {
  ++mpi_calls;
  return PMPI_Cancel(request);
}
int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  ++mpi_calls;
  return PMPI_Wait(request, status);
}
int MPI_Init(int* argc, char*** argv) {
  ++mpi_begun;
  return PMPI_Init(argc, argv);
}
int MPI_Init_thread(int* argc, char*** argv, int wanted, int* provided) {
  ++mpi_begun;
  return PMPI_Init_thread(argc, argv, wanted, provided);
}
int MPI_Finalize() {
  ++mpi_ended;
  return PMPI_Finalize();
}
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  const int result = creation == nullptr ? MPI_SUCCESS : creation();
  return result != MPI_SUCCESS ? result : PMPI_Comm_create_group(comm, group, tag, made);
}
int MPI_Comm_free(MPI_Comm* comm) {
  ++mpi_calls;
  return PMPI_Comm_free(comm);
}
}
#pragma GCC visibility pop
