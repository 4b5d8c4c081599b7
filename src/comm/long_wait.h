// LongWait: when to tell people what a wait is for, whose end may be half an hour away.
#pragma once

#include <chrono>

namespace tutti::comm {

class LongWait {
 public:
  using Clock = std::chrono::steady_clock;

  /// So many seconds have passed: 10, and then twice as many each time. 0: it is not time to say so.
  [[gnu::noinline]] int is_due() {
    const int passed = static_cast<int>((Clock::now() - since_) / std::chrono::seconds(1));
    if (passed < next_) return 0;
    next_ = 2 * passed;
    return passed;
  }

 private:
  Clock::time_point since_ = Clock::now();
  int next_ = 10;
};

}  // namespace tutti::comm
