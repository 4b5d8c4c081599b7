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

class Message final : public MpiMessage {
 public:
  Message(std::shared_ptr<const MpiOwned> comm, int peer, MpiDirection direction, void* data, std::size_t bytes,
          int tag)
      : comm_(std::move(comm)), direction_(direction) {
    const MpiCalls::Pass pass = mpi_calls().enter();
    if (!pass.owns_lock()) return;
    const int count = static_cast<int>(bytes);
    if (direction == MpiDirection::kSend) {
      keep("MPI_Isend", MPI_Isend(data, count, MPI_BYTE, peer, tag, comm_->get(), &request_));
    } else {
      keep("MPI_Irecv", MPI_Irecv(data, count, MPI_BYTE, peer, tag, comm_->get(), &request_));
    }
    posted_ = state_ == State::kUnderWay;
  }
  void cancel() override {
    if (!posted_ || state_ != State::kUnderWay || direction_ != MpiDirection::kReceive) return;
    const MpiCalls::Pass pass = mpi_calls().enter();
    if (pass.owns_lock()) (void)MPI_Cancel(&request_);  // else it stays what it was
  }
  /// What has met its send goes on as long as the other side does: it is left alone then.
  bool give_up() override {
    cancel();
    const auto until = std::chrono::steady_clock::now() + kCancelTime;
    const bool waits = direction_ == MpiDirection::kReceive;
    while (waits && posted_ && look() == State::kUnderWay && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    return !posted_ || state_ != State::kUnderWay;
  }

  State look() override {
    if (!posted_ || state_ != State::kUnderWay) return state_;
    const MpiCalls::Pass pass = mpi_calls().enter();
    if (pass.owns_lock()) test();
    return state_;
  }
  std::string problem() const override { return problem_; }

 private:
  void keep(const char* call, int result) {
    if (result == MPI_SUCCESS) return;
    state_ = State::kFailed;
    problem_ = text_of_error(call, result);
  }
  void test() {
    int done = 0;
    keep("MPI_Test", MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
    if (state_ == State::kUnderWay && done != 0) state_ = State::kDone;
  }

  const std::shared_ptr<const MpiOwned> comm_;
  const MpiDirection direction_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool posted_ = false;
  State state_ = State::kUnderWay;
  std::string problem_;
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
