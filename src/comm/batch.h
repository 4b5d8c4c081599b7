// A batch: the calls of one communicator that a group makes, run as one task. Collectives go in order; sends and receives go at the
// same time, in order per peer and direction.
#pragma once

#include "comm/call.h"
#include "comm/communicator.h"

#include <chrono>
#include <deque>
#include <span>
#include <vector>

namespace tutti::comm {

/// Whether a group's sends and receives to the own rank, all of them, pair up.
Status check_pairs(const Communicator& communicator, std::span<const CallArgs> calls);

class Batch : public executor::Task {
 public:
  /// Who ends the batch's turn in the communicator's order.
  enum class Turn : bool {
    kEnds,   ///< the batch, when it is done
    kStays,  ///< whoever runs it, and keeps it for the next group
  };
  explicit Batch(Communicator& communicator, Turn turn = Turn::kEnds) : comm_(communicator), turn_(turn) {}

  /// Empties it, keeping its memory.
  void begin();
  /// Keeps a copy.
  void add(const CallArgs& call);
  /// The call stays where it is until the batch is done.
  void refer(const CallArgs& call);

  /// When the communicator's order has come to it.
  executor::Progress advance() override;
  void check_patience() override;
  /// After the end: the first error, or success.
  const Status& status() const { return status_; }

 private:
  struct Queue {
    std::vector<const CallArgs*> calls;
    std::size_t next = 0;
    PointToPointCall* running = nullptr;
  };

  void open();
  executor::Progress advance_calls();
  executor::Progress advance_over_hosts(Bridge& bridge);
  executor::Progress idle(Bridge& bridge);
  int awaited();
  bool has_message() const;
  Queue& queue_for(const CallArgs& call);
  std::span<Queue> queues() { return {queues_.data(), queue_count_}; }
  void copy_to_self();
  executor::Progress advance_collectives();
  bool has_lent();
  void start_next(Queue& queue);
  executor::Progress advance_queue(Queue& queue);
  void keep(const Status& status);

  Communicator& comm_;
  const Turn turn_;
  bool open_ = false;
  std::chrono::steady_clock::time_point idle_since_;  ///< over hosts: nothing has moved since
  Sending sending_;
  executor::Progress ended_ =
      executor::Progress::kBlocked;  ///< over hosts: what the calls came to while not all is sent
  std::deque<CallArgs> copies_;
  std::vector<const CallArgs*> collectives_;
  std::size_t next_collective_ = 0;
  bool collective_running_ = false;
  std::vector<Queue> queues_;  ///< the first queue_count_ are of this batch, those of sends before all others
  std::size_t queue_count_ = 0;
  std::size_t send_queues_ = 0;
  std::vector<const CallArgs*> self_sends_;
  std::vector<const CallArgs*> self_receives_;
  Status status_;
};

}  // namespace tutti::comm
