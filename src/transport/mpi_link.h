// MpiLink: the messages between this rank and one other, both ways. The stream that callers have is a handle on it: a link lives on until
// MPI is done with its memory.
#pragma once

#include "transport/byte_stream.h"
#include "transport/mpi_arrivals.h"

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace tutti::transport {

/// A communicator that is freed with the last link that uses it, and what its links wait for.
class MpiOwned {
 public:
  explicit MpiOwned(MPI_Comm comm) : comm_(comm) {}
  MpiOwned(const MpiOwned&) = delete;
  MpiOwned& operator=(const MpiOwned&) = delete;
  ~MpiOwned();
  MPI_Comm get() const { return comm_; }
  MpiArrivals& arrivals() { return arrivals_; }
  /// MpiNetwork's.
  void expect_silence() { silent_ = true; }
  bool expects_silence() const { return silent_; }

 private:
  MPI_Comm comm_;
  MpiArrivals arrivals_;
  std::atomic<bool> silent_{false};
};

class MpiLink : public std::enable_shared_from_this<MpiLink> {
 public:
  using Moved = ByteStream::Moved;
  struct Advance {
    bool moved = false;
    bool sending = false;  ///< something waits for the other side to take it
    bool waits = false;    ///< that, or the other side is to end
    bool done = false;     ///< needs nobody any more
  };

  MpiLink(std::shared_ptr<MpiOwned> comm, int peer, const std::uint64_t* abort_word)
      : comm_(std::move(comm)), peer_(peer), place_(arrivals().add()), abort_word_(abort_word) {}

  Moved send(std::span<const iovec> parts);
  /// The next message, which stays until the next call.
  Moved receive();
  void finish();
  /// The last call but for advance(). Of a link that was finished, and did not fail: the rest is up to MpiProgress.
  void close();
  /// By MpiProgress.
  Advance advance();
  /// The same, when MPI ends and the other side is not waited for.
  void give_up();

 private:
  /// A slot's record that is longer goes in several. Open MPI sends so much over TCP without asking first.
  static constexpr std::size_t kMessageBytes = std::size_t{60} << 10;
  static constexpr std::size_t kMessages = 8;

  struct Message {
    std::unique_ptr<std::byte[]> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  /// Messages in the order in which they were posted: numbers first_ .. next_ are under way.
  struct Ring {
    std::array<Message, kMessages> messages;
    std::uint64_t first = 0;
    std::uint64_t next = 0;
    Message& at(std::uint64_t number) { return messages[number % kMessages]; }
    bool empty() const { return first == next; }
    bool full() const { return next - first == kMessages; }
  };

  bool may_call() const;
  bool check(int result);
  bool post_send(std::size_t bytes);
  bool post_receives();
  bool reap_sends();
  bool take_message(bool may);
  void pop_receive();
  void drop_message();
  void take_back_oldest();
  void cancel_receives();
  bool is_quiet() const;
  Advance go_on();
  void abandon();

  MpiArrivals& arrivals() { return comm_->arrivals(); }

  const std::shared_ptr<MpiOwned> comm_;
  const int peer_;
  const std::size_t place_;  ///< among the arrivals

  std::mutex mutex_;  ///< of everything below
  const std::uint64_t* abort_word_;
  Ring sends_;
  Ring receives_;
  MPI_Request end_request_ = MPI_REQUEST_NULL;
  std::size_t arrived_ = 0;  ///< bytes of the oldest receive, which is done; 0: it is not
  bool wanted_ = false;      ///< MpiProgress has it
  bool finished_ = false;
  bool closed_ = false;
  bool abandoned_ = false;  ///< MpiProgress keeps it for good
  bool ended_ = false;      ///< the other side has
  bool failed_ = false;     ///< MPI returned an error
};

}  // namespace tutti::transport
