// The result of an nccl call as a Status whose message says what failed and why.
#pragma once

#include "base/result.h"

#include <nccl.h>

#include <fmt/format.h>

#include <string_view>

namespace tutti::bench {

inline Status nccl(ncclResult_t code, std::string_view what,
                   std::source_location where = std::source_location::current()) {
  if (code == ncclSuccess) return {};
  const char* reason = ncclGetLastError(nullptr);
  return error(static_cast<Code>(code), named(what, reason && *reason ? reason : ncclGetErrorString(code)), where);
}

}  // namespace tutti::bench
