#include "api/range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace tutti::api {
namespace {

/// nullptr where no tool is attached.
nvtxDomainHandle_t domain() noexcept {
  static nvtxDomainHandle_t const made = nvtxDomainCreateA("NCCL");
  return made;
}

}  // namespace

Range::Range(const char* name) noexcept {
  if (domain() == nullptr) [[likely]]
    return;
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  (void)nvtxDomainRangePushEx(domain(), &attributes);
}

Range::~Range() {
  if (domain() != nullptr) (void)nvtxDomainRangePop(domain());
}

}  // namespace tutti::api

#else

namespace tutti::api {

Range::Range(const char*) noexcept {}
Range::~Range() = default;

}  // namespace tutti::api

#endif
