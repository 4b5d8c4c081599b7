// What two ranks share of the sends from one to the other: the sender's lines, the receiver's lines, and the receiver's count.
// Short sends are eager: the line carries the input, or room beside it does, and the send is over once that is written. All others
// wait for the receiver's line, as both must know where the other's buffer is.
//
//   sender                                                       receiver
//   wait until taken >= s - kSendDepth     (acquire) <--------.
//   input, or buffers, of line s % depth                       |
//   word = s << 32 | fingerprint           (release) --------> | wait until the word's number is s   (acquire)
//   (not eager: wait for the receiver's line s)                |  read the line, and what it carries
//                                                              '- taken = s                           (release)
//
// Why it is right (docs/memory-model.md has the same numbers):
//  A3. The sender writes line s + depth (the same memory as line s) after it has acquired a count of s or more, which the receiver
//      released after it had read line s and what that carries.
//  A4. Two lines of the receiver are enough. It writes line s + 2 after it has read the sender's line s + 1, and a sender that reads
//      the receiver's line s writes its own line s + 1 only after that. (The sender of an eager send s reads no line s.)
#pragma once

#include "base/device_call.h"
#include "protocol/announce.h"

#include <cstddef>
#include <cstdint>

namespace tutti::protocol {

/// Lines used by turns.
inline constexpr std::uint32_t kSendDepth = 8;
inline constexpr std::uint32_t kReceiveDepth = 2;

/// The longest input whose successor's place is asked for early. Longer ones are copied by stores of whole lines, which need not fetch
/// what they overwrite: to ask for that makes an exchange of 8 KiB take 1.7 times as long.
inline constexpr std::size_t kPreparedSendBytes = 2 << 10;

/// From one rank to another.
struct Pair {
  AnnounceLine* sends = nullptr;     ///< the sender's
  AnnounceLine* receives = nullptr;  ///< the receiver's, no payload
  std::uint64_t* taken = nullptr;    ///< the number of the last send that the receiver is done with
  std::byte* inputs = nullptr;       ///< carried ones
  std::size_t input_bytes = 0;       ///< the most that one may have

  TUTTI_DEVICE_CALL AnnounceLine& send(std::uint32_t sequence) const { return sends[sequence % kSendDepth]; }
  TUTTI_DEVICE_CALL AnnounceLine& receive(std::uint32_t sequence) const { return receives[sequence % kReceiveDepth]; }
  /// Where the input of an eager send lies.
  TUTTI_DEVICE_CALL std::byte* carried(std::uint32_t sequence, std::size_t bytes) const {
    return bytes <= kAnnouncePayloadBytes ? send(sequence).payload : inputs + sequence % kSendDepth * input_bytes;
  }
};

/// Whether the sender knows that it may write the line of send `sequence`. `taken`: the count as it last saw it.
TUTTI_DEVICE_CALL constexpr bool has_known_room(std::uint32_t sequence, std::uint32_t taken) {
  return sequence - taken <= kSendDepth;
}
/// Whether it may. The receiver's memory is looked at only every few sends.
template <class Machine>
TUTTI_DEVICE_CALL bool has_room(Machine& m, const Pair& pair, std::uint32_t sequence, std::uint32_t& taken) {
  if (has_known_room(sequence, taken)) return true;
  taken = static_cast<std::uint32_t>(m.load_acquire(pair.taken));
  return has_known_room(sequence, taken);
}
/// After has_room(): an eager send, from beginning to end. What the next one of this length will write is asked for right away, unless it
/// is long, and the count too, where the next one would look at it: nothing waits for that yet.
template <class Machine>
TUTTI_DEVICE_CALL void send_eagerly(Machine& m, const Pair& pair, std::uint64_t word, const void* input,
                                    std::size_t bytes, std::uint32_t& taken) {
  const std::uint32_t sequence = sequence_of(word);
  if (bytes != 0) m.store_bytes(pair.carried(sequence, bytes), input, bytes);
  if (bytes > kAnnouncePayloadBytes) m.store_bytes(&pair.send(sequence).buffers.flags, &kCarried, sizeof kCarried);
  publish(m, pair.send(sequence), word);
  const std::size_t in_line = bytes <= kAnnouncePayloadBytes ? bytes : 0;
  m.prepare_write(reinterpret_cast<std::byte*>(&pair.send(sequence + 1)), sizeof(std::uint64_t) + in_line);
  if (in_line != bytes && bytes <= kPreparedSendBytes) m.prepare_write(pair.carried(sequence + 1, bytes), bytes);
  (void)has_room(m, pair, sequence + 1, taken);
}
/// After announced_word() of the sender's line: what an eager send has brought.
template <class Machine>
TUTTI_DEVICE_CALL void receive_eagerly(Machine& m, const Pair& pair, std::uint32_t sequence, void* output,
                                       std::size_t bytes) {
  if (bytes != 0) m.load_bytes(output, pair.carried(sequence, bytes), bytes);
}
/// The receiver is done with the sender's line.
template <class Machine>
TUTTI_DEVICE_CALL void take(Machine& m, const Pair& pair, std::uint32_t sequence) {
  m.store_release(pair.taken, sequence);
}

}  // namespace tutti::protocol
