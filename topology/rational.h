// Exact fractions for bounds: 128 bits over 128 bits, always reduced, the denominator positive. Capacities add up to less
// than 2^60 and denominators are little above the number of nodes, so products stay far from the edge.
#pragma once

#include <compare>
#include <cstdint>

namespace tutti::topology {

__extension__ typedef __int128 Wide;

inline Wide greatest_common_divisor(Wide a, Wide b) {
  a = a < 0 ? -a : a;
  b = b < 0 ? -b : b;
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

class Rational {
 public:
  constexpr Rational() = default;
  constexpr Rational(std::int64_t whole) : numerator_(whole) {}
  /// The denominator is not 0.
  Rational(Wide numerator, Wide denominator) : numerator_(numerator), denominator_(denominator) {
    const Wide divisor = greatest_common_divisor(numerator, denominator);
    const Wide sign = denominator < 0 ? -1 : 1;
    numerator_ = sign * numerator / divisor;
    denominator_ = sign * denominator / divisor;
  }

  Wide numerator() const { return numerator_; }
  Wide denominator() const { return denominator_; }
  double to_double() const { return static_cast<double>(numerator_) / static_cast<double>(denominator_); }
  Wide floor() const {
    const Wide whole = numerator_ / denominator_;
    return numerator_ % denominator_ < 0 ? whole - 1 : whole;
  }

  friend Rational operator+(const Rational& a, const Rational& b) {
    return {a.numerator_ * b.denominator_ + b.numerator_ * a.denominator_, a.denominator_ * b.denominator_};
  }
  friend Rational operator-(const Rational& a, const Rational& b) {
    return {a.numerator_ * b.denominator_ - b.numerator_ * a.denominator_, a.denominator_ * b.denominator_};
  }
  /// Divides crosswise first, so that only the result has to fit.
  friend Rational operator*(const Rational& a, const Rational& b) {
    const Rational left(a.numerator_, b.denominator_);
    const Rational right(b.numerator_, a.denominator_);
    return {left.numerator_ * right.numerator_, left.denominator_ * right.denominator_};
  }
  /// b is not 0.
  friend Rational operator/(const Rational& a, const Rational& b) { return a * Rational(b.denominator_, b.numerator_); }
  friend bool operator==(const Rational& a, const Rational& b) = default;
  friend std::strong_ordering operator<=>(const Rational& a, const Rational& b) {
    const Wide left = a.numerator_ * b.denominator_;
    const Wide right = b.numerator_ * a.denominator_;
    if (left < right) return std::strong_ordering::less;
    return left > right ? std::strong_ordering::greater : std::strong_ordering::equal;
  }

 private:
  Wide numerator_ = 0;
  Wide denominator_ = 1;
};

}  // namespace tutti::topology
