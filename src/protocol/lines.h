// Flag-in-word lines: a small message as 8-byte words, 4 bytes of data and a 4-byte flag each. A word arrives whole, so whoever
// sees the flag of message k has its data: neither tail nor acquire is needed.
//
//   word = flag << 32 | data,  flag = k mod 2^32,  k = 1, 2, 3 ... of the channel's lines
//
// Why it is right:
//  L1. A word is one 8-byte atomic: flag and data are of one store.
//  L2. Line k takes slot k % slots, under the same credits (head) as every message: the receiver has read line k - slots.
//  L3. A flag found was stored by line k, not left by an older one: in a slot, older flags are smaller by a multiple of `slots`,
//      and none of them is older than 2^31 + slots lines, because the lines from each multiple of 2^31 on fill their
//      whole slot. Memory starts as zeros; the first flag is 1, and flag 0 comes after such a filling. (No load returns a store
//      of 2^31 lines ago: caches are coherent, the model alone does not say so of relaxed words.)
//  L4. The memory holds nothing but lines, so no other data looks like a flag.
//  L5. A line orders nothing but itself: who found its flag has not synchronised with the sender. So plans with pushes or pulls,
//      which rely on the order that earlier messages make, send no lines.
#pragma once

#include "base/device_call.h"

#include <cstddef>
#include <cstdint>

namespace tutti::protocol {

/// The lines of a channel. Equal for all channels of a communicator.
struct LineShape {
  static constexpr std::uint64_t kPeriod = std::uint64_t{1} << 31;

  std::uint32_t slots = 0;
  std::uint32_t words = 0;         ///< per slot: 4 bytes of data each
  std::uint64_t period = kPeriod;  ///< tests make it smaller; more than `slots`

  TUTTI_DEVICE_CALL std::size_t bytes() const { return std::size_t{slots} * words * sizeof(std::uint64_t); }
  TUTTI_DEVICE_CALL std::size_t payload_bytes() const { return std::size_t{words} * 4; }
  TUTTI_DEVICE_CALL std::uint64_t flag(std::uint64_t number) const { return number % (2 * period); }
  TUTTI_DEVICE_CALL std::uint64_t* slot(std::uint64_t* lines, std::uint64_t number) const {
    return lines + number % slots * words;
  }
  /// Line `number` must write every word of its slot, however short it is.
  TUTTI_DEVICE_CALL bool fills(std::uint64_t number) const { return number % period < slots; }
};

/// Words of a message; one that carries no data has one, for its flag.
TUTTI_DEVICE_CALL inline std::uint32_t line_words(std::size_t bytes) {
  return bytes == 0 ? 1 : static_cast<std::uint32_t>((bytes + 3) / 4);
}

/// Sends line `number`: `bytes` from private memory.
template <class Machine>
TUTTI_DEVICE_CALL void send_line(Machine& m, const LineShape& shape, std::uint64_t* lines, std::uint64_t number,
                                 const std::byte* from, std::size_t bytes) {
  std::uint64_t* const to = shape.slot(lines, number);
  const std::uint64_t flag = shape.flag(number) << 32;
  const std::uint32_t words = shape.fills(number) ? shape.words : line_words(bytes);
  for (std::uint32_t w = 0; w < words; ++w) {
    std::uint32_t data = 0;
    const std::size_t at = std::size_t{w} * 4;
    if (at + 4 <= bytes) {
      __builtin_memcpy(&data, from + at, 4);
    } else if (at < bytes) {
      __builtin_memcpy(&data, from + at, bytes - at);
    }
    m.store_word(to + w, flag | data);
  }
}

/// Takes what has come of line `number` into private memory, from word `arrived` on. True once all is there.
template <class Machine>
TUTTI_DEVICE_CALL bool take_line(Machine& m, const LineShape& shape, std::uint64_t* lines, std::uint64_t number,
                                 std::byte* to, std::size_t bytes, std::uint32_t& arrived) {
  const std::uint64_t* const from = shape.slot(lines, number);
  const std::uint64_t flag = shape.flag(number);
  for (const std::uint32_t words = line_words(bytes); arrived < words; ++arrived) {
    const std::uint64_t word = m.load_word(from + arrived);
    if (word >> 32 != flag) return false;
    const auto data = static_cast<std::uint32_t>(word);
    const std::size_t at = std::size_t{arrived} * 4;
    if (at + 4 <= bytes) {
      __builtin_memcpy(to + at, &data, 4);
    } else if (at < bytes) {
      __builtin_memcpy(to + at, &data, bytes - at);
    }
  }
  return true;
}

}  // namespace tutti::protocol
