// How a per-rank launch learns its peers' buffers: the announce lines of protocol/announce.h. Each rank keeps a copy of the whole board in
// its own memory, so that nobody polls over a link; a rank writes its line into every copy.
//
// Why a line is free when it is written: a rank reads all lines that it gets in every call, and its launches run one after the other. So who
// has seen a peer's line of call s knows that this peer is through with call s - 1, and may write it the line of s + 1, which takes the
// place of an older one than s. That holds of each pair alone: ranks that do not reach each other's memory leave each other out, and as
// calls join all ranks, one of two whose calls differ has a neighbour that finds it.
//
// Where launches do several ranks' parts there are no lines: streams have stored the same things in words before (learn_members()).
#pragma once

#include "cuda/kernel_abi.h"
#include "cuda/payload.h"
#include "cuda/waiting.h"
#include "protocol/announce.h"
#include "protocol/lines.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// What announce.h asks of a machine, for one thread.
template <class Thread>
class AnnouncingMachine {
 public:
  TUTTI_DEVICE_CALL explicit AnnouncingMachine(Thread& thread) : t_(thread) {}
  TUTTI_DEVICE_CALL std::uint64_t load_acquire(const std::uint64_t* word) { return t_.load_acquire(word); }
  TUTTI_DEVICE_CALL void store_release(std::uint64_t* word, std::uint64_t value) { t_.store_release(word, value); }
  TUTTI_DEVICE_CALL void load_bytes(void* to, const void* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes / 8; ++i) {
      const std::uint64_t word = t_.load(static_cast<const std::uint64_t*>(from) + i);
      __builtin_memcpy(static_cast<unsigned char*>(to) + i * 8, &word, 8);
    }
  }
  TUTTI_DEVICE_CALL void store_bytes(void* to, const void* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes / 8; ++i) {
      std::uint64_t word;
      __builtin_memcpy(&word, static_cast<const unsigned char*>(from) + i * 8, 8);
      t_.store(static_cast<std::uint64_t*>(to) + i, word);
    }
  }

 private:
  Thread& t_;
};
static_assert(sizeof(protocol::BufferReferences) % 8 == 0);

template <class Thread>
TUTTI_DEVICE_CALL std::uint64_t value_of(Thread& t, const Factor& factor, std::size_t element_bytes) {
  if (!factor.is_address) return factor.value;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < element_bytes; ++i) {
    value |= std::uint64_t{t.load(reinterpret_cast<const unsigned char*>(factor.value) + i)} << (8 * i);
  }
  return value;
}

// Who finds that a peer has made a call of another kind. Each kind has its own words, so both look at those of the other kind too.

/// The word of the peer's announce line for call `sequence`, or 0.
template <class Thread>
TUTTI_DEVICE_CALL std::uint64_t announced_by(Thread& t, const RankHome& home, std::uint32_t sequence,
                                             std::uint32_t peer) {
  const protocol::AnnounceBoard board{home.boards[home.rank], home.ranks, nullptr, 0};
  AnnouncingMachine<Thread> machine(t);
  return protocol::announced_word(machine, board.line(peer, sequence), sequence);
}

/// Whether the peer's header of lines call `sequence` (lines_kernel.h) is here.
template <class Thread>
TUTTI_DEVICE_CALL bool has_header(Thread& t, const RankHome& home, std::uint64_t sequence, std::uint32_t peer,
                                  std::uint32_t& fingerprint) {
  const std::uint64_t flag = protocol::LineShape{LineMemory::kTurns, 0}.flag(sequence);
  std::uint64_t words[2];
  t.load_words(home.lines[home.rank] + home.line_memory.at(home.ranks, sequence, 0, peer), words);
  fingerprint = static_cast<std::uint32_t>(words[0]);
  return words[0] >> 32 == flag && words[1] >> 32 == flag;
}

