/* The ABI of nccl.h: sizes, offsets and values that compiled programs rely on, as NCCL has them. Fails at compile
 * time; with
 * -DTUTTI_NCCL_HEADER_LEVEL=22707 it checks the older level. */
#include <nccl.h>

#include <stddef.h>

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
#define AT(type, member, offset) \
  _Static_assert(offsetof(type, member) == (offset), #type "." #member " is not at " #offset)

SAME(NCCL_MAJOR, 2);
SAME(NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_VERSION_CODE);
SAME(NCCL_VERSION(2, 8, 4), 2804);
SAME(NCCL_VERSION(2, 9, 6), 20906);
SAME(NCCL_VERSION(3, 1, 0), 30100);
SAME(sizeof(NCCL_SUFFIX), 1);

SAME(sizeof(ncclUniqueId), 128);
SAME(NCCL_UNIQUE_ID_BYTES, 128);
SAME(sizeof(ncclComm_t), sizeof(void*));
SAME(sizeof(ncclWindow_t), sizeof(void*));
SAME(sizeof(ncclResult_t), 4);
SAME(sizeof(ncclDataType_t), 4);
SAME(sizeof(ncclRedOp_t), 4);
SAME(sizeof(ncclScalarResidence_t), 4);

SAME(ncclSuccess, 0);
SAME(ncclUnhandledCudaError, 1);
SAME(ncclSystemError, 2);
SAME(ncclInternalError, 3);
SAME(ncclInvalidArgument, 4);
SAME(ncclInvalidUsage, 5);
SAME(ncclRemoteError, 6);
SAME(ncclInProgress, 7);
SAME(ncclNumResults, 8);

SAME(ncclInt8, 0);
SAME(ncclChar, 0);
SAME(ncclUint8, 1);
SAME(ncclInt32, 2);
SAME(ncclInt, 2);
SAME(ncclUint32, 3);
SAME(ncclInt64, 4);
SAME(ncclUint64, 5);
SAME(ncclFloat16, 6);
SAME(ncclHalf, 6);
SAME(ncclFloat32, 7);
SAME(ncclFloat, 7);
SAME(ncclFloat64, 8);
SAME(ncclDouble, 8);
SAME(ncclBfloat16, 9);
SAME(ncclFloat8e4m3, 10);
SAME(ncclFloat8e5m2, 11);
SAME(ncclNumTypes, 12);

SAME(ncclSum, 0);
SAME(ncclProd, 1);
SAME(ncclMax, 2);
SAME(ncclMin, 3);
SAME(ncclAvg, 4);
SAME(ncclNumOps, 5);
SAME(ncclNumOps_dummy, 5);
SAME(ncclMaxRedOp, 0x7fffffff);
SAME(ncclScalarDevice, 0);
SAME(ncclScalarHostImmediate, 1);

SAME(NCCL_CONFIG_UNDEF_INT, INT_MIN);
SAME(NCCL_SPLIT_NOCOLOR, -1);
SAME(NCCL_WIN_DEFAULT, 0);
SAME(NCCL_WIN_COLL_SYMMETRIC, 1);
SAME(NCCL_WIN_REQUIRED_ALIGNMENT, 4096);
SAME(NCCL_CTA_POLICY_DEFAULT, 0);
SAME(NCCL_CTA_POLICY_EFFICIENCY, 1);
SAME(NCCL_SHRINK_DEFAULT, 0);
SAME(NCCL_SHRINK_ABORT, 1);

AT(ncclConfig_t, size, 0);
AT(ncclConfig_t, magic, 8);
AT(ncclConfig_t, version, 12);
AT(ncclConfig_t, blocking, 16);
AT(ncclConfig_t, cgaClusterSize, 20);
AT(ncclConfig_t, minCTAs, 24);
AT(ncclConfig_t, maxCTAs, 28);
AT(ncclConfig_t, netName, 32);
AT(ncclConfig_t, splitShare, 40);
AT(ncclConfig_t, trafficClass, 44);
AT(ncclConfig_t, commName, 48);
AT(ncclConfig_t, collnetEnable, 56);
AT(ncclConfig_t, CTAPolicy, 60);
AT(ncclConfig_t, shrinkShare, 64);
AT(ncclConfig_t, nvlsCTAs, 68);
#if defined(TUTTI_NCCL_HEADER_LEVEL) && TUTTI_NCCL_HEADER_LEVEL == 22707
SAME(NCCL_VERSION_CODE, 22707);
SAME(sizeof(ncclConfig_t), 72);
#if defined(NCCL_CTA_POLICY_ZERO) || defined(NCCL_REVOKE_DEFAULT)
#error "level 22707 shows what came with 2.28"
#endif
/* What the level hides, the program may define. */
void ncclAlltoAll(void);
void ncclAlltoAll(void) {}
void ncclGather(void);
void ncclGather(void) {}
void ncclScatter(void);
void ncclScatter(void) {}
void ncclCommRevoke(void);
void ncclCommRevoke(void) {}
#else
SAME(NCCL_VERSION_CODE, 22809);
SAME(sizeof(ncclConfig_t), 80);
AT(ncclConfig_t, nChannelsPerNetPeer, 72);
AT(ncclConfig_t, nvlinkCentricSched, 76);
SAME(NCCL_CTA_POLICY_ZERO, 2);
SAME(NCCL_REVOKE_DEFAULT, 0);
#endif

SAME(sizeof(ncclSimInfo_t), 24);
AT(ncclSimInfo_t, size, 0);
AT(ncclSimInfo_t, magic, 8);
AT(ncclSimInfo_t, version, 12);
AT(ncclSimInfo_t, estimatedTime, 16);

int main(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const int* const first = &config.blocking;
  int wrong = config.magic != 0xcafebeefu || config.size != sizeof(config) || config.version != NCCL_VERSION_CODE ||
              config.netName != NULL || config.commName != NULL || *first != INT_MIN || config.nvlsCTAs != INT_MIN ||
              config.splitShare != INT_MIN || config.maxCTAs != INT_MIN || config.collnetEnable != INT_MIN;
  wrong |= info.magic != 0x74685283u || info.size != sizeof(info) || info.estimatedTime != -1.0f;
  return wrong;
}
