// What ncclGetLastError returns, and the table of PreMulSum operations.

#include "comm/communicator.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace tutti::comm {
namespace {

/// Kept per thread: the text of the thread's last failure, and the one last handed out.
thread_local std::string thread_error;
/// By turns: a text stays where it is for the next few calls, as in printf("%s %s", ncclGetLastError(a), ncclGetLastError(b)).
constexpr std::size_t kHandedOut = 8;
thread_local std::array<std::string, kHandedOut> handed_out_texts;
thread_local std::size_t handed_out_count = 0;

}  // namespace

void set_last_error(Communicator* communicator, const std::string& text) {
  thread_error = text;
  if (!communicator) return;
  const std::lock_guard lock(communicator->state_mutex());
  communicator->last_error = text;
}

const char* last_error(Communicator* communicator) {
  std::string& handed_out = handed_out_texts[handed_out_count++ % kHandedOut];
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
