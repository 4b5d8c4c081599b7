// Reads the text a language model trains on: files, and directories with all that is below them.
#pragma once

#include "trainer/outcome.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::trainer {

struct Text {
  std::vector<std::uint8_t> bytes;
  std::size_t file_count = 0;
};

/// The bytes of all files, each file once however many names and symbolic links lead to it, in the order of the
/// arguments, a directory's entries sorted by name. A path that does not exist, a file that cannot be read, no bytes at
/// all, or more than 256 MiB is a failure. Entries of directories that are neither files nor directories are left out.
Outcome<Text> read_text(const std::vector<std::string>& paths);

/// Entropy of the frequencies of single bytes, in bits per byte: the loss of the best model that knows no context.
double unigram_bits(const std::vector<std::uint8_t>& bytes);

}  // namespace tutti::trainer
