// Announce lines: what every rank opens a call with: 64 bytes, or more that carry the call's whole input. Tiny calls carry it in the
// line itself; small ones beside the line, where all buffers are private. Such a call is finished by its announcements. If it is
// rooted as well it is one-way: a rank reads the lines that hold what it needs, and no others, and goes on.
//
//   writer                                            reader
//   wait until all others have announced
//   s - depth + 1 or later         (acquire) <------. (in calls that read all lines, that was seen there)
//   input, or buffers, or both, of line s % depth   |
//   word = s << 32 | history       (release) -----> | wait until the word's number is s   (acquire)
//                                                   | read the rest of the line, and what it carries
//                                                   '-announce s + 1, when call s is over (release)
//
// Why it is right (docs/memory-model.md has the same numbers):
//  A1. The word is stored last (release) and loaded first (acquire): whoever sees number s sees the line of s.
//  A2. A rank writes line s over line s - depth once it has acquired a word of number s - depth + 1 or later from every other rank.
//      Each of them released that after its call s - depth was over, with all that it read of line s - depth. No word can
//      be missed: line n of a rank that waits for room is there until all others have announced n + 1.
//  A5. Nobody waits for ever: of the ranks with the lowest number none waits for room, as all others have announced what it asks
//      for, nor for a line of a rank that has a higher number.
//  A6. Calls that differ are noticed, though not all compare their words in every call: the word's history is a hash of all calls so
//      far, and whoever waits for room compares it too.
// Between two ranks (send and receive) it is much the same: pair.h has A3 and A4.
#pragma once

#include "base/device_call.h"
#include "base/dtype.h"
#include "base/reduce.h"

#include <cstddef>
#include <cstdint>

namespace tutti::protocol {

/// Where a buffer is, for peers that reach it themselves.
struct BufferReference {
  std::uint64_t address;  ///< in the announcing process (private memory), or which file it lies in (shared)
  std::uint64_t offset;   ///< shared: within the allocation

  bool operator==(const BufferReference&) const = default;
};
struct BufferReferences {
  BufferReference input;
  BufferReference output;
  std::int32_t input_fd;  ///< shared: the memfd's number in the announcing process; private: -1
  std::int32_t output_fd;
  std::uint64_t scale;     ///< PreMulSum: one element of the data type
  std::uint32_t flags;     ///< kInPlace, ...
  std::uint32_t reserved;  ///< another number once the rank's process has freed shared memory

  bool operator==(const BufferReferences&) const = default;
};
inline constexpr std::uint32_t kInPlace = 1;  ///< input and output are the same memory
inline constexpr std::uint32_t kMappable =
    2;  ///< every buffer that the call uses at this rank is in a shared allocation
inline constexpr std::uint32_t kCarried = 4;  ///< the rank's input lies beside the line (AnnounceBoard::carried)
/// Of who receives, or rank 0: which way all take in this call (comm/way_choice.h), a number of two bits.
inline constexpr std::uint32_t kWayShift = 3;
inline constexpr std::uint32_t kWayBits = 3u << kWayShift;
/// A receiver's: which one it means to take in the next call like this.
inline constexpr std::uint32_t kNextWayShift = 5;
inline constexpr std::uint32_t kNextWayBits = 3u << kNextWayShift;
/// A receiver's: it sends in the same group.
inline constexpr std::uint32_t kExchanges = 1u << 7;

/// Announce lines of a rank, used by turns: how many one-way calls it can be ahead of others.
inline constexpr std::uint32_t kAnnounceDepth = 16;

/// The largest payload, and what is left free behind it, so that whole vectors can be read.
inline constexpr std::size_t kAnnouncePayloadBytes = 512;
inline constexpr std::size_t kAnnounceVectorBytes = 64;

struct alignas(64) AnnounceLine {
  std::uint64_t word;
  union {
    std::byte payload[kAnnouncePayloadBytes + kAnnounceVectorBytes];  ///< small calls: the input itself
    BufferReferences buffers;
  };
};
static_assert(sizeof(std::uint64_t) + sizeof(BufferReferences) == 64);
static_assert(sizeof(AnnounceLine) % 64 == 0);

/// What a line may carry among so many ranks: each reads the lines of all, so that many ranks leave less for each.
TUTTI_DEVICE_CALL constexpr std::size_t announce_payload_bytes(int ranks) {
  return ranks <= 16 ? kAnnouncePayloadBytes : sizeof(BufferReferences);
}
/// The same of what is carried beside a line; 0: nothing is.
TUTTI_DEVICE_CALL constexpr std::size_t carried_bytes_max(int ranks) {
  return ranks > 16 ? 0 : ranks > 8 ? 2 << 10 : ranks > 4 ? 4 << 10 : 8 << 10;
}
/// And of that in one-way calls: nobody reads all inputs at once but the root, and the sooner a rank goes on, the better.
TUTTI_DEVICE_CALL constexpr std::size_t one_way_bytes_max(int ranks) {
  return ranks > 4 ? carried_bytes_max(ranks) : 64 << 10;
}

/// From one place beside the lines to the next: not a power of two, or short inputs would all lie in the same few sets of the innermost
/// cache.
TUTTI_DEVICE_CALL constexpr std::size_t carried_stride(int ranks) {
  return one_way_bytes_max(ranks) == 0 ? 0 : one_way_bytes_max(ranks) + 5 * 64;
}

/// `fingerprint`: of the call, or of all calls so far.
TUTTI_DEVICE_CALL constexpr std::uint64_t announce_word(std::uint32_t sequence, std::uint32_t fingerprint) {
  return std::uint64_t{sequence} << 32 | fingerprint;
}
TUTTI_DEVICE_CALL constexpr std::uint32_t sequence_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

/// The announce lines of a communicator, and the room beside them: kAnnounceDepth per rank.
struct AnnounceBoard {
  AnnounceLine* lines = nullptr;
  std::uint32_t ranks = 0;
  std::byte* inputs = nullptr;   ///< carried ones
  std::size_t input_stride = 0;  ///< from one to the next