/// The peer's buffer here. False: this rank has no mapping for it, which is recorded.
template <class Thread>
TUTTI_DEVICE_CALL bool resolve(Waiting<Thread>& waiting, const RankHome& home, std::uint32_t peer,
                               const protocol::BufferReference& reference, std::uint64_t& address) {
  const PeerMappings& mappings = home.mappings[peer];
  const std::uint64_t number = reference.address & ((1u << PeerMappings::kNumberBits) - 1);
  std::uint64_t base = number == 0 ? 0 : kNoMapping;
  if (number != 0 && number < mappings.count) {
    const PeerMapping& mapping = mappings.list[number];
    if (mapping.tag == reference.address >> PeerMappings::kNumberBits) base = mapping.base;
  }
  if (base == kNoMapping) {
    waiting.fail(Failure::kNotMapped, static_cast<std::int32_t>(peer), 0, number);
    return false;
  }
  address = base + reference.offset;
  return true;
}

/// One thread per peer; each does the peer that has its index.
template <class Thread>
class Opening {
 public:
  /// `own`: what this rank announces; its factor is in it already.
  TUTTI_DEVICE_CALL Opening(Thread& thread, const RankHome& home, std::uint64_t sequence, const AnnouncedBuffers& own,
                            std::uint64_t factor)
      : t_(thread),
        machine_(thread),
        home_(home),
        waiting_(thread, home, sequence),
        sequence_(static_cast<std::uint32_t>(sequence)),
        own_(own),
        factor_(factor),
        // Not 0: that is what an empty line holds.
        word_(protocol::announce_word(sequence_, own.fingerprint | 1)) {}

  /// Block 0 does.
  TUTTI_DEVICE_CALL void announce() {
    if (t_.block() == 0 && is_peer(t_.index())) announce_to(t_.index());
  }
  /// All threads of the block; `buffers` has this rank's own already, and the peers' when all are there. False: give up.
  TUTTI_DEVICE_CALL bool learn(Buffers& buffers) {
    const std::uint32_t peer = t_.index();
    const bool failed = is_peer(peer) && !learn_from(peer, buffers);
    return !t_.any(failed);
  }

 private:
  TUTTI_DEVICE_CALL bool is_peer(std::uint32_t rank) const {
    return rank < home_.ranks && rank != home_.rank && home_.boards[rank] != nullptr;
  }
  TUTTI_DEVICE_CALL protocol::AnnounceBoard board_of(std::uint32_t rank) const {
    return {home_.boards[rank], home_.ranks, nullptr, 0};
  }
  TUTTI_DEVICE_CALL void announce_to(std::uint32_t peer) {
    protocol::AnnounceLine& line = board_of(peer).line(home_.rank, sequence_);
    protocol::BufferReferences references = own_.own;
    references.scale = factor_;
    protocol::announce_buffers(machine_, line, references);
    protocol::publish(machine_, line, word_);
  }
  TUTTI_DEVICE_CALL bool learn_from(std::uint32_t peer, Buffers& buffers) {
    const protocol::AnnounceLine& line = board_of(home_.rank).line(peer, sequence_);
    const auto number = static_cast<std::int32_t>(peer);
    std::uint64_t word = 0;
    const std::uint64_t lines = t_.load(&home_.state->lines_sequence) + 1;
    const auto has_come = [&] { return (word = protocol::announced_word(machine_, line, sequence_)) != 0; };
    if (!waiting_.until(number, has_come, [&] { return sends_lines_instead(peer, lines); })) return false;
    if (word != word_) {
      waiting_.fail(Failure::kMismatch, number, word_ & 0xffffffffu, word & 0xffffffffu);
      return false;
    }
    const protocol::BufferReferences found = protocol::announced_buffers(machine_, line);
    buffers.factors[peer] = found.scale;
    std::uint64_t input = 0;
    std::uint64_t output = 0;
    if (!resolve(waiting_, home_, peer, found.input, input) || !resolve(waiting_, home_, peer, found.output, output)) {
      return false;
    }
    buffers.inputs[peer] = reinterpret_cast<const void*>(input);
    buffers.outputs[peer] = reinterpret_cast<void*>(output);
    return true;
  }
  /// The peer is in a lines call where this rank announces. The failure is recorded then.
  TUTTI_DEVICE_CALL bool sends_lines_instead(std::uint32_t peer, std::uint64_t lines) {
    std::uint32_t header = 0;
    if (home_.line_memory.units == 0) return false;
    if (!has_header(t_, home_, lines, peer, header)) return false;
    // Or it has come behind this call, which lanes that receive nothing end without this rank: then its line was there before the launch
    // that sent the header.
    if (announced_by(t_, home_, sequence_, peer) != 0) return false;
    waiting_.fail(Failure::kMismatch, static_cast<std::int32_t>(peer), word_ & 0xffffffffu, header);
    return true;
  }

