// FarInputs: the other rank's inputs, where there are two ranks on two hosts. Up to kBytesMax they come with the line that opens the call
// (Carriage::kFromBuffers), straight from the other's buffer into memory of this rank's own: nobody waits to hear that the other has
// come to the call, which would take as long as a short message does.
//
// Two blocks, by turns, are enough. The third input is sent in a call that follows the one of the second, which the sender left with
// this rank's line of it: this rank wrote that line after its calls before were over, and the first input was read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti::comm {

class FarInputs {
 public:
  /// Longer ones go through slots in pieces: while some are on their way others are added up, which is worth more there.
  static constexpr std::size_t kBytesMax = std::size_t{256} << 10;

  /// Where the input of the call of that number goes; nullptr: none is so long.
  std::byte* place_for(std::uint32_t number, std::size_t bytes);
  /// When the line of that call is there; nullptr: no input of so many bytes came with it.
  const std::byte* of(std::uint32_t number, std::size_t bytes) const;

 private:
  struct alignas(64) Block {
    std::byte bytes[kBytesMax];
  };
  struct Input {
    std::uint32_t number = 0;
    std::size_t bytes = 0;
    std::unique_ptr<Block> block;  ///< from the first input on
  };
  Input inputs_[2];
  std::uint32_t came_ = 0;
};

}  // namespace tutti::comm
