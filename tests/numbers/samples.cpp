#include "samples.h"

#include <algorithm>
#include <cstring>

namespace tutti::numbers {
namespace {

/// Numbers that depend on nothing but the seed, the rank and the position (splitmix64).
class Stream {
 public:
  Stream(std::uint64_t seed, std::uint64_t rank, std::uint64_t i)
      : state_(seed * 0x9e3779b97f4a7c15u + rank * 0xd1b54a32d192ed03u + i * 0xabc98388fb8fac03u) {
    state_ = bits();
  }
  std::uint64_t bits() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Of mean 0 and variance 1, all but normally distributed; by exact sums only, so that every machine has the same.
  double normal() {
    std::uint64_t sum = 0;
    for (int pair = 0; pair < 6; ++pair) {
      const std::uint64_t both = bits();
      sum += (both & 0xffffffffu) + (both >> 32);
    }
    return static_cast<double>(sum) * 0x1p-32 - 6 + uniform() * 0x1p-32;
  }

 private:
  std::uint64_t state_;
};

/// Sums of float8e4m3 reach 448 soon: many ranks add smaller numbers.
double reduced(const FloatType& type, int ranks) {
  return type.type == DataType::kFloat8e4m3 && ranks > 128 ? 128.0 / ranks : 1;
}

double number(const Sample& s, int rank, std::uint64_t i) {
  Stream random(s.seed, static_cast<std::uint64_t>(rank) + 1, i);
  if (s.operation == Operation::kProduct) {
    // A factor of 1 at all but about 24 ranks, the others' logarithms of zero mean.
    const double factor = random.uniform() * s.request.ranks < 24 ? std::exp2(random.uniform() - 0.5) : 1;
    return s.data == Data::kZeroMean && random.bits() % 2 == 0 ? -factor : factor;
  }
  const double x = random.normal();
  return s.element_scale(i) * (s.data == Data::kPositive ? std::abs(x) : x);
}

/// (1 + unit)^times - 1
long double growth(double unit, int times) { return std::expm1(times * std::log1p(static_cast<long double>(unit))); }

}  // namespace

const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"sum", "average", "product", "PreMulSum", "max", "min"};
  return kNames[static_cast<int>(operation)];
}

ReduceOp reduce_op_of(Operation operation) {
  switch (operation) {
    case Operation::kProduct: return ReduceOp::kProduct;
    case Operation::kAverage: return ReduceOp::kAverage;
    case Operation::kMax: return ReduceOp::kMax;
    case Operation::kMin: return ReduceOp::kMin;
    default: return ReduceOp::kSum;
  }
}

const char* name_of(Data data) { return data == Data::kPositive ? "positive" : "zero mean"; }

bool Sample::uses_wide_wire() const {
  return wide_wire && type->narrow() && operation != Operation::kMax && operation != Operation::kMin;
}

std::vector<std::byte> Sample::input(int rank) const {
  const std::uint64_t elements = count * input_blocks();
  std::vector<std::byte> bytes(elements * type->bytes);
  for (std::uint64_t i = 0; i < elements; ++i) store(*type, number(*this, rank, i), &bytes[i * type->bytes]);
  return bytes;
}

double Sample::element_scale(std::uint64_t i) const {
  if (operation == Operation::kProduct) return 1;
  return (plain ? 1 : std::exp2(Stream(seed, 0, i).uniform())) * reduced(*type, request.ranks);
}

std::uint64_t Sample::scale(int rank) const {
  return encode(*type, 0.75 + 0.5 * Stream(~seed, static_cast<std::uint64_t>(rank), 0).uniform());
}

std::vector<Exact> exact_results(const Sample& sample, const std::vector<std::vector<std::byte>>& inputs) {
  std::vector<Exact> results(sample.count * sample.input_blocks());
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    const long double scale =
        sample.operation == Operation::kScaledSum ? decode(*sample.type, sample.scale(static_cast<int>(r))) : 1;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const long double x = scale * load(*sample.type, &inputs[r][i * sample.type->bytes]);
      Exact& result = results[i];
      switch (sample.operation) {
        case Operation::kProduct: result.value = r == 0 ? x : result.value * x; break;
        case Operation::kMax: result.value = r == 0 ? x : std::max(result.value, x); break;
        case Operation::kMin: result.value = r == 0 ? x : std::min(result.value, x); break;
        default: result.value += x;
      }
      result.magnitude += std::abs(x);
    }
  }
  for (Exact& result : results) {
    if (sample.operation == Operation::kProduct) result.magnitude = std::abs(result.value);
    if (sample.operation != Operation::kAverage) continue;
    result.value /= sample.request.ranks;
    result.magnitude /= sample.request.ranks;
  }
  return results;
}

