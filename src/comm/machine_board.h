// The part of the control segment in which ranks tell each other where they sit and what they see, and in which the merged graph of
// one host lies once somebody has made it. What is read here is checked: it is other processes' writing.
//
// Over hosts every rank has a board of its own, to which the others' parts are carried (told_of_seat, told_of_look): there looks have places of their
// own, and each rank merges for itself.
#pragma once

#include "base/result.h"
#include "planner/seats.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::comm {

/// The network interface that a rank reaches other hosts through.
struct Port {
  std::string interface;  ///< empty: not known
  int megabits = 0;       ///< its speed in one direction; 0: not known
  bool loopback = false;  ///< the others are on the same machine

  friend bool operator==(const Port&, const Port&) = default;
};

/// What a rank says beside its seat.
struct Manners {
  std::uint64_t outlook = 0;   ///< a hash of what it sees of the machine
  bool wants_machine = false;  ///< somebody wants the graph while communicators are made
  bool has_file = false;       ///< NCCL_TOPO_FILE is set
  Port port;                   ///< over hosts
  std::uint64_t kernel =
      0;  ///< which one it runs on, by boot: hosts of one kernel share processors (containers); 0: not known
};

/// What came of a rank's look at its machine.
enum class LookOutcome : std::uint8_t { kNone, kSeen, kTooLarge, kNoPlugIn, kFailed };

class MachineBoard {
 public:
  /// For all looks and the merged graph, and more where ranks are many. Pages that nobody writes take no memory.
  static constexpr std::size_t kTextBytes = std::size_t{2} << 20;
  static constexpr std::size_t kTextBytesPerRank = std::size_t{64} << 10;
  /// A seat's list of processors; a longer one is not told.
  static constexpr std::size_t kListBytes = 208;

  static std::size_t bytes_for(int ranks);
  /// `memory`: bytes_for(ranks) zeros, shared by the ranks, aligned to 64.
  MachineBoard(std::byte* memory, int ranks) : memory_(memory), ranks_(ranks) {}

  /// Before all ranks have met: this rank's own.
  void sit(int rank, const planner::Seat& seat, const Manners& manners) const;
  /// Afterwards.
  planner::Seat seat(int rank) const;
  Manners manners(int rank) const;

  /// This rank's graph, as text. kSystem: no room.
  Status put_look(int rank, std::string_view graph) const;
  /// The same over hosts, where the rank is the `place`-th of so many that look: each has as much room. kSystem: it is longer than that.
  Status put_look(int rank, std::string_view graph, int place, int places) const;
  /// Of a rank that has looked in vain.
  void put_outcome(int rank, LookOutcome outcome) const;
  /// Once all ranks have met again: empty if the rank has not looked. kInternal: what it says lies outside of the board.
  Result<std::string> look(int rank) const;
  LookOutcome outcome(int rank) const;
  /// Over hosts: the bytes that the rank has written, for the others' boards. What seat() and manners() read, and what it has seen.
  std::span<const std::byte> told_of_seat(int rank) const;
  std::vector<std::span<const std::byte>> told_of_look(int rank) const;

  enum class Merging : std::uint64_t { kNobody, kUnderWay, kDone };
  Merging merging() const;
  /// True: the caller makes the merged graph, and then calls publish or give_up.
  bool claim() const;
  void publish(std::string_view graph) const;
  void give_up() const;
  /// Only after Merging::kDone.
  Result<std::string> merged() const;

  /// Before all ranks meet again, by rank 0 of one host: the trees of the machine's plan (algorithm/planned_trees.h). kSystem: no room.
  Status put_trees(std::string_view text) const;
  /// Afterwards; empty: there are none.
  Result<std::string> trees() const;

  /// What the memory gives, by whoever measured it first: 0 if nobody has.
  double memory_gbps() const;
  void keep_memory_gbps(double gbps) const;

 private:
  struct Header;
  struct Record;
  Header& header() const;
  Record& record(int rank) const;
  std::byte* text() const;
  std::size_t text_bytes() const;
  Status keep_look(int rank, std::string_view graph, std::size_t at, std::size_t room) const;
  /// Where `bytes` may be written, or npos.
  std::size_t take_room(std::size_t bytes) const;
  Result<std::string> text_at(std::uint64_t offset, std::uint64_t bytes) const;

  std::byte* memory_;
  int ranks_;
};

}  // namespace tutti::comm
