// MpiAllReduce: a long all-reduce among hosts of one rank each whose network is MPI's. Each rank adds up one share of the buffers, in pieces:
//
//   inputs of all ranks ---- shares ---> memory of the library's, at the rank whose share it is
//   which adds up, in rank order, into its output ---- sums ---> memory of the library's, at all others ---> their outputs
//
// Messages leave from the callers' buffers. A rank sends 2 (n-1)/n of the bytes, as by a ring, in two steps instead of 2 (n-1).
//
// Why it is right:
//  A1. All ranks have announced the same call before one posts anything: each message meets its receive, which is as long.
//  A2. Shares and sums have tags of their own, and between two ranks those of one tag are posted piece by piece on both sides (M5 of
//      transport/mpi_service.h): a piece is added up when the one before it has been, whatever comes first. A rank that is through with a call has
//      met all receives of its sends, so that those of the next call come behind them.
//  A3. A piece is over when all its messages are. Only so many are under way at a time, each with memory of its own.
//  A4. What comes is written to the caller's output by this rank, not by MPI: what MPI may still receive when a call has failed goes to memory
//      of the library's, which it keeps then. In place a sum is written over the input when MPI is done with that.
//  A5. A call that is over has nothing under way. One that fails waits a little for what MPI has begun to send, which the other side takes in
//      as long as it waits, too: afterwards MPI reads the buffer only if that rank has stopped, and goes on later.
#pragma once

#include "comm/rails.h"
#include "executor/host_machine.h"
#include "transport/mpi_service.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace tutti::comm {

class MpiAllReduce {
 public:
  /// Among more ranks messages are short, and many.
  static constexpr int kRanksMax = 16;
  /// From where it pays, by what was measured: two ranks need no more messages otherwise (far_inputs.h), and of more shares travel with the
  /// lines as long as they fit (RailPlan::shares).
  static constexpr std::size_t from_bytes(int ranks) {
    return ranks == 2 ? std::size_t{512} << 10 : static_cast<std::size_t>(ranks) * RailRoom::kEarlyShareMax + 1;
  }

  MpiAllReduce(std::shared_ptr<transport::MpiNetwork> mpi, int ranks, int rank);
  /// What is under way stays with MPI (give_up(false)).
  ~MpiAllReduce();
  MpiAllReduce(const MpiAllReduce&) = delete;
  MpiAllReduce& operator=(const MpiAllReduce&) = delete;

  struct Call {
    const void* input = nullptr;
    void* output = nullptr;
    std::size_t count = 0;
    std::size_t element_bytes = 0;
    int divisor = 0;  ///< 0: none
  };
  /// When all ranks have announced it. The machine has its operation.
  void begin(const Call& call);
  /// Goes on as far as what is there allows; true if that was something. Does not look for the communicator's failure.
  bool advance(executor::HostMachine& machine);
  bool is_over() const { return first_ == pieces_; }
  /// The rank whose message is missing; -1: none is.
  int waiting_for() const;
  /// Of what MPI has refused; empty: nothing.
  const std::string& problem() const { return problem_; }
  /// The call has failed. `may_ask`: MPI may be called. True: MPI may still read the caller's buffer.
  bool give_up(bool may_ask);

  /// By the last call so far.
  std::size_t sent_bytes() const { return sent_bytes_; }

 private:
  using Message = std::unique_ptr<transport::MpiMessage>;
  using Messages = std::vector<Message>;  ///< by rank; nullptr: there is none, or it is over
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  /// Elements.
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  struct Piece {
    std::size_t number = 0;
    bool is_summed = false;
    std::size_t lines = 0;           ///< of the memory: for the longest piece so far
    std::unique_ptr<Line[]> memory;  ///< for each other rank's input of this rank's share, and its sum
    Messages shares_in;
    Messages shares_out;
    Messages sums_in;
    Messages sums_out;
  };
  static constexpr std::size_t kPieces = 8;

  Range range(int share, std::size_t piece) const;
  std::byte* input(const Range& range) const;
  std::byte* output(const Range& range) const;
  std::byte* place(const Piece& piece, int peer, bool of_sum) const;
  Piece& piece(std::size_t number) { return under_way_[number % kPieces]; }
  Message post(int peer, transport::MpiDirection direction, std::byte* data, const Range& range, transport::MpiUse use);
  bool is_over(Message& message);
  bool are_over(Messages& messages, bool* moved);
  void begin_piece(Piece& piece);
  void add_up(Piece& piece, executor::HostMachine& machine);
  bool take_sums(Piece& piece, executor::HostMachine& machine);
  static void keep(std::unique_ptr<Line[]> memory);
  template <class Visit>
  void visit_under_way(const Visit& visit);

  const std::shared_ptr<transport::MpiNetwork> mpi_;
  const int ranks_;
  const int rank_;
  Call call_;
  std::size_t share_ = 0;   ///< elements, of all shares but the last ones
  std::size_t length_ = 0;  ///< elements, of a piece
  std::size_t pieces_ = 0;
  std::size_t place_lines_ = 0;  ///< of a message's place
  std::size_t first_ = 0;        ///< the first that is not over
  std::size_t next_ = 0;         ///< the first that has not begun
  Piece under_way_[kPieces];
  std::vector<const void*> sources_;
  std::size_t sent_bytes_ = 0;
  std::string problem_;
};

}  // namespace tutti::comm
