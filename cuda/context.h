// Whose context is current on a thread: what every call of the driver that works on a device needs.
#pragma once

#include "base/result.h"

namespace tutti::cuda {

enum class ContextUse : bool {
  kAnything,
  kStreams,  ///< what streams are given, which a capture on other streams does not forbid
};

/// Makes a context (Device::context()) current on this thread until the end of the scope; the one before comes back. While it lasts, a
/// capture that is under way forbids this thread nothing: what the library does on its own streams is none of the capture's business.
/// Within a scope another one of the same context costs nothing: around several calls of the driver it spares each of them its own. For
/// streams alone nothing is to be done where the context is current already, as in most programs.
class ContextScope {
 public:
  explicit ContextScope(void* context, ContextUse use = ContextUse::kAnything);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  const Status& status() const { return status_; }
  /// The context was destroyed or reset, and all that was in it with it.
  bool is_gone() const { return is_gone_; }

 private:
  Status status_;
  void* const context_;
  const ContextScope* outer_ = nullptr;  ///< while entered_
  int mode_ = 0;                         ///< of captures, as it was outside
  bool is_gone_ = false;
  bool entered_ = false;
  bool pushed_ = false;
  bool exchanged_ = false;
};

}  // namespace tutti::cuda
