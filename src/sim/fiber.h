// A fiber: a function with a stack of its own, resumed and suspended by hand. Known to AddressSanitizer and ThreadSanitizer.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>

namespace tutti::sim {

class Fiber {
 public:
  using Body = void (*)(void*);

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// body(argument) begins at the next resume(). The fiber must have ended, or never begun.
  void start(Body body, void* argument);
  /// Runs the fiber until it suspends itself or ends. From the thread that owns it, outside of any fiber.
  void resume();
  /// Back to whoever resumed. From within only.
  void suspend();
  bool ended() const { return ended_; }
  /// Forgets what the fiber was doing; what lies on its stack is not destroyed.
  void abandon() { ended_ = true; }

 private:
  static constexpr std::size_t kStackBytes = 256 << 10;

  static void enter(unsigned high, unsigned low);
  void switch_out(bool for_good);
  void arrived_inside();

  std::unique_ptr<std::byte[]> stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  // Used instead of these once a fiber runs, but with sanitizers: swapcontext asks the kernel for the signal mask each time.
  jmp_buf jump_inside_{};
  jmp_buf jump_outside_{};
  bool begun_ = false;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
  // What the sanitizers want to be told: unused without them.
  void* fake_stack_inside_ = nullptr;
  const void* outside_stack_ = nullptr;
  std::size_t outside_stack_bytes_ = 0;
  void* tsan_inside_ = nullptr;
  void* tsan_outside_ = nullptr;
};

}  // namespace tutti::sim
