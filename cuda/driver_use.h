// While a process exits, the driver takes away the memory that it has pinned. Threads of the library's may still look at it: nobody ends them.
#pragma once

namespace tutti::cuda {

/// Around each look of such a thread. An exit waits for those that are there, up to a second; from then on none is.
class DriverUse {
 public:
  DriverUse();
  ~DriverUse();
  DriverUse(const DriverUse&) = delete;
  DriverUse& operator=(const DriverUse&) = delete;
  /// Whether the driver's memory is there until this ends.
  bool is_there() const { return is_there_; }

 private:
  const bool is_there_;
};

/// Once the driver has done what may make it register an exit handler of its own: the last one that was registered runs first.
void end_uses_at_exit();

}  // namespace tutti::cuda
