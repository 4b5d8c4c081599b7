// Shared memory, registered buffers and windows.
#include "api/boundary.h"
#include "api/device_choice.h"
#include "api/export.h"
#include "api/registrations.h"
#include "api/validation.h"
#include "comm/device_memory.h"
#include "transport/shared_memory.h"

#include <cstdint>
#include <new>

#include <fmt/format.h>

namespace tutti::api {
namespace {

Status check_buffer(const void* buffer, std::size_t size) {
  if (!buffer) return error(Code::kInvalidArgument, "buff is NULL; pass the start of the memory to register");
  if (size == 0) return error(Code::kInvalidArgument, "size is 0; pass the number of bytes to register");
  if (size > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(buffer))
    return error(Code::kInvalidArgument,
                 fmt::format("size is {}: buff {} has not that many bytes", size, fmt::ptr(buffer)));
  return {};
}

void take_back(comm::Communicator& communicator, const Registrations::Entry& entry) {
  const auto remove = entry.is_symmetric ? comm::remove_window : comm::remove_registered;
  remove(communicator, entry.address, entry.bytes);
}

/// Of what the communicator has registered. Without memory for one it is taken back, but for a window of all ranks, which others know.
void* handle_of(comm::Communicator& communicator, const Registrations::Entry& entry) try {
  return Registrations::process().add(entry);
} catch (const std::bad_alloc&) {
  if (!entry.is_symmetric) take_back(communicator, entry);
  throw;
}

Status register_buffer(ncclComm_t comm, void* buffer, std::size_t size, void** handle) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  TUTTI_TRY(checked_pointer(handle, "handle"));
  TUTTI_TRY(check_buffer(buffer, size));
  TUTTI_TRY(comm::check_made(*communicator));
  comm::add_registered(*communicator, buffer, size);
  *handle = handle_of(*communicator, {RegistrationKind::kBuffer, comm, buffer, size});
  return {};
}

Status register_window(ncclComm_t comm, void* buffer, std::size_t size, ncclWindow_t* window, int flags) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  TUTTI_TRY(checked_pointer(window, "win"));
  *window = nullptr;
  TUTTI_TRY(check_buffer(buffer, size));
  if (flags != NCCL_WIN_DEFAULT && flags != NCCL_WIN_COLL_SYMMETRIC)
    return error(Code::kInvalidArgument,
                 fmt::format("winFlags is {:#x}; pass NCCL_WIN_DEFAULT (0) or NCCL_WIN_COLL_SYMMETRIC (1)", flags));
  if (reinterpret_cast<std::uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return error(
        Code::kInvalidArgument,
        fmt::format("buff {} is not a multiple of {} (NCCL_WIN_REQUIRED_ALIGNMENT); ncclMemAlloc gives memory that is",
                    fmt::ptr(buffer), NCCL_WIN_REQUIRED_ALIGNMENT));
  TUTTI_TRY(comm::check_made(*communicator));
  const bool is_symmetric = flags == NCCL_WIN_COLL_SYMMETRIC;
  if (is_symmetric) {
    TUTTI_TRY(comm::add_window(*communicator, buffer, size));
  } else {
    comm::add_registered(*communicator, buffer, size);
  }
  *window = static_cast<ncclWindow_t>(
      handle_of(*communicator, {RegistrationKind::kWindow, comm, buffer, size, is_symmetric}));
  return {};
}

Status deregister(RegistrationKind kind, ncclComm_t comm, const void* handle) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  // What was not needed is NULL in NCCL (windows, and all with NCCL_LOCAL_REGISTER=0), and goes back as such.
  if (!handle) return {};
  TUTTI_TRY_ASSIGN(const Registrations::Entry entry, Registrations::process().remove(kind, comm, handle));
  take_back(*communicator, entry);
  return {};
}

}  // namespace
}  // namespace tutti::api

using tutti::api::boundary;
using tutti::api::RegistrationKind;

TUTTI_NCCL_API(ncclResult_t, MemAlloc, void** ptr, size_t size) {
  return boundary("ncclMemAlloc", nullptr, [&]() -> tutti::Status {
    TUTTI_TRY(tutti::api::checked_pointer(ptr, "ptr"));
    *ptr = nullptr;
    TUTTI_TRY_ASSIGN(const int device, tutti::api::chosen_device());
    const bool on_host = device == tutti::comm::kHostMemory;
    TUTTI_TRY_ASSIGN(*ptr,
                     on_host ? tutti::transport::shared_allocate(size) : tutti::comm::allocate_device_memory(size));
    return {};
  });
}

TUTTI_NCCL_API(ncclResult_t, MemFree, void* ptr) {
  return boundary("ncclMemFree", nullptr, [&]() -> tutti::Status {
    if (!ptr) return {};
    if (tutti::comm::is_device_allocation(ptr)) return tutti::comm::free_device_memory(ptr);
    return tutti::transport::shared_free(ptr);
  });
}

TUTTI_NCCL_API(ncclResult_t, CommRegister, const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return boundary("ncclCommRegister", comm, [&] { return tutti::api::register_buffer(comm, buff, size, handle); });
}

TUTTI_NCCL_API(ncclResult_t, CommDeregister, const ncclComm_t comm, void* handle) {
  return boundary("ncclCommDeregister", comm,
                  [&] { return tutti::api::deregister(RegistrationKind::kBuffer, comm, handle); });
}

TUTTI_NCCL_API(ncclResult_t, CommWindowRegister, ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
               int winFlags) {
  return boundary("ncclCommWindowRegister", comm,
                  [&] { return tutti::api::register_window(comm, buff, size, win, winFlags); });
}

TUTTI_NCCL_API(ncclResult_t, CommWindowDeregister, ncclComm_t comm, ncclWindow_t win) {
  return boundary("ncclCommWindowDeregister", comm,
                  [&] { return tutti::api::deregister(RegistrationKind::kWindow, comm, win); });
}
