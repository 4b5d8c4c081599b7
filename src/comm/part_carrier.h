// What rails (rails.h) need of the network: parts of a call's data that go from rank to rank with its lines, or before them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::comm {

class PartCarrier {
 public:
  PartCarrier() = default;
  virtual ~PartCarrier() = default;
  PartCarrier(const PartCarrier&) = delete;
  PartCarrier& operator=(const PartCarrier&) = delete;

  /// Bytes of this rank's call of that number for a peer, where they are waited for as `part`; none: the word that there is no such part. They
  /// stay as they are until all is sent.
  virtual void send_part(int peer, std::uint32_t number, std::uint32_t part, const void* bytes, std::size_t size) = 0;
  /// The lines of that call which this rank carries to the peer go with such a part, and wait for it.
  virtual void hold_lines(int peer, std::uint32_t number) = 0;
  /// While lines are waited for as well: from whom such a part is; -1: from nobody.
  virtual void await_part(int peer) = 0;
  /// Where what comes as that part goes, which nobody sends before all ranks are in the call.
  virtual void expect_part(std::uint32_t number, std::uint32_t part, std::size_t bytes, void* place) = 0;
  /// What came, the call's to write; nullptr: nothing yet.
  virtual std::byte* part_of(std::uint32_t number, std::uint32_t part, std::size_t bytes) const = 0;
  /// The part, of whatever length, or the word that there is none has come.
  virtual bool has_part(std::uint32_t number, std::uint32_t part) const = 0;
};

}  // namespace tutti::comm
