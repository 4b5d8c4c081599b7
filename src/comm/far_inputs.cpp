#include "comm/far_inputs.h"

namespace tutti::comm {

std::byte* FarInputs::place_for(std::uint32_t number, std::size_t bytes) {
  if (bytes > kBytesMax) return nullptr;
  Input& input = inputs_[came_++ % 2];
  if (!input.block) input.block = std::make_unique_for_overwrite<Block>();
  input.number = number;
  input.bytes = bytes;
  return input.block->bytes;
}

const std::byte* FarInputs::of(std::uint32_t number, std::size_t bytes) const {
  for (const Input& input : inputs_)
    if (input.block && input.number == number && input.bytes == bytes) return input.block->bytes;
  return nullptr;
}

}  // namespace tutti::comm
