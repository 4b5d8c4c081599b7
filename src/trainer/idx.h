// Reads MNIST's IDX files, plain or gzip-compressed.
#pragma once

#include "trainer/outcome.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::trainer {

/// An IDX file is a big-endian header - 0, 0, element type, number of dimensions, then each dimension in 4 bytes - and the
/// elements. Here the elements are bytes.
struct IdxArray {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> values;

  std::size_t count() const { return dimensions.front(); }
  std::size_t bytes_per_item() const { return values.size() / count(); }
};

/// Reads a file of unsigned bytes with exactly `dimension_count` dimensions (3: images, 1: labels) and at least one item.
/// Nothing of the header is trusted: memory grows with the bytes that are really there.
Outcome<IdxArray> read_idx(const std::string& path, int dimension_count);

}  // namespace tutti::trainer
