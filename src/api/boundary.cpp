#include "api/boundary.h"

#include "base/log.h"
#include "comm/comm.h"

#include <string>

namespace tutti::api {
namespace {

const char* reason_of(const Error& failure) {
  if (!failure.message.empty()) return failure.message.c_str();
  return failure.code == Code::kSystem ? "out of memory" : "no reason is known; this is a defect of the library";
}

}  // namespace

ncclResult_t report(const char* function, ncclComm_t comm, InGroup in_group, const Error& failure) noexcept {
  const auto result = static_cast<ncclResult_t>(failure.code);
  if (failure.code == Code::kInProgress) return result;
  try {
    const std::string text = named(function, reason_of(failure));
    log_warn("{} ({}:{})", text, failure.where.file_name(), failure.where.line());
    comm::set_last_error(comm ? comm::find(comm) : nullptr, text);
    if (in_group == InGroup::kFailsGroup && comm::in_group())
      comm::fail_group(Error{failure.code, text, failure.where});
  } catch (...) {
    // No memory for the reason: the code alone must do. The group has lost a call all the same.
    if (in_group == InGroup::kFailsGroup) comm::fail_group(Error{failure.code, {}, failure.where});
  }
  return result;
}

}  // namespace tutti::api
