// Linear programmes of the kind "as much as possible of these, within the capacities", by the revised simplex method in
// floating point. Columns may be added between solutions (column generation): rings and lanes are found with it. Whoever
// needs exact figures rounds its answer and checks that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::topology {

/// Maximises the sum of the amounts x >= 0 subject to sum of entries times x <= capacity, row by row.
class PackingProgramme {
 public:
  static constexpr std::uint64_t kAnyWork = ~std::uint64_t{0};
  using Column = std::vector<std::pair<int, double>>;  ///< row and entry above 0; a row at most once

  /// Capacities of 0 or more. `work_most`: entries of columns and of the basis to look at, in all.
  explicit PackingProgramme(const std::vector<double>& capacities, std::uint64_t work_most = kAnyWork);

  std::size_t add_column(Column column);
  /// Goes on from the last solution to the best for all columns there are. False if it gave up, after more pivots in all
  /// than such programmes need, or more work; the solution is then allowed, but not proved best.
  bool solve();

  double value() const;
  std::vector<double> amounts() const;  ///< by column
  std::vector<double> prices() const;  ///< by row: what one more unit of capacity would be worth; 0 or more at the best

 private:
  static constexpr int kNoRow = -1;
  double reduced_value(std::size_t variable, const std::vector<double>& prices) const;
  std::vector<double> in_basis(std::size_t variable) const;
  int leaving_row(const std::vector<double>& direction) const;
  void pivot(std::size_t variable, int row, const std::vector<double>& direction);

  std::size_t rows_;
  std::vector<Column> columns_;
  std::vector<std::size_t> basis_;  ///< by row; below rows_ the row's slack, then the columns
  /// Of the basis, by column, since a pivot changes all of a column and few columns. That of a slack in the basis is a unit
  /// vector and stays empty: with thousands of rows most are.
  std::vector<std::vector<double>> inverse_;
  std::vector<std::size_t> place_;  ///< by slack in the basis: its row there
  std::vector<double> solution_;    ///< of the basis' variables
  double scale_ = 0;                ///< the largest capacity
  std::size_t pivots_left_;
  std::uint64_t work_left_;
  std::uint64_t entries_ = 0;  ///< of all columns
};

}  // namespace tutti::topology
