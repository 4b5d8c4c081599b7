#include "sim/fiber.h"

#include "base/assert.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TUTTI_FIBERS_ARE_WATCHED 1
#else
#define TUTTI_FIBERS_ARE_WATCHED 0
#endif

namespace tutti::sim {
namespace {

// Each is a no-op unless its sanitizer is there.
void leave_stack([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* to,
                 [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, to, bytes);
#endif
}
void enter_stack([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** from,
                 [[maybe_unused]] std::size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, from, bytes);
#endif
}
void* thread_fiber() {
#if defined(__SANITIZE_THREAD__)
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}
void* make_fiber() {
#if defined(__SANITIZE_THREAD__)
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}
void drop_fiber([[maybe_unused]] void* fiber) {
#if defined(__SANITIZE_THREAD__)
  if (fiber) __tsan_destroy_fiber(fiber);
#endif
}
void tell_switch([[maybe_unused]] void* fiber) {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(fiber, 0);
#endif
}

}  // namespace

Fiber::Fiber() : stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)), tsan_inside_(make_fiber()) {}
Fiber::~Fiber() { drop_fiber(tsan_inside_); }

void Fiber::start(Body body, void* argument) {
  TUTTI_ASSERT(ended_);
  body_ = body;
  argument_ = argument;
  ended_ = false;
  begun_ = false;
  fake_stack_inside_ = nullptr;
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  // makecontext hands on ints only.
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
}

void Fiber::resume() {
  TUTTI_ASSERT(!ended_);
  void* fake_stack = nullptr;
  tsan_outside_ = thread_fiber();
  leave_stack(&fake_stack, stack_.get(), kStackBytes);
  tell_switch(tsan_inside_);
#if TUTTI_FIBERS_ARE_WATCHED
  swapcontext(&outside_, &inside_);
#else
  if (_setjmp(jump_outside_) == 0) {
    if (begun_) _longjmp(jump_inside_, 1);
    begun_ = true;
    setcontext(&inside_);
  }
#endif
  enter_stack(fake_stack, nullptr, nullptr);
}

void Fiber::suspend() {
  switch_out(false);
  arrived_inside();
}

void Fiber::switch_out(bool for_good) {
  leave_stack(for_good ? nullptr : &fake_stack_inside_, outside_stack_, outside_stack_bytes_);
  tell_switch(tsan_outside_);
#if TUTTI_FIBERS_ARE_WATCHED
  swapcontext(&inside_, &outside_);
#else
  if (_setjmp(jump_inside_) == 0) _longjmp(jump_outside_, 1);
#endif
}

void Fiber::arrived_inside() { enter_stack(fake_stack_inside_, &outside_stack_, &outside_stack_bytes_); }

void Fiber::enter(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
  self->arrived_inside();
  self->body_(self->argument_);
  self->ended_ = true;
  self->switch_out(true);
}

}  // namespace tutti::sim
