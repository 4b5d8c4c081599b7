/* A tool as NVTX loads it (NVTX_INJECTION64_PATH): prints the ranges of the domain "NCCL" to standard error, indented by depth. */
#include <nvtx3/nvToolsExt.h>

#include <stdio.h>
#include <string.h>

static _Thread_local int depth;
static char the_domain;

static nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  return strcmp(name, "NCCL") == 0 ? (nvtxDomainHandle_t)&the_domain : NULL;
}

static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  if (domain == (nvtxDomainHandle_t)&the_domain) fprintf(stderr, "range %d %s\n", depth, attributes->message.ascii);
  return depth++;
}

static int NVTX_API pop(nvtxDomainHandle_t domain) {
  (void)domain;
  fprintf(stderr, "end %d\n", depth - 1);
  return --depth;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks* const callbacks = (const NvtxExportTableCallbacks*)get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  if (size <= NVTX_CBID_CORE2_DomainCreateA) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
