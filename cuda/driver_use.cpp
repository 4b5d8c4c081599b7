#include "cuda/driver_use.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace tutti::cuda {
namespace {

std::atomic<unsigned> uses{0};
std::atomic<bool> is_over{false};

void end_uses() {
  is_over = true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (uses != 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

/// Counts the use before it looks, as the exit says that it is over before it counts.
bool begin_use() {
  ++uses;
  return !is_over;
}

}  // namespace

DriverUse::DriverUse() : is_there_(begin_use()) {}

DriverUse::~DriverUse() { --uses; }

void end_uses_at_exit() { (void)std::atexit(end_uses); }

}  // namespace tutti::cuda
