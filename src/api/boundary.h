// The boundary between C and the library: nothing is thrown across it, and every failure leaves its reason behind.
#pragma once

#include "api/range.h"
#include "base/result.h"

#include <nccl.h>

#include <exception>
#include <new>
#include <utility>

namespace tutti::api {

/// Whether a failure inside a group fails the group (calls that the group would have run), or only itself.
enum class InGroup : bool { kFailsAlone, kFailsGroup };

/// Keeps "function: message" for ncclGetLastError of this thread and of `comm`, logs it, and returns the code.
/// In-progress is not a failure and leaves nothing.
ncclResult_t report(const char* function, ncclComm_t comm, InGroup in_group, const Error& failure) noexcept;

/// Runs `body`, which returns a Status. Every function has its own body, and so its own copy of this.
template <class Body>
[[gnu::always_inline]] inline ncclResult_t boundary(const char* function, ncclComm_t comm, InGroup in_group,
                                                    Body&& body) noexcept {
  const Range range(function);
  try {
    const Status status = std::forward<Body>(body)();
    return status.ok() ? ncclSuccess : report(function, comm, in_group, status.error());
  } catch (const std::bad_alloc&) {
    return report(function, comm, in_group, Error{Code::kSystem, {}, std::source_location::current()});
  } catch (const std::exception& failure) {
    try {
      return report(function, comm, in_group, error(Code::kInternal, failure.what()));
    } catch (...) {
      return ncclInternalError;
    }
  } catch (...) {
    return report(function, comm, in_group, Error{Code::kInternal, {}, std::source_location::current()});
  }
}

/// A query, or a call that no group collects.
template <class Body>
ncclResult_t boundary(const char* function, ncclComm_t comm, Body&& body) noexcept {
  return boundary(function, comm, InGroup::kFailsAlone, std::forward<Body>(body));
}

}  // namespace tutti::api