  TUTTI_DEVICE_CALL std::size_t index(std::uint32_t rank, std::uint32_t sequence) const {
    return std::size_t{sequence % kAnnounceDepth} * ranks + rank;
  }
  TUTTI_DEVICE_CALL AnnounceLine& line(std::uint32_t rank, std::uint32_t sequence) const {
    return lines[index(rank, sequence)];
  }
  TUTTI_DEVICE_CALL std::byte* carried(std::uint32_t rank, std::uint32_t sequence) const {
    return inputs + index(rank, sequence) * input_stride;
  }
};

template <class Machine>
TUTTI_DEVICE_CALL void announce_buffers(Machine& m, AnnounceLine& line, const BufferReferences& buffers) {
  m.store_bytes(&line.buffers, &buffers, sizeof buffers);
}
/// After the line's content: others may read it now.
template <class Machine>
TUTTI_DEVICE_CALL void publish(Machine& m, AnnounceLine& line, std::uint64_t word) {
  m.store_release(&line.word, word);
}
/// The word, if the line is that of call `sequence`, else 0: wait.
template <class Machine>
TUTTI_DEVICE_CALL std::uint64_t announced_word(Machine& m, const AnnounceLine& line, std::uint32_t sequence) {
  const std::uint64_t word = m.load_acquire(&line.word);
  return sequence_of(word) == sequence ? word : 0;
}
/// Only of a line that announced_word() has found.
template <class Machine>
TUTTI_DEVICE_CALL BufferReferences announced_buffers(Machine& m, const AnnounceLine& line) {
  BufferReferences buffers;
  m.load_bytes(&buffers, &line.buffers, sizeof buffers);
  return buffers;
}

/// The ranks first .. end - 1, whose lines a rank reads in a call.
struct LinesRead {
  std::uint32_t first = 0;
  std::uint32_t end = 0;

  TUTTI_DEVICE_CALL constexpr bool has(std::uint32_t rank) const { return first <= rank && rank < end; }
};
/// Of a one-way call: what has this rank's output in it.
TUTTI_DEVICE_CALL constexpr LinesRead lines_read_one_way(Collective collective, std::uint32_t rank, std::uint32_t root,
                                                         std::uint32_t ranks) {
  if (reduces(collective) || collective == Collective::kGather) return {0, rank == root ? ranks : 0};
  return rank == root ? LinesRead{0, 0} : LinesRead{root, root + 1};
}

/// Whether a rank's line may be written.
enum class Room : std::uint8_t {
  kThere,
  kNotYet,
  kDiffers,  ///< a rank has made other calls than this one
};

/// One rank's announcements and what it knows of the others', from call to call. For each call of all ranks: begin(), wait for
/// room(), write the line, publish(), and advance() until all that is read is there.
class Announcer {
 public:
  TUTTI_DEVICE_CALL Announcer(const AnnounceBoard& board, std::uint32_t rank) : board_(board), rank_(rank) {}

