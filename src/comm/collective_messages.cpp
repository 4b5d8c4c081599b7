// Collectives of callers' own memory by messages of MPI's between hosts of one rank each, from where all ranks have announced them: blocks of
// GPU memory, which an MPI takes as it is (device_messages.h), and all-reduces of host memory (mpi_all_reduce.h).
#include "comm/call.h"
#include "comm/device_messages.h"

#include <algorithm>
#include <cstring>

namespace tutti::comm {

/// All at once. What a rank sends to itself is copied by its stream, in memory of the GPU.
void CollectiveCall::post_messages() {
  using transport::MpiDirection;
  Membership& members = comm_.members();
  const int ranks = comm_.ranks();
  const auto post = [&](int peer, MpiDirection direction, std::byte* data, std::size_t bytes) {
    if (data != nullptr)
      messages_.push_back({peer, members.mpi->message(peer, direction, data, bytes, transport::MpiUse::kCollective)});
  };
  messages_.clear();
  for (int step = 1; step < ranks; ++step) {
    const int from = (comm_.rank() + ranks - step) % ranks;
    const MessageBlocks blocks = message_blocks(args_, ranks, comm_.rank(), from);
    post(from, MpiDirection::kReceive, blocks.received, blocks.received_bytes);
  }
  for (int step = 1; step < ranks; ++step) {
    const int to = (comm_.rank() + step) % ranks;
    const MessageBlocks blocks = message_blocks(args_, ranks, comm_.rank(), to);
    post(to, MpiDirection::kSend, blocks.sent, blocks.sent_bytes);
    if (blocks.sent != nullptr) members.mpi_sends.bytes.fetch_add(blocks.sent_bytes, std::memory_order_relaxed);
  }
  const MessageBlocks own = message_blocks(args_, ranks, comm_.rank(), comm_.rank());
  if (args_.gpu_pitch == 0 && own.sent != nullptr && own.received != nullptr)
    std::memmove(own.received, own.sent, own.sent_bytes);
  phase_ = Phase::kMessages;
}

/// Once the communicator has failed MPI is not asked any more, but to cancel receives.
executor::Progress CollectiveCall::go_on_with_messages() {
  using State = transport::MpiMessage::State;
  Membership& members = comm_.members();
  const std::size_t before = messages_.size();
  if (!comm_.failed()) {
    std::erase_if(messages_, [](const Message& one) { return one.message->look() == State::kDone; });
    const auto failed =
        std::ranges::find_if(messages_, [](const Message& one) { return !one.message->problem().empty(); });
    if (failed != messages_.end()) comm_.fail(Code::kSystem, comm_.rank(), name() + ": " + failed->message->problem());
  }
  if (messages_.empty()) {
    phase_ = Phase::kDone;
    return Progress::kDone;
  }
  if (messages_.size() != before) return moved(Progress::kAdvanced);
  const Progress progress = blocked();
  if (progress == Progress::kFailed) {
    for (const Message& one : messages_) members.mpi_sends.are_left |= is_left(comm_, *one.message);
    messages_.clear();
  }
  return progress;
}

void CollectiveCall::begin_mpi_all_reduce() {
  comm_.members().mpi_all_reduce->begin({.input = args_.send,
                                         .output = args_.receive,
                                         .count = args_.count,
                                         .element_bytes = size_of(args_.type),
                                         .divisor = announced_call_.divisor});
  phase_ = Phase::kMpiAllReduce;
}

executor::Progress CollectiveCall::go_on_with_mpi_all_reduce() {
  MpiAllReduce& sums = *comm_.members().mpi_all_reduce;
  if (!comm_.failed()) {
    const bool has_moved = sums.advance(lanes_.machine());
    if (sums.is_over()) {
      comm_.members().mpi_sends.bytes.fetch_add(sums.sent_bytes(), std::memory_order_relaxed);
      phase_ = Phase::kDone;
      return Progress::kDone;
    }
    if (has_moved) return moved(Progress::kAdvanced);
    if (!sums.problem().empty()) comm_.fail(Code::kSystem, comm_.rank(), name() + ": " + sums.problem());
  }
  const Progress progress = blocked();
  if (progress == Progress::kFailed) comm_.members().mpi_sends.are_left |= sums.give_up(!has_death(comm_));
  return progress;
}

}  // namespace tutti::comm