long double bound(const Sample& sample, const LongestPath& longest, const Exact& exact) {
  if (sample.operation == Operation::kMax || sample.operation == Operation::kMin) return 0;
  const FloatType& type = *sample.type;
  const int n = sample.request.ranks;
  LongestPath path = longest;
  if (sample.operation == Operation::kProduct) {
    // Factors multiply: every rounding anywhere counts, not those on one way only.
    path.operations = n - 1;
    path.roundings = longest.roundings == 1 ? 1 : n - 1;
  }
  const int extra = sample.operation == Operation::kAverage || sample.operation == Operation::kScaledSum ? 1 : 0;
  const int scalings = sample.operation == Operation::kScaledSum ? 1 : 0;
  const long double relative =
      type.narrow()
          ? (1 + growth(type.unit, path.roundings + scalings)) * (1 + growth(0x1p-24, path.operations + extra)) - 1
          : growth(type.unit, path.operations + extra);
  // Below the normal numbers every rounding anywhere may add half the smallest one. The reference has an error, too.
  const long double absolute = (2 * n + 1) * (1 + relative) * type.least;
  return (relative + n * 0x1p-63L) * exact.magnitude + absolute;
}

std::vector<std::byte> simulate(const Sample& sample, const CompactSchedule& schedule,
                                const std::vector<std::vector<std::byte>>& inputs, bool& same_everywhere) {
  Arithmetic arithmetic;
  arithmetic.wide_wire = sample.uses_wide_wire();
  arithmetic.reduce = (arithmetic.wide_wire ? reduce_mixed_function : reduce_function)(sample.type->type,
                                                                                       reduce_op_of(sample.operation));
  const int n = sample.request.ranks;
  if (sample.operation == Operation::kAverage) arithmetic.divisor = n;
  std::vector<std::uint64_t> scales;
  for (int r = 0; r < n; ++r) scales.push_back(sample.scale(r));
  for (int r = 0; sample.operation == Operation::kScaledSum && r < n; ++r)
    arithmetic.scales.push_back(&scales[static_cast<std::size_t>(r)]);
  const std::size_t bytes = sample.count * sample.type->bytes;
  std::vector<std::vector<std::byte>> outputs;
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (int r = 0; r < n; ++r) {
    const std::size_t blocks = schedule::output_blocks(sample.request, r);
    outputs.emplace_back(blocks * bytes, std::byte{0xb9});
  }
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    from.push_back(inputs[r].data());
    to.push_back(outputs[r].data());
  }
  ScheduleSums(schedule, arithmetic).run(from, to);
  same_everywhere = true;
  if (sample.request.collective == Collective::kReduceScatter) {
    std::vector<std::byte> all;
    for (const auto& output : outputs) all.insert(all.end(), output.begin(), output.end());
    return all;
  }
  const auto root = static_cast<std::size_t>(sample.request.root);
  if (sample.request.collective == Collective::kAllReduce) {
    for (const auto& output : outputs) same_everywhere = same_everywhere && output == outputs[root];
  }
  return outputs[root];
}

Error error_of(const Sample& sample, const LongestPath& path, const std::vector<Exact>& exact,
               const std::vector<std::byte>& results) {
  Error error;
  long double squares = 0, exact_squares = 0, relative_squares = 0, sum = 0, exact_sum = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const long double result = load(*sample.type, &results[i * sample.type->bytes]);
    const long double off = std::abs(result - exact[i].value);
    const long double allowed = bound(sample, path, exact[i]);
    const long double scale = sample.element_scale(i);
    squares += off / scale * (off / scale);
    exact_squares += exact[i].value / scale * (exact[i].value / scale);
    if (off != 0) relative_squares += off / exact[i].value * (off / exact[i].value);
    sum += result;
    exact_sum += exact[i].value;
    const double share = allowed == 0 ? (off == 0 ? 0 : 2) : static_cast<double>(off / allowed);
    // A NaN is the farthest off.
    error.of_bound = share <= error.of_bound ? error.of_bound : share;
    if (exact[i].magnitude != 0) error.max = std::max(error.max, static_cast<double>(off / exact[i].magnitude));
  }
  error.rms = static_cast<double>(std::sqrt(squares / exact_squares));
  error.relative_rms = static_cast<double>(std::sqrt(relative_squares / static_cast<long double>(exact.size())));
  error.lost = static_cast<double>(1 - sum / exact_sum);
  return error;
}

Simulated simulated_error(const algorithm::Algorithm& row, const Sample& sample) {
  return simulated_error(row, sample, CompactSchedule(row, sample.request, sample.count, sample.type->bytes));
}

Simulated simulated_error(const algorithm::Algorithm& row, const Sample& sample, const CompactSchedule& schedule) {
  std::vector<std::vector<std::byte>> inputs;
  for (int r = 0; r < sample.request.ranks; ++r) inputs.push_back(sample.input(r));
  Simulated simulated;
  const std::vector<std::byte> results = simulate(sample, schedule, inputs, simulated.same_everywhere);
  simulated.error = error_of(sample, documented_path(row, sample.request, sample.uses_wide_wire()),
                             exact_results(sample, inputs), results);
  return simulated;
}

}  // namespace tutti::numbers
