// ByteStream: moves bytes, in order and whole, between two ranks that share no memory. What carries calls between hosts is written
// against this; TCP implements it (comm/tcp_stream.h, comm/striped_stream.h), and MPI (mpi_link.h).
#pragma once

#include <cstddef>
#include <span>

#include <sys/uio.h>

namespace tutti::transport {

class ByteStream {
 public:
  enum class State { kOpen, kEnded };
  struct Moved {
    std::size_t bytes = 0;  ///< 0 and open: nothing can be moved now
    State state = State::kOpen;
    std::span<const std::byte> kept =
        {};  ///< of receive(), which then filled nothing: what has come, where it lies until the next one
  };

  virtual ~ByteStream() = default;
  /// Takes a prefix of the parts; never waits.
  virtual Moved send(std::span<const iovec> parts) = 0;
  /// The same of bytes that stay as they are until is_released().
  virtual Moved send_lent(std::span<const iovec> parts) { return send(parts); }
  /// From how many bytes on they may go from where they lie; fewer, and where this is the largest number, send_lent() only copies.
  virtual std::size_t lends_from() const { return ~std::size_t{0}; }
  /// Whether all that was lent may be written again. Never waits.
  virtual bool is_released() { return true; }
  /// Fills a prefix of the parts, or shows what has come (`kept`); never waits.
  virtual Moved receive(std::span<const iovec> parts) = 0;
  /// Nothing more will be sent. The other side takes in what was, and then finds the end.
  virtual void finish() = 0;
  /// After finish(): whether everything sent has reached the other side's host.
  virtual bool has_arrived() const = 0;
  /// Whether both ends are on one system: what crosses no network need not be paced.
  virtual void settle_pacing([[maybe_unused]] bool one_system) {}
  /// To be polled for input, or -1.
  virtual int descriptor() const = 0;
  /// To be polled for output, or -1.
  virtual int output_descriptor() const { return descriptor(); }
};

}  // namespace tutti::transport
