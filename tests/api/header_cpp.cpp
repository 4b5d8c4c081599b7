// nccl.h and the tutti headers in a C++ program, on their own and first in the file. Compiled with both header levels.
#include <nccl.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>

#include <type_traits>

// A profiler overrides ncclX and calls pncclX: both have the same type.
static_assert(std::is_same_v<decltype(ncclAllReduce), decltype(pncclAllReduce)>);
static_assert(std::is_same_v<decltype(ncclCommInitRankConfig), decltype(pncclCommInitRankConfig)>);
static_assert(std::is_pointer_v<cudaStream_t> && std::is_pointer_v<ncclComm_t> && std::is_pointer_v<ncclWindow_t>);
static_assert(std::is_trivially_copyable_v<ncclUniqueId>);

int main() {
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const tuttiConfig_t own = TUTTI_CONFIG_INITIALIZER;
  return !(config.size == sizeof(config) && info.size == sizeof(info) && own.size == sizeof(own));
}
