#include "api/registrations.h"

#include <fmt/format.h>
#include <pthread.h>

namespace tutti::api {

// Never destroyed: the application may deregister while the process exits.
Registrations& Registrations::process() {
  static auto& table = []() -> Registrations& {
    auto* made = new Registrations;
    // A child must not inherit a table in the middle of a change.
    pthread_atfork([] { process().mutex_.lock(); }, [] { process().mutex_.unlock(); },
                   [] { process().mutex_.unlock(); });
    return *made;
  }();
  return table;
}

void* Registrations::add(const Entry& entry) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    // Room to give every slot back later without memory.
    free_.reserve(slots_.size() + 1);
    slots_.emplace_back();
    free_.push_back(slots_.size() - 1);
  }
  const std::size_t index = free_.back();
  free_.pop_back();
  slots_[index].entry = entry;
  return reinterpret_cast<void*>(std::uintptr_t{slots_[index].generation} << 32 | (index + 1));
}

Result<Registrations::Entry> Registrations::remove(RegistrationKind kind, const void* communicator,
                                                   const void* handle) {
  const std::lock_guard lock(mutex_);
  const auto bits = reinterpret_cast<std::uintptr_t>(handle);
  const std::size_t index = (bits & 0xffffffffu) - 1;
  const char* what = kind == RegistrationKind::kWindow ? "win" : "handle";
  const bool live = index < slots_.size() && slots_[index].generation == bits >> 32 &&
                    slots_[index].entry.communicator && slots_[index].entry.kind == kind;
  if (!live)
    return error(
        Code::kInvalidArgument,
        fmt::format("{} {} is no registration: it was never made, or is deregistered already", what, fmt::ptr(handle)));
  if (slots_[index].entry.communicator != communicator)
    return error(Code::kInvalidArgument,
                 fmt::format("{} {} was registered with another communicator", what, fmt::ptr(handle)));
  const Entry entry = slots_[index].entry;
  free_slot(index);
  return entry;
}

void Registrations::drop(const void* communicator) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].entry.communicator == communicator) free_slot(i);
  }
}

void Registrations::free_slot(std::size_t index) {
  slots_[index].entry = {};
  ++slots_[index].generation;
  free_.push_back(index);
}

}  // namespace tutti::api
