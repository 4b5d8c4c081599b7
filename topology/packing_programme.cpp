#include "topology/packing_programme.h"

#include <algorithm>
#include <utility>

namespace tutti::topology {

namespace {

constexpr double kTolerance = 1e-10;

}  // namespace

PackingProgramme::PackingProgramme(const std::vector<double>& capacities)
    : rows_(capacities.size()),
      basis_(rows_),
      inverse_(rows_ * rows_, 0),
      solution_(capacities),
      pivots_left_(5000 + 100 * rows_) {
  for (const double capacity : capacities) scale_ = std::max(scale_, capacity);
  if (scale_ == 0) scale_ = 1;
  for (std::size_t row = 0; row < rows_; ++row) {
    basis_[row] = row;
    inverse_[row * rows_ + row] = 1;
    solution_[row] /= scale_;
  }
}

std::size_t PackingProgramme::add_column(Column column) {
  columns_.push_back(std::move(column));
  return columns_.size() - 1;
}

std::vector<double> PackingProgramme::prices() const {
  std::vector<double> prices(rows_, 0);
  for (std::size_t row = 0; row < rows_; ++row) {
    if (basis_[row] < rows_) continue;
    for (std::size_t i = 0; i < rows_; ++i) prices[i] += inverse_[row * rows_ + i];
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
    for (std::size_t i = 0; i < rows_; ++i) direction[i] += inverse_[i * rows_ + row] * entry;
  }
  return direction;
}

/// Among rows that are full equally soon the one with the largest pivot, for the numbers' sake.
int PackingProgramme::leaving_row(const std::vector<double>& direction) const {
  int leaving = kNoRow;
  double least = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (direction[row] <= kTolerance) continue;
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
  double* own = inverse_.data() + row * rows_;
  std::vector<std::size_t> filled;  // the inverse stays sparse for long
  for (std::size_t i = 0; i < rows_; ++i) {
    if (own[i] == 0) continue;
    own[i] /= direction[row];
    filled.push_back(i);
  }
  for (std::size_t other = 0; other < rows_; ++other) {
    if (other == static_cast<std::size_t>(row) || direction[other] == 0) continue;
    double* theirs = inverse_.data() + other * rows_;
    for (const std::size_t i : filled) theirs[i] -= direction[other] * own[i];
    solution_[other] -= direction[other] * amount;
  }
  solution_[row] = amount;
  basis_[row] = variable;
}

bool PackingProgramme::solve() {
  const std::size_t variables = rows_ + columns_.size();
  std::size_t standing = 0;  // pivots that brought nothing: after some, Bland's rule, which cannot go in circles
  for (; pivots_left_ > 0; --pivots_left_) {
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
