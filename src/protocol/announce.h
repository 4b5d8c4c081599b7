// Announce lines: what every rank opens a call with, and every other rank reads: 64 bytes, or more that carry the call's whole
// input. Tiny calls carry it in the line itself; small ones beside the line, where all buffers are private. Such a call is finished
// by its announcements.
//
//   writer                                            readers
//   input, or buffers, or both, of line s % depth
//   word = s << 32 | fingerprint  (release) ------->  wait until the word's number is s   (acquire)
//                                                     read the rest of the line, and what it carries
//
// Why it is right (docs/memory-model.md has the same numbers):
//  A1. The word is stored last (release) and loaded first (acquire): whoever sees number s sees the line of s.
//  A2. Two lines per writer, by turns, are enough: a rank writes line s + 2 only after it has read everybody's line s + 1, which
//      each of them wrote only after it had read everybody's line s. So nobody still reads line s, nor the input that it carries:
//      that is read before the call ends. There are more than two so that a writer can get hold of line s + 1 (prepare_write)
//      while others may still read line s - 1.
// Between two ranks (send and receive) it is much the same: pair.h.
#pragma once

#include "base/device_call.h"
#include "base/dtype.h"
#include "base/reduce.h"

#include <cstddef>
#include <cstdint>

namespace tutti::protocol {

/// Where a buffer is, for peers that reach it themselves.
struct BufferReference {
  std::uint64_t address;  ///< in the announcing process (private memory), or the inode of its memfd (shared)
  std::uint64_t offset;   ///< shared: within the allocation
};
struct BufferReferences {
  BufferReference input;
  BufferReference output;
  std::int32_t input_fd;  ///< shared: the memfd's number in the announcing process; private: -1
  std::int32_t output_fd;
  std::uint64_t scale;  ///< PreMulSum: one element of the data type
  std::uint32_t flags;  ///< kInPlace, ...
  std::uint32_t reserved;
};
inline constexpr std::uint32_t kInPlace = 1;  ///< input and output are the same memory
inline constexpr std::uint32_t kMappable =
    2;  ///< every buffer that the call uses at this rank is in a shared allocation
inline constexpr std::uint32_t kCarried = 4;  ///< the rank's input lies beside the line (AnnounceBoard::carried)

/// Announce lines of a rank, used by turns.
inline constexpr std::uint32_t kAnnounceDepth = 4;

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
  std::byte* inputs = nullptr;  ///< carried ones
  std::size_t input_bytes = 0;  ///< the most that one may have

  TUTTI_DEVICE_CALL std::size_t index(std::uint32_t rank, std::uint32_t sequence) const {
    return std::size_t{sequence % kAnnounceDepth} * ranks + rank;
  }
  TUTTI_DEVICE_CALL AnnounceLine& line(std::uint32_t rank, std::uint32_t sequence) const {
    return lines[index(rank, sequence)];
  }
  TUTTI_DEVICE_CALL std::byte* carried(std::uint32_t rank, std::uint32_t sequence) const {
    return inputs + index(rank, sequence) * input_bytes;
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

/// One rank's wait for the announcements of a call of all ranks.
class Gathering {
 public:
  TUTTI_DEVICE_CALL void start(std::uint32_t sequence, std::uint64_t own_word) {
    sequence_ = sequence;
    own_word_ = own_word;
    unseen_ = 0;
    all_equal_ = true;
  }
  /// True when all have announced this call, or a different one of the same number.
  template <class Machine>
  TUTTI_DEVICE_CALL bool advance(Machine& m, const AnnounceBoard& board) {
    for (; unseen_ < board.ranks; ++unseen_) {
      const std::uint64_t word = announced_word(m, board.line(unseen_, sequence_), sequence_);
      if (word == 0) return false;
      all_equal_ = all_equal_ && word == own_word_;
    }
    return true;
  }
  TUTTI_DEVICE_CALL bool all_equal() const { return all_equal_; }
  /// All ranks below have announced.
  TUTTI_DEVICE_CALL std::uint32_t unseen() const { return unseen_; }

 private:
  std::uint32_t sequence_ = 0;
  std::uint64_t own_word_ = 0;
  std::uint32_t unseen_ = 0;
  bool all_equal_ = true;
};

/// A call that its announcements finish: every rank's input is the payload of its line, or carried beside it.
struct AnnouncedCall {
  Collective collective = Collective::kAllReduce;
  std::uint32_t rank = 0;
  std::uint32_t root = 0;
  std::uint32_t sequence = 0;
  std::uint32_t element_bytes = 1;
  bool carried = false;
  std::size_t count = 0;  ///< elements of a block
  int divisor = 0;        ///< average
  std::byte* output = nullptr;
  const void** sources = nullptr;  ///< workspace, as many as there are ranks
};

namespace detail {

TUTTI_DEVICE_CALL inline const std::byte* announced_input(const AnnounceBoard& board, const AnnouncedCall& call,
                                                          std::uint32_t rank) {
  return call.carried ? board.carried(rank, call.sequence) : board.line(rank, call.sequence).payload;
}

/// Sums the blocks at `offset` of all inputs in rank order. In lines whole vectors are summed, behind the block too, and left
/// there.
template <class Machine>
TUTTI_DEVICE_CALL void fold_announced(Machine& m, const AnnounceBoard& board, const AnnouncedCall& call,
                                      std::size_t offset) {
  alignas(64) std::byte sum[kAnnouncePayloadBytes + kAnnounceVectorBytes];
  for (std::uint32_t r = 0; r < board.ranks; ++r) call.sources[r] = announced_input(board, call, r) + offset;
  const std::size_t bytes = call.count * call.element_bytes;
  const std::size_t whole =
      call.carried ? bytes : (bytes + kAnnounceVectorBytes - 1) / kAnnounceVectorBytes * kAnnounceVectorBytes;
  void* destination = whole == bytes ? call.output : sum;
  m.reduce({call.sources, static_cast<int>(board.ranks), &destination, 1, whole / call.element_bytes, nullptr,
            call.divisor});
  if (whole != bytes) m.store_bytes(call.output, sum, bytes);
}

}  // namespace detail

/// After Gathering has found all lines: writes this rank's output. One-shot's results, bit for bit.
template <class Machine>
TUTTI_DEVICE_CALL void finish_announced(Machine& m, const AnnounceBoard& board, const AnnouncedCall& call) {
  const std::size_t bytes = call.count * call.element_bytes;
  const bool at_root = call.rank == call.root;
  const auto copy_block = [&](std::uint32_t from, std::size_t block, std::size_t to) {
    m.load_bytes(call.output + to * bytes, detail::announced_input(board, call, from) + block * bytes, bytes);
  };
  switch (call.collective) {
    case Collective::kAllReduce: return detail::fold_announced(m, board, call, 0);
    case Collective::kReduce: return at_root ? detail::fold_announced(m, board, call, 0) : void();
    case Collective::kReduceScatter: return detail::fold_announced(m, board, call, call.rank * bytes);
    case Collective::kBroadcast: return copy_block(call.root, 0, 0);
    case Collective::kScatter: return copy_block(call.root, call.rank, 0);
    case Collective::kAllGather:
    case Collective::kGather:
      for (std::uint32_t r = 0; r < board.ranks; ++r) {
        if (at_root || call.collective == Collective::kAllGather) copy_block(r, 0, r);
      }
      return;
    case Collective::kAllToAll:
      for (std::uint32_t r = 0; r < board.ranks; ++r) copy_block(r, call.rank, r);
      return;
    case Collective::kSend:
    case Collective::kReceive: return;  // between two ranks: the line itself
  }
}

}  // namespace tutti::protocol
