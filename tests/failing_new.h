// operator new of the program and of the library, which fails when a test says so. One file of a program includes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include <pthread.h>

/// Of the driver in tests/cuda/fake/, where the program has it: what that allocates does not fail, as a driver throws nothing.
namespace fake_driver {
[[gnu::weak]] bool is_inside();
}  // namespace fake_driver

namespace tutti::test {

/// Allocations of this thread until one fails; 0: none does.
inline thread_local long until_failure = 0;
/// All that follow fail as well, until it is set anew.
inline thread_local bool failure_lasts = false;
/// The same of all threads of host streams together.
inline std::atomic<long> until_failure_on_streams = 0;

/// The same of all threads but this one, which says that it is (is_tester), and those that have names of the library's.
inline std::atomic<long> until_failure_elsewhere = 0;
inline thread_local bool is_tester = false;

/// The same of all threads whose names begin with name_that_fails.
inline std::atomic<long> until_failure_by_name = 0;
inline const char* name_that_fails = "";

inline bool has_name(const char* beginning) {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
         std::strncmp(name, beginning, std::strlen(beginning)) == 0;
}

inline bool takes_last(std::atomic<long>& left) {
  long seen = left;
  while (seen > 0 && !left.compare_exchange_weak(seen, seen - 1)) {
  }
  return seen == 1;
}

inline void fail_if_due() {
  if (fake_driver::is_inside != nullptr && fake_driver::is_inside()) return;
  if (until_failure > 0 && --until_failure == 0) {
    until_failure = failure_lasts ? 1 : 0;
    throw std::bad_alloc();
  }
  if (until_failure_on_streams > 0 && has_name("tutti-stream") && takes_last(until_failure_on_streams))
    throw std::bad_alloc();
  if (until_failure_elsewhere > 0 && !is_tester && !has_name("tutti-") && takes_last(until_failure_elsewhere))
    throw std::bad_alloc();
  if (until_failure_by_name > 0 && has_name(name_that_fails) && takes_last(until_failure_by_name))
    throw std::bad_alloc();
}

inline void* allocate(std::size_t bytes) {
  fail_if_due();
  void* const memory = std::malloc(bytes != 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace tutti::test

// Not inlined: compilers take what they see of one for another one's.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return tutti::test::allocate(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return tutti::test::allocate(bytes); }
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes != 0 ? bytes : 1);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes != 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
