#include "topology/packing_programme.h"

#include <algorithm>
#include <utility>

namespace tutti::topology {

namespace {

constexpr double kTolerance = 1e-10;
/// What comes out smaller may be rounding alone. To divide by it would make all that follows wrong.
constexpr double kPivotMin = 1e-7;

}  // namespace

PackingProgramme::PackingProgramme(const std::vector<double>& capacities, std::uint64_t work_most)
    : rows_(capacities.size()),
      basis_(rows_),
      inverse_(rows_),
      place_(rows_),
      solution_(capacities),
      pivots_left_(5000 + 100 * rows_),
      work_left_(work_most) {
  for (const double capacity : capacities) scale_ = std::max(scale_, capacity);
  if (scale_ == 0) scale_ = 1;
  for (std::size_t row = 0; row < rows_; ++row) {
    basis_[row] = row;
    place_[row] = row;
    solution_[row] /= scale_;
  }
}

std::size_t PackingProgramme::add_column(Column column) {
  entries_ += column.size();
  columns_.push_back(std::move(column));
  return columns_.size() - 1;
}

std::vector<double> PackingProgramme::prices() const {
  std::vector<std::size_t> full;  // rows whose variable is an amount; only they have a value
  for (std::size_t row = 0; row < rows_; ++row) {
    if (basis_[row] >= rows_) full.push_back(row);
  }
  std::vector<double> prices(rows_, 0);
  for (std::size_t i = 0; i < rows_; ++i) {
    if (inverse_[i].empty()) continue;  // a slack's row, and that has no value
    for (const std::size_t row : full) prices[i] += inverse_[i][row];
  }
  return prices;
}

double PackingProgramme::reduced_value(std::size_t variable, const std::vector<double>& prices) const {
  if (variable < rows_) return -prices[variable];
  double value = 1;
  for (const auto& [row, entry] : columns_[variable - rows_]) value -= prices[row] * entry;
  return value;
}

std::vector<double> PackingProgramme::in_basis(std::size_t variable) const {
  const Column slack{{static_cast<int>(variable), 1.0}};
  std::vector<double> direction(rows_, 0);
  for (const auto& [row, entry] : variable < rows_ ? slack : columns_[variable - rows_]) {
    const std::vector<double>& column = inverse_[row];
    if (column.empty()) {
      direction[place_[row]] += entry;
    } else {
      for (std::size_t i = 0; i < rows_; ++i) direction[i] += column[i] * entry;
    }
  }
  return direction;
}

/// Among rows that are full equally soon the one with the largest pivot, for the numbers' sake.
int PackingProgramme::leaving_row(const std::vector<double>& direction) const {
  int leaving = kNoRow;
  double least = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (direction[row] <= kPivotMin) continue;
    const double ratio = std::max(solution_[row], 0.0) / direction[row];
    const bool sooner = leaving == kNoRow || ratio < least - kTolerance;
    if (sooner || (ratio < least + kTolerance && direction[row] > direction[leaving])) {
      leaving = static_cast<int>(row);
      least = sooner ? ratio : std::min(least, ratio);
    }
  }
  return leaving;
}

void PackingProgramme::pivot(std::size_t variable, int row, const std::vector<double>& direction) {
  const double amount = std::max(solution_[row], 0.0) / direction[row];
  if (basis_[row] < rows_) {
    inverse_[basis_[row]].assign(rows_, 0);
    inverse_[basis_[row]][row] = 1;
  }
  std::vector<std::size_t> changed;  // the others' rows
  for (std::size_t other = 0; other < rows_; ++other) {
    if (other != static_cast<std::size_t>(row) && direction[other] != 0) changed.push_back(other);
  }
  for (std::vector<double>& column : inverse_) {
    if (column.empty() || column[row] == 0) continue;
    column[row] /= direction[row];
    for (const std::size_t other : changed) column[other] -= direction[other] * column[row];
  }
  for (const std::size_t other : changed) solution_[other] -= direction[other] * amount;
  solution_[row] = amount;
  basis_[row] = variable;
  if (variable < rows_) {
    inverse_[variable] = {};
    place_[variable] = row;
  }
}

bool PackingProgramme::solve() {
  const std::size_t variables = rows_ + columns_.size();
  std::size_t standing = 0;  // pivots that brought nothing: after some, Bland's rule, which cannot go in circles
  for (; pivots_left_ > 0; --pivots_left_) {
    const std::uint64_t work = entries_ + rows_ * static_cast<std::uint64_t>(std::ranges::count_if(
                                                      basis_, [&](std::size_t variable) { return variable >= rows_; }));
    if (work > work_left_) return false;
    work_left_ -= work;
    const std::vector<double> prices = this->prices();
    std::size_t entering = variables;
    double best = kTolerance * 10;
    for (std::size_t variable = 0; variable < variables; ++variable) {
      const double value = reduced_value(variable, prices);
      if (value <= best) continue;
      entering = variable;
      if (standing > rows_) break;
      best = value;
    }
    if (entering == variables) return true;
    const std::vector<double> direction = in_basis(entering);
    const int row = leaving_row(direction);
    if (row == kNoRow) return false;  // a column without entries: no programme of ours
    standing = solution_[row] > kTolerance ? 0 : standing + 1;
    pivot(entering, row, direction);
  }
  return false;
}

double PackingProgramme::value() const {
  double sum = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (basis_[row] >= rows_) sum += std::max(solution_[row], 0.0);
  }
  return sum * scale_;
}

std::vector<double> PackingProgramme::amounts() const {
  std::vector<double> amounts(columns_.size(), 0);
  for (std::size_t row = 0; row < rows_; ++row) {
    if (basis_[row] >= rows_) amounts[basis_[row] - rows_] = std::max(solution_[row], 0.0) * scale_;
  }
  return amounts;
}

}  // namespace tutti::topology