  Thread& t_;
  AnnouncingMachine<Thread> machine_;
  const RankHome& home_;
  Waiting<Thread> waiting_;
  std::uint32_t sequence_;
  const AnnouncedBuffers& own_;
  std::uint64_t factor_;
  std::uint64_t word_;
};

/// What the members' streams have stored becomes RankHome::learned, or the rank's failure. A thread for each rank.
template <class Thread>
TUTTI_DEVICE_CALL void learn_members(Thread& t, const RankHome& home, const FoldMembers& members,
                                     std::uint32_t fingerprint, const Buffers& own) {
  const std::uint32_t peer = t.index();
  if (peer >= home.ranks) return;
  Waiting<Thread> waiting(t, home, 0);
  // All at once: each takes a microsecond.
  const StreamCall& call = members.calls[peer];
  const auto word = [&](const std::uint32_t(&halves)[2]) {
    return std::uint64_t{t.load(&halves[1])} << 32 | t.load(&halves[0]);
  };
  const std::uint32_t theirs = t.load(&members.fingerprints[peer]);
  const protocol::BufferReference from = StreamCall::unpack(word(call.input));
  const protocol::BufferReference to = StreamCall::unpack(word(call.output));
  std::uint64_t factor = word(call.factor);
  auto input = reinterpret_cast<std::uint64_t>(own.inputs[peer]);
  auto output = reinterpret_cast<std::uint64_t>(own.outputs[peer]);
  // Before anything else: of a communicator that has failed, streams are let go whatever the words say.
  const auto number = static_cast<std::int32_t>(peer);
  if (waiting.gives_up(number)) return;
  if (theirs != (fingerprint | 1)) return waiting.fail(Failure::kMismatch, number, fingerprint | 1, theirs);
  if (peer == home.rank) {
    factor = own.factors[peer];
  } else if (!resolve(waiting, home, peer, from, input) || !resolve(waiting, home, peer, to, output)) {
    return;
  }
  t.store(&home.learned->inputs[peer], reinterpret_cast<const void*>(input));
  t.store(&home.learned->outputs[peer], reinterpret_cast<void*>(output));
  t.store(&home.learned->factors[peer], factor);
}

/// All threads of the block. False: give up.
template <class Thread>
TUTTI_DEVICE_CALL bool take_learned(Thread& t, const RankHome& home, Buffers& buffers) {
  const std::uint32_t rank = t.index();
  if (rank < home.ranks) {
    buffers.inputs[rank] = t.load(&home.learned->inputs[rank]);
    buffers.outputs[rank] = t.load(&home.learned->outputs[rank]);
    buffers.factors[rank] = t.load(&home.learned->factors[rank]);
  }
  return !t.any(t.is_claimed(&home.state->failed));
}

/// At the end of a per-rank launch, when peers read this rank's buffers and write into them: all threads; waits until the same block of every
/// peer is here. Each block has a count of its own for each peer, so all ranks have grids of the same size.
template <class Thread>
TUTTI_DEVICE_CALL void close_with_peers(Thread& t, const RankHome& home, std::uint64_t sequence) {
  t.sync();
  const std::uint32_t peer = t.index();
  if (peer >= home.ranks || peer == home.rank) return;
  const std::size_t row = std::size_t{t.block()} * home.ranks;
  t.store_release(home.closings[peer] + row + home.rank, sequence);
  const std::uint64_t* const theirs = home.closings[home.rank] + row + peer;
  Waiting<Thread> waiting(t, home, sequence);
  waiting.until(static_cast<std::int32_t>(peer), [&] { return t.load_acquire(theirs) >= sequence; });
}

}  // namespace tutti::cuda
