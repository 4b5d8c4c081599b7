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

constinit std::atomic<Range::Tools> Range::tools_{Tools::kNotAsked};

bool Range::push(const char* name) noexcept {
  const bool some = domain() != nullptr;
  tools_.store(some ? Tools::kSome : Tools::kNone, std::memory_order_relaxed);
  if (!some) return false;
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  (void)nvtxDomainRangePushEx(domain(), &attributes);
  return true;
}

void Range::pop() noexcept { (void)nvtxDomainRangePop(domain()); }

}  // namespace tutti::api

#else

namespace tutti::api {

constinit std::atomic<Range::Tools> Range::tools_{Tools::kNone};

bool Range::push(const char*) noexcept { return false; }
void Range::pop() noexcept {}

}  // namespace tutti::api

#endif
