/* nccl.h and the tutti headers in a C99 program, on their own and first in the file. Compiled with both header levels.
 * */
#include <nccl.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>

#include <nccl.h>

int main(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  tuttiConfig_t own = TUTTI_CONFIG_INITIALIZER;
  cudaStream_t stream = NULL;
  ncclComm_t comm = NCCL_COMM_NULL;
  return !(config.size == sizeof(config) && config.version == NCCL_VERSION_CODE && info.size == sizeof(info) &&
           own.size == sizeof(own) && stream == NULL && comm == NULL);
}
