#include "plot/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tutti::plot {
namespace {

std::string byte_label(double value, int digits) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P"};
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}g}{}", value, digits, kUnits[unit]);
}

std::string plain_label(double value, int digits) {
  const double size = std::fabs(value);
  if (value == 0) return "0";
  if (size >= 1e9) return fmt::format("{:.{}g}G", value / 1e9, digits);
  if (size >= 1e6) return fmt::format("{:.{}g}M", value / 1e6, digits);
  if (size >= 1e4) return fmt::format("{:.{}g}k", value / 1e3, digits);
  return fmt::format("{:.{}g}", value, digits + 2);
}

constexpr int kDigits = 4;

std::string label(double value, Labels labels, int digits = kDigits) {
  return labels == Labels::kBytes ? byte_label(value, digits) : plain_label(value, digits);
}

/// With as many digits as it takes that each tick says something else: a short range may be far from zero.
void label_apart(std::vector<Tick>& ticks, Labels labels) {
  for (int digits = kDigits; digits <= 15; ++digits) {
    for (Tick& tick : ticks) tick.label = label(tick.value, labels, digits);
    if (std::ranges::adjacent_find(ticks, {}, &Tick::label) == ticks.end()) return;
  }
}

/// The smallest of 1, 2, 5 times a power of ten that is not below `at_least`.
double nice_step(double at_least) {
  const double power = std::pow(10.0, std::floor(std::log10(at_least)));
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= at_least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

Ticks linear_ticks(double low, double high, Labels labels) {
  // What differs in its last digits is one value: there are no numbers between for ticks.
  if (const double size = std::max(std::fabs(low), std::fabs(high)); size < kNearestToZero) {
    low = 0;
    high = 1;
  } else if (high - low <= 1e-12 * size) {
    low -= size * 0.1;
    high += size * 0.1;
  }
  const double step = nice_step((high - low) / 6);
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  Ticks result{first * step, last * step, {}};
  for (double n = first; n <= last + 0.5; ++n) result.ticks.push_back({n * step, ""});
  label_apart(result.ticks, labels);
  return result;
}

/// Every power of two, or every second, fourth ... of them.
Ticks log2_ticks(double low, double high, Labels labels) {
  int first = static_cast<int>(std::floor(std::log2(low) + 1e-9));
  int last = static_cast<int>(std::ceil(std::log2(high) - 1e-9));
  if (first == last) {
    --first;
    ++last;
  }
  Ticks result{std::exp2(first), std::exp2(last), {}};
  int step = 1;
  while ((last - first) / step > 9) step *= 2;
  const int start = first >= 0 ? (first + step - 1) / step * step : -(-first / step * step);
  for (int power = start; power <= last; power += step)
    result.ticks.push_back({std::exp2(power), label(std::exp2(power), labels)});
  return result;
}

Ticks log10_ticks(double low, double high, Labels labels) {
  // Ends at 1, 2 or 5 times a power of ten, so that a short range fills the picture.
  const auto floor_nice = [](double value) {
    const double power = std::pow(10.0, std::floor(std::log10(value) + 1e-9));
    for (double factor : {5.0, 2.0})
      if (factor * power <= value * (1 + 1e-9)) return factor * power;
    return power;
  };
  const double from = floor_nice(low);
  double to = nice_step(high);
  if (to <= from * 1.01) to = from * 10;
  Ticks result{from, to, {}};
  const double decades = std::log10(to / from);
  const int every = std::max(1, static_cast<int>(std::ceil(decades / 9)));
  const int first = static_cast<int>(std::floor(std::log10(from) + 1e-9));
  for (int power = first; power <= std::log10(to) + 1e-9; ++power) {
    for (double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10.0, power);
      const bool wanted = factor == 1 ? (power - first) % every == 0 : decades <= 3;
      if (wanted && value >= from * (1 - 1e-9) && value <= to * (1 + 1e-9))
        result.ticks.push_back({value, label(value, labels)});
    }
  }
  return result;
}

}  // namespace

Ticks ticks_for(double low, double high, Scale scale, Labels labels) {
  switch (scale) {
    case Scale::kLog2: return log2_ticks(low, high, labels);
    case Scale::kLog10: return log10_ticks(low, high, labels);
    case Scale::kLinear: break;
  }
  return linear_ticks(low, high, labels);
}

}  // namespace tutti::plot
