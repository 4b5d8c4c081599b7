// A send or a receive of GPU memory that MPI takes as it is (device_messages.h), from where both ends have announced it.
#include "comm/call.h"
#include "comm/device_messages.h"

namespace tutti::comm {

/// Both ends do: nothing is posted that the other one does not know of.
executor::Progress PointToPointCall::post_message() {
  const bool sends = direction_ == Direction::kSend;
  const std::size_t bytes = sends ? shape_.input_bytes : shape_.output_bytes;
  if (bytes == 0) return finish(Progress::kDone);
  Membership& members = comm_.members();
  message_ = members.mpi->message(
      args_.root, sends ? transport::MpiDirection::kSend : transport::MpiDirection::kReceive,
      sends ? const_cast<void*>(args_.send) : args_.receive, bytes, transport::MpiUse::kSendOrReceive);
  if (sends) members.mpi_sends.bytes.fetch_add(bytes, std::memory_order_relaxed);
  phase_ = Phase::kMessage;
  return Progress::kAdvanced;
}

/// Once the communicator has failed MPI is not asked any more, but to cancel a receive.
executor::Progress PointToPointCall::go_on_with_message() {
  using State = transport::MpiMessage::State;
  const State state = comm_.failed() ? State::kUnderWay : message_->look();
  if (state == State::kDone) {
    message_.reset();
    phase_ = Phase::kRun;
    return finish(Progress::kDone);
  }
  if (state == State::kFailed) comm_.fail(Code::kSystem, comm_.rank(), name_for_all() + ": " + message_->problem());
  const Progress progress = blocked();
  if (progress == Progress::kFailed) {
    comm_.members().mpi_sends.are_left |= is_left(comm_, *message_);
    message_.reset();
  }
  return progress;
}

}  // namespace tutti::comm
