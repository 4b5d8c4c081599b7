// Processes that each do a part of a measurement on the GPU. They are forked: not to be called when this process has used CUDA.
#pragma once

#include <atomic>
#include <functional>
#include <string>

namespace tutti::test {

/// What process `number` does, and what went wrong there; empty: nothing. Once `failed`, some other one will not come to what it waits for. What
/// it finds out it writes into memory that the caller shares with it.
using ProcessPart = std::function<std::string(int number, const std::atomic<bool>& failed)>;

/// Until all have ended; one that takes longer than `limit_s` is ended. What went wrong; empty: nothing.
std::string run_forked(int processes, unsigned limit_s, const ProcessPart& part);

}  // namespace tutti::test
