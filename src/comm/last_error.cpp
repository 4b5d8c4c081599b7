// What ncclGetLastError returns, and the table of PreMulSum operations.

#include "comm/communicator.h"
#include "comm/thread_end.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

namespace tutti::comm {
namespace {

/// A thread's: the text of its last failure, and those last handed out.
struct Texts {
  std::string error;
  /// By turns: a text stays where it is for the next few calls, as in printf("%s %s", ncclGetLastError(a), ncclGetLastError(b)).
  std::array<std::string, 8> handed_out;
  std::size_t handed_out_count = 0;
};

constinit thread_local Texts* texts = nullptr;
const ThreadEnd thread_end([](void*) { delete std::exchange(texts, nullptr); });

Texts& texts_of_thread() {
  if (texts == nullptr) {
    texts = new Texts;
    thread_end.await();
  }
  return *texts;
}

/// Under the communicator's lock.
Result<ScaledSum> live_scaled_sum(const Communicator& communicator, int index) {
  const auto& sums = communicator.scaled_sums;
  if (index >= 0 && index < static_cast<int>(sums.size()) && sums[index]) return *sums[index];
  return error(
      Code::kInvalidArgument,
      fmt::format("operation {} was not made by ncclRedOpCreatePreMulSum of this communicator, or is destroyed",
                  index + kReduceOps));
}

}  // namespace

void set_last_error(Communicator* communicator, const std::string& text) {
  texts_of_thread().error = text;
  if (!communicator) return;
  const std::lock_guard lock(communicator->state_mutex());
  communicator->last_error = text;
}

const char* last_error(Communicator* communicator) {
  Texts& mine = texts_of_thread();
  std::string& handed_out = mine.handed_out[mine.handed_out_count++ % mine.handed_out.size()];
  if (!communicator) {
    handed_out = mine.error;
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
  if (communicator.free_scaled_sums.empty()) {
    communicator.scaled_sums.push_back(sum);
    return static_cast<int>(communicator.scaled_sums.size()) - 1;
  }
  const int index = communicator.free_scaled_sums.back();
  communicator.free_scaled_sums.pop_back();
  communicator.scaled_sums[index] = sum;
  return index;
}

Status destroy_scaled_sum(Communicator& communicator, int index) {
  const std::lock_guard lock(communicator.state_mutex());
  TUTTI_TRY(live_scaled_sum(communicator, index));
  communicator.free_scaled_sums.push_back(index);
  communicator.scaled_sums[index].reset();
  return {};
}

Result<ScaledSum> scaled_sum(Communicator& communicator, int index) {
  const std::lock_guard lock(communicator.state_mutex());
  return live_scaled_sum(communicator, index);
}

}  // namespace tutti::comm
