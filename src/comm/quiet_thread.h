// Threads of the library's own: named, and deaf to signals, which are the application's.
#pragma once

#include "base/result.h"

#include <fmt/format.h>

#include <pthread.h>

#include <csignal>
#include <exception>
#include <functional>
#include <thread>

namespace tutti::comm {

/// `name` has at most 15 characters.
inline Result<std::thread> start_quiet_thread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<std::thread> started = [&]() -> Result<std::thread> {
    try {
      return std::thread(std::move(body));
    } catch (const std::exception& failure) {
      return error(Code::kSystem, fmt::format("start thread {}: {}", name, failure.what()));
    }
  }();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started.ok()) pthread_setname_np(started.value().native_handle(), name);
  return started;
}

}  // namespace tutti::comm
