// What ncclGetLastError returns, and the table of PreMulSum operations.

#include "comm/communicator.h"

#include <fmt/format.h>

namespace tutti::comm {
namespace {

/// Kept per thread: the text of the thread's last failure, and the one last handed out.
thread_local std::string thread_error;
thread_local std::string handed_out;

}  // namespace

void set_last_error(Communicator* communicator, const std::string& text) {
  thread_error = text;
  if (!communicator) return;
  const std::lock_guard lock(communicator->state_mutex());
  communicator->last_error = text;
}

const char* last_error(Communicator* communicator) {
  if (!communicator) {
    handed_out = thread_error;
  } else {
    std::string text;
    {
      const std::lock_guard lock(communicator->state_mutex());
      text = communicator->last_error;
    }
    handed_out = text.empty() ? communicator->async_message() : text;
  }
  return handed_out.c_str();
}

int create_scaled_sum(Communicator& communicator, const ScaledSum& sum) {
  const std::lock_guard lock(communicator.state_mutex());
  communicator.scaled_sums.push_back(sum);
  return static_cast<int>(communicator.scaled_sums.size()) - 1;
}

Status destroy_scaled_sum(Communicator& communicator, int index) {
  TUTTI_TRY(scaled_sum(communicator, index));
  const std::lock_guard lock(communicator.state_mutex());
  communicator.scaled_sums[index].reset();
  return {};
}

Result<ScaledSum> scaled_sum(Communicator& communicator, int index) {
  const std::lock_guard lock(communicator.state_mutex());
  const auto& sums = communicator.scaled_sums;
  if (index < 0 || index >= static_cast<int>(sums.size()) || !sums[index]) {
    return error(
        Code::kInvalidArgument,
        fmt::format("operation {} was not made by ncclRedOpCreatePreMulSum of this communicator, or is destroyed",
                    index + kReduceOps));
  }
  return *sums[index];
}

}  // namespace tutti::comm