  TUTTI_DEVICE_CALL void begin(std::uint32_t sequence, std::uint32_t fingerprint, LinesRead reads) {
    sequence_ = sequence;
    // For any call, other histories stay other ones: each step can be undone.
    history_ = ((history_ << 5 | history_ >> 27) ^ fingerprint) * 2654435761u;
    reads_ = reads;
    unseen_ = 0;
    all_equal_ = true;
  }
  template <class Machine>
  TUTTI_DEVICE_CALL Room room(Machine& m) {
    return has_room(sequence_) ? Room::kThere : look_for_room(m);
  }
  TUTTI_DEVICE_CALL AnnounceLine& line() const { return board_.line(rank_, sequence_); }
  /// After the line's content: others may read it now.
  template <class Machine>
  TUTTI_DEVICE_CALL void publish(Machine& m) {
    unseen_ = reads_.first;
    protocol::publish(m, line(), word());
  }
  /// After publish(): whether the next line is known to be free too, and may be asked for.
  TUTTI_DEVICE_CALL bool has_room_for_next() const { return has_room(sequence_ + 1); }
  /// True when those whose lines are read have announced this call, or a different one of the same number.
  template <class Machine>
  TUTTI_DEVICE_CALL bool advance(Machine& m) {
    const AnnounceLine* const lines = &board_.line(0, sequence_);
    for (; unseen_ < reads_.end; ++unseen_) {
      if (unseen_ == rank_) continue;
      const std::uint64_t found = m.load_acquire(&lines[unseen_].word);
      if (found == word()) continue;
      if (sequence_of(found) != sequence_) return false;
      all_equal_ = false;
    }
    // One other rank is everybody where there are two.
    if (all_equal_ && reads_.end - reads_.first + 1 >= board_.ranks) met_ = sequence_;
    return true;
  }

  TUTTI_DEVICE_CALL bool all_equal() const { return all_equal_; }
  /// The rank that is waited for: for room until publish(), then for its line. After Room::kDiffers: the one that differs.
  TUTTI_DEVICE_CALL std::uint32_t unseen() const { return unseen_; }
  TUTTI_DEVICE_CALL std::uint32_t sequence() const { return sequence_; }
  TUTTI_DEVICE_CALL LinesRead reads() const { return reads_; }
  TUTTI_DEVICE_CALL const AnnounceBoard& board() const { return board_; }
  /// All ranks have made this call and all before it, and the same ones.
  TUTTI_DEVICE_CALL std::uint32_t met() const { return met_; }
  /// All ranks know that their calls of this number differ, and go on.
  TUTTI_DEVICE_CALL void forget_history() {
    history_ = 0;
    met_ = sequence_;
  }

 private:
  TUTTI_DEVICE_CALL std::uint64_t word() const { return announce_word(sequence_, history_); }
  TUTTI_DEVICE_CALL bool has_room(std::uint32_t sequence) const { return sequence - met_ < kAnnounceDepth; }

  /// Who has run out of room waits for half of it, so that others' lines, which they are about to write, are seldom looked at.
  template <class Machine>
  TUTTI_DEVICE_CALL Room look_for_room(Machine& m) {
    const std::uint32_t wanted = sequence_ - kAnnounceDepth / 2;
    for (; unseen_ < board_.ranks; ++unseen_) {
      if (unseen_ == rank_) continue;
      std::uint32_t at = wanted;
      std::uint64_t found = m.load_acquire(&board_.line(unseen_, at).word);
      if (static_cast<std::int32_t>(sequence_of(found) - at) > 0) {
        at = sequence_ - 1;  // it is ahead: its line before this one is there until this rank has announced
        found = m.load_acquire(&board_.line(unseen_, at).word);
      }
      if (sequence_of(found) != at) return Room::kNotYet;
      if (found != m.load_word(&board_.line(rank_, at).word)) return Room::kDiffers;
    }
    met_ = wanted;
    return Room::kThere;
  }

  AnnounceBoard board_;
  std::uint32_t rank_;
  std::uint32_t sequence_ = 0;
  std::uint32_t history_ = 0;
  std::uint32_t met_ = 0;
  LinesRead reads_;
  std::uint32_t unseen_ = 0;
  bool all_equal_ = true;
};

/// A call that its announcements finish: every rank's input is the payload of its line, or carried beside it.
struct AnnouncedCall {
  Collective collective = Collective::kAllReduce;
  std::uint32_t rank = 0;
  std::uint32_t root = 0;
  std::uint32_t sequence = 0;
  bool carried = false;
  std::size_t block_bytes = 0;
  /// Elements of a block, or more: in lines whole vectors are summed, behind the block too, and left there.
  std::size_t summed = 0;
  std::size_t summed_bytes = 0;
  int divisor = 0;  ///< average
  std::byte* output = nullptr;
  const std::byte* own_input = nullptr;  ///< this rank's own, if it need not be with its line; else nullptr
  const void** sources = nullptr;        ///< workspace, as many as there are ranks

