// FarInputs: what comes with the lines that open a call, where each host has one rank (goes_from_buffers()): the
// others' inputs, or sums of some, straight from their buffers into memory of this rank's own, and sums of all into
// the caller's; and parts of rails (rails.h), of hosts of several. Nobody waits to hear that the others have come to
// the call, which would take as long as a short message does.
//
// What comes from one rank in a call is a part. Two blocks for each are enough: its third part is sent in a call
// that follows the one of the second, which the sender left with this rank's part of it, or its line: this rank sent
// that after its calls before were over, and the first part was read. The first block is taken whenever its part was
// read: where nobody is ahead the other is never touched, and leaves its room in the caches to what is.
#pragma once

#include "comm/line_routes.h"
#include "planner/rules.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti::comm {

class FarInputs {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{1} << 20;
  /// The longest that are worth it where a network of its own carries them: longer ones go through slots in pieces, some of which are
  /// added up while others are on their way.
  static constexpr std::size_t kOverNetworkMax = std::size_t{256} << 10;
  /// What a hub may send more, all in all, for not waiting for the last input before it adds up (decision 44).
  static constexpr std::size_t kPassedOnBytes = std::size_t{96} << 10;
  static constexpr std::uint32_t kPartsMax = 16;
  /// The part that is the sum of all, which comes from a hub: never taken for an input of its own, which comes in a call that differs. From
  /// there on kPartsMax parts are such.
  static constexpr std::uint32_t kSumOfAll = kPartsMax;

  /// Where a part of the call of that number goes. `current`: the number of this rank's last call that has begun; parts of those before it are
  /// read. nullptr: none is so long, or there is no such part, or none is due.
  std::byte* place_for(std::uint32_t number, std::uint32_t part, std::size_t bytes, std::uint32_t current);
  /// A part that nobody sends before all ranks are in the call, one from kSumOfAll on, goes to the call's own place for it.
  void expect(std::uint32_t number, std::uint32_t part, std::size_t bytes, std::byte* place);
  /// All of it is there.
  void note_arrived(std::uint32_t number, std::uint32_t part);
  bool has(std::uint32_t number, std::uint32_t part) const;
  /// nullptr: no such part of so many bytes has arrived. It is its call's to write.
  std::byte* of(std::uint32_t number, std::uint32_t part, std::size_t bytes) const;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Input {
    std::uint32_t number = 0;
    std::size_t bytes = 0;
    bool arrived = false;
    std::size_t lines = 0;  ///< of the block: for the longest input so far
    std::unique_ptr<Line[]> block;

    std::byte* begin() const { return block[0].bytes; }
  };
  struct Part {
    Input inputs[2];
  };
  struct Expected {
    std::uint32_t number = 0;
    std::size_t bytes = 0;
    std::byte* place = nullptr;
    bool arrived = false;

    bool is(std::uint32_t of_number, std::size_t of_bytes) const {
      return place != nullptr && number == of_number && bytes == of_bytes;
    }
  };
  Expected* expected(std::uint32_t part) {
    return part - kSumOfAll < kPartsMax ? &expected_[part - kSumOfAll] : nullptr;
  }
  const Expected* expected(std::uint32_t part) const { return const_cast<FarInputs*>(this)->expected(part); }

  Part parts_[kPartsMax];
  Expected expected_[kPartsMax];
};

/// The longest inputs that go so, of hosts of one rank each.
struct FarLimits {
  std::size_t sums = 0;     ///< of an all-reduce
  std::size_t gathers = 0;  ///< of an all-gather
  /// Of an all-reduce by a hub: up to here it passes the inputs on, as soon as they are there, longer ones it adds up once all are.
  std::size_t passed_on = 0;
};
/// By the prices, at which more bytes are cheaper than further messages. `regroups`: sums need not be in rank order. `one_system`: the hosts
/// are of one system, and their ranks' threads the network: nothing goes on while they add up.
FarLimits far_limits(int hosts, LineRoutes::Pattern pattern, const planner::NetworkCosts& network, bool regroups,
                     bool one_system);

}  // namespace tutti::comm
