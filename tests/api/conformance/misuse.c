/* Wrong arguments: an error with a reason, and the communicator works as before. */
#include "harness.h"

#include <stdint.h>
#include <string.h>

static float data[64];

static void expect_refused(Rank* me, ncclResult_t result, const char* what) {
  expect(me, result == ncclInvalidArgument, "%s: %s, should be an invalid argument", what, ncclGetErrorString(result));
  expect(me, strlen(ncclGetLastError(NULL)) > 10, "%s: no reason in ncclGetLastError(NULL)", what);
}

static void wrong_calls(Rank* me) {
  const ncclComm_t comm = me->comm;
  float* const to = data + 32;
  expect_refused(me, ncclAllReduce(data, to, 8, (ncclDataType_t)12, ncclSum, comm, NULL), "datatype 12");
  expect_refused(me, ncclAllReduce(data, to, 8, (ncclDataType_t)-1, ncclSum, comm, NULL), "datatype -1");
  expect_refused(me, ncclAllReduce(data, to, 8, ncclFloat, (ncclRedOp_t)77, comm, NULL), "op 77");
  expect_refused(me, ncclAllReduce(data, to, 8, ncclFloat, (ncclRedOp_t)-1, comm, NULL), "op -1");
  expect_refused(me, ncclAllReduce(NULL, to, 8, ncclFloat, ncclSum, comm, NULL), "sendbuff NULL");
  expect_refused(me, ncclAllReduce(data, NULL, 8, ncclFloat, ncclSum, comm, NULL), "recvbuff NULL");
  expect_refused(me, ncclAllReduce(data, data + 3, 8, ncclFloat, ncclSum, comm, NULL), "overlapping buffers");
  expect_refused(me, ncclAllReduce(data, to, SIZE_MAX / 2, ncclFloat, ncclSum, comm, NULL), "count too large");
  expect_refused(me, ncclAllReduce(data, to, 8, ncclFloat, ncclSum, NULL, NULL), "comm NULL");
  expect_refused(me, ncclAllReduce(data, to, 8, ncclFloat, ncclSum, comm, (cudaStream_t)data), "a stream that is none");
  expect_refused(me, ncclReduce(data, to, 8, ncclFloat, ncclSum, me->ranks, comm, NULL), "root = ranks");
  expect_refused(me, ncclBroadcast(data, to, 8, ncclFloat, -1, comm, NULL), "root -1");
  expect_refused(me, ncclSend(data, 8, ncclFloat, me->ranks, comm, NULL), "peer = ranks");
  expect_refused(me, ncclRecv(data, 8, ncclFloat, -1, comm, NULL), "peer -1");
  expect_refused(me, ncclCommUserRank(comm, NULL), "rank NULL");
  expect_refused(me, ncclCommSplit(comm, -2, 0, NULL, NULL), "newcomm NULL");
  expect_usable(me, comm, "after wrong calls");
}

static void wrong_ops(Rank* me) {
  ncclRedOp_t op;
  float scale = 2;
  if (!expect_success(me, ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, ncclScalarDevice, me->comm),
                      "ncclRedOpCreatePreMulSum"))
    return;
  expect_refused(me, ncclAllReduce(data, data, 8, ncclFloat64, op, me->comm, NULL), "an op made for another type");
  expect_success(me, ncclRedOpDestroy(op, me->comm), "ncclRedOpDestroy");
  expect_refused(me, ncclAllReduce(data, data, 8, ncclFloat, op, me->comm, NULL), "a destroyed op");
  expect_refused(me, ncclRedOpDestroy(op, me->comm), "destroying an op twice");
  expect_refused(me, ncclRedOpDestroy(ncclSum, me->comm), "destroying ncclSum");
  expect_usable(me, me->comm, "after wrong ops");
}

/* A wrong call in a group fails the group; nothing of it runs. */
static void wrong_in_group(Rank* me) {
  int32_t one = 1;
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  expect_success(me, ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, me->comm, NULL), "a good call in a bad group");
  expect_refused(me, ncclBroadcast(data, data, 8, ncclFloat, 1000, me->comm, NULL), "root 1000 in a group");
  expect_refused(me, ncclGroupEnd(), "the end of a bad group");
  expect(me, one == 1, "a bad group ran its good call");
  expect(me, ncclGroupEnd() == ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart was accepted");
  expect_usable(me, me->comm, "after a bad group");
}

static void wrong_memory(Rank* me) {
  void* handle = NULL;
  ncclWindow_t window = NULL;
  unsigned char* memory = NULL;
  expect_refused(me, ncclMemFree(data + 1), "ncclMemFree of other memory");
  expect_refused(me, ncclCommRegister(me->comm, NULL, 8, &handle), "registering NULL");
  if (!expect_success(me, ncclMemAlloc((void**)&memory, 8192), "ncclMemAlloc")) return;
  if (expect_success(me, ncclCommRegister(me->comm, memory, 8192, &handle), "ncclCommRegister")) {
    expect_success(me, ncclCommDeregister(me->comm, handle), "ncclCommDeregister");
    expect_refused(me, ncclCommDeregister(me->comm, handle), "deregistering twice");
  }
  expect_refused(me, ncclCommWindowRegister(me->comm, memory + 8, 4096, &window, NCCL_WIN_DEFAULT),
                 "an unaligned window");
  if (expect_success(me, ncclCommWindowRegister(me->comm, memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC),
                     "ncclCommWindowRegister")) {
    expect_success(me, ncclCommWindowDeregister(me->comm, window), "ncclCommWindowDeregister");
    expect_refused(me, ncclCommWindowDeregister(me->comm, window), "deregistering a window twice");
  }
  expect_success(me, ncclMemFree(memory), "ncclMemFree");
  expect_success(me, ncclMemFree(NULL), "ncclMemFree of NULL");
  expect_usable(me, me->comm, "after registering");
}

void test_misuse(Rank* me) {
  wrong_calls(me);
  wrong_ops(me);
  wrong_in_group(me);
  wrong_memory(me);
}