  /// `carried` is set.
  TUTTI_DEVICE_CALL void set_block(std::size_t count, std::size_t element_bytes) {
    block_bytes = count * element_bytes;
    const std::size_t vectors = (block_bytes + kAnnounceVectorBytes - 1) / kAnnounceVectorBytes;
    summed_bytes = carried ? block_bytes : vectors * kAnnounceVectorBytes;
    summed = summed_bytes / element_bytes;
  }
};

namespace detail {

/// Where the ranks' inputs lie: the first one's, and how far behind it the next one's.
struct AnnouncedInputs {
  const std::byte* first;
  std::size_t stride;
};
TUTTI_DEVICE_CALL inline AnnouncedInputs announced_inputs(const AnnounceBoard& board, const AnnouncedCall& call) {
  if (call.carried) return {board.carried(0, call.sequence), board.input_stride};
  return {board.line(0, call.sequence).payload, sizeof(AnnounceLine)};
}

TUTTI_DEVICE_CALL inline const std::byte* announced_input(const AnnounceBoard& board, const AnnouncedCall& call,
                                                          std::uint32_t rank) {
  if (rank == call.rank && call.own_input != nullptr) return call.own_input;
  const AnnouncedInputs inputs = announced_inputs(board, call);
  return inputs.first + rank * inputs.stride;
}

/// Sums the blocks at `offset` of all inputs in rank order.
template <class Machine>
[[gnu::hot]] TUTTI_DEVICE_CALL void fold_announced(Machine& m, const AnnounceBoard& board, const AnnouncedCall& call,
                                                   std::size_t offset) {
  alignas(64) std::byte sum[kAnnouncePayloadBytes + kAnnounceVectorBytes];
  const AnnouncedInputs inputs = announced_inputs(board, call);
  const std::byte* source = inputs.first + offset;
  for (std::uint32_t r = 0; r < board.ranks; ++r, source += inputs.stride) call.sources[r] = source;
  if (call.own_input != nullptr) call.sources[call.rank] = call.own_input + offset;
  const bool exact = call.summed_bytes == call.block_bytes;
  void* destination = exact ? call.output : sum;
  m.reduce({call.sources, static_cast<int>(board.ranks), &destination, 1, call.summed, nullptr, call.divisor});
  if (!exact) m.store_bytes(call.output, sum, call.block_bytes);
}

}  // namespace detail

/// After Announcer::advance() has found all lines that it reads: writes this rank's output. One-shot's results, bit for bit.
template <class Machine>
[[gnu::hot]] TUTTI_DEVICE_CALL void finish_announced(Machine& m, const AnnounceBoard& board,
                                                     const AnnouncedCall& call) {
  const std::size_t bytes = call.block_bytes;
  const bool at_root = call.rank == call.root;
  const auto copy_block = [&](std::uint32_t from, std::size_t block, std::size_t to) {
    const std::byte* const input = detail::announced_input(board, call, from) + block * bytes;
    if (input != call.output + to * bytes) m.load_bytes(call.output + to * bytes, input, bytes);
  };
  // What lies in others' caches takes longer to come, and this rank's own is copied meanwhile.
  const auto copy_others_first = [&](const auto& copy_of) {
    for (std::uint32_t r = call.rank + 1; r < board.ranks; ++r) copy_of(r);
    for (std::uint32_t r = 0; r <= call.rank; ++r) copy_of(r);
  };
  switch (call.collective) {
    case Collective::kAllReduce: return detail::fold_announced(m, board, call, 0);
    case Collective::kReduce: return at_root ? detail::fold_announced(m, board, call, 0) : void();
    case Collective::kReduceScatter: return detail::fold_announced(m, board, call, call.rank * bytes);
    case Collective::kBroadcast: return copy_block(call.root, 0, 0);
    case Collective::kScatter: return copy_block(call.root, call.rank, 0);
    case Collective::kAllGather:
    case Collective::kGather:
      if (at_root || call.collective == Collective::kAllGather) copy_others_first([&](auto r) { copy_block(r, 0, r); });
      return;
    case Collective::kAllToAll: return copy_others_first([&](auto r) { copy_block(r, call.rank, r); });
    case Collective::kSend:
    case Collective::kReceive: return;  // between two ranks: the line itself
  }
}

}  // namespace tutti::protocol
