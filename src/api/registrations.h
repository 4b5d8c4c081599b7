// Registered buffers and windows: a table with generations, so that a stale handle is an error and not a crash.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tutti::api {

enum class RegistrationKind : std::uint8_t { kBuffer, kWindow };

/// Thread-safe. A handle is 1 + index in the low half, generation in the high half.
class Registrations {
 public:
  struct Entry {
    RegistrationKind kind = RegistrationKind::kBuffer;
    const void* communicator = nullptr;  ///< nullptr: the slot is free
    void* address = nullptr;
    std::size_t bytes = 0;
    bool is_symmetric = false;  ///< a window of all ranks
  };

  /// The one table of this process.
  static Registrations& process();

  void* add(const Entry& entry);
  /// What was registered. InvalidArgument: no handle of that kind, one of another communicator, or removed already.
  Result<Entry> remove(RegistrationKind kind, const void* communicator, const void* handle);
  /// The communicator has ended: its handles are stale.
  void drop(const void* communicator);

 private:
  struct Slot {
    Entry entry;
    std::uint32_t generation = 1;
  };

  void free_slot(std::size_t index);

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
};

}  // namespace tutti::api
