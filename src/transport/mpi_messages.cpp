#include "transport/mpi_messages.h"

#include "transport/mpi_calls.h"

#include <dlfcn.h>

#include <chrono>
#include <thread>
#include <utility>

namespace tutti::transport {
namespace {

/// Streams have the one before it.
constexpr int kFirstTag = 2;
/// For a receive that was cancelled to be over, which one that has met its send may not be for long.
constexpr std::chrono::milliseconds kCancelTime{20};
/// For the reason of what MPI has refused to come otherwise: of a rank that has died others may tell first.
constexpr std::chrono::seconds kReasonTime{2};

class Message final : public MpiMessage {
 public:
  Message(std::shared_ptr<const MpiOwned> comm, int peer, MpiDirection direction, void* data, std::size_t bytes,
          int tag)
      : comm_(std::move(comm)), direction_(direction) {
    const MpiCalls::Pass pass = mpi_calls().enter();
    if (!pass.owns_lock()) return;
    const int count = static_cast<int>(bytes);
    if (direction == MpiDirection::kSend) {
      is_mpis_ = keep("MPI_Isend", MPI_Isend(data, count, MPI_BYTE, peer, tag, comm_->get(), &request_));
    } else {
      is_mpis_ = keep("MPI_Irecv", MPI_Irecv(data, count, MPI_BYTE, peer, tag, comm_->get(), &request_));
    }
  }
  void cancel() override {
    is_given_up_ = true;
    if (!is_mpis_ || direction_ != MpiDirection::kReceive) return;
    const MpiCalls::Pass pass = mpi_calls().enter();
    if (pass.owns_lock()) (void)MPI_Cancel(&request_);  // else it stays what it was
  }
  /// What has met its send goes on as long as the other side does: it is left alone then.
  bool give_up() override {
    cancel();
    const auto until = std::chrono::steady_clock::now() + kCancelTime;
    const bool waits = direction_ == MpiDirection::kReceive;
    while (waits && is_mpis_ && std::chrono::steady_clock::now() < until) {
      (void)look();
      std::this_thread::yield();
    }
    return !is_mpis_;
  }

  State look() override {
    if (is_mpis_) test();
    const auto waits = [this] { return !is_given_up_ && std::chrono::steady_clock::now() - refused_at_ < kReasonTime; };
    if (!refusal_.empty() && !waits()) state_ = State::kFailed;
    return state_;
  }
  std::string problem() const override { return state_ == State::kFailed ? refusal_ : ""; }

 private:
  bool keep(const char* call, int result) {
    if (result == MPI_SUCCESS) return true;
    refused_at_ = std::chrono::steady_clock::now();
    refusal_ = text_of_error(call, result);
    return false;
  }
  void test() {
    const MpiCalls::Pass pass = mpi_calls().enter();
    if (!pass.owns_lock()) return;
    int done = 0;
    is_mpis_ = keep("MPI_Test", MPI_Test(&request_, &done, MPI_STATUS_IGNORE)) && done == 0;
    if (done != 0 && refusal_.empty()) state_ = State::kDone;
  }

  const std::shared_ptr<const MpiOwned> comm_;
  const MpiDirection direction_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool is_mpis_ = false;  ///< MPI has it under way
  bool is_given_up_ = false;
  State state_ = State::kUnderWay;
  std::string refusal_;
  std::chrono::steady_clock::time_point refused_at_;
};

}  // namespace

MpiState::Cuda ask_for_cuda() {
  int can = 0;
  // MPICH's; its number for CUDA is 0. Open MPI has the other one, and so has MPICH in its place, in some versions.
  if (auto* const query = reinterpret_cast<int (*)(int, int*)>(dlsym(RTLD_DEFAULT, "MPIX_GPU_query_support"))) {
    if (query(0, &can) != MPI_SUCCESS) return MpiState::Cuda::kUnknown;
  } else if (auto* const ask = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support"))) {
    can = ask();
  } else {
    return MpiState::Cuda::kUnknown;
  }
  return can != 0 ? MpiState::Cuda::kCan : MpiState::Cuda::kCannot;
}

std::unique_ptr<MpiMessage> post_message(std::shared_ptr<const MpiOwned> comm, int peer, MpiDirection direction,
                                         void* data, std::size_t bytes, MpiUse use) {
  return std::make_unique<Message>(std::move(comm), peer, direction, data, bytes, kFirstTag + static_cast<int>(use));
}

std::string text_of_error(const char* call, int result) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  return std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length));
}

}  // namespace tutti::transport
