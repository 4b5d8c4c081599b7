// The table, in nccl-tests' columns.
#pragma once

#include "options.h"
#include "row.h"

#include <cstdio>
#include <string>
#include <vector>

namespace tutti::bench {

class Table {
 public:
  Table(std::FILE* out, bool percentiles, int ranks, std::string how)
      : out_(out), percentiles_(percentiles), ranks_(ranks), how_(std::move(how)) {}

  /// Lines that start with # say what follows; they come before the first row of a collective.
  void head(const Options& options, const std::string& collective, const std::string& device) const;
  void row(const Row& row) const;
  /// The sum of wrong values and the average bus bandwidth. True if nothing is wrong.
  bool foot(const std::vector<Row>& rows) const;

 private:
  void print(const std::string& text) const;

  std::FILE* out_;
  bool percentiles_;
  int ranks_;
  std::string how_;
};

}  // namespace tutti::bench
