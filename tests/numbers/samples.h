// Sums that round: the inputs, what exact arithmetic makes of them, how far off a result may be and how far off it is.
#pragma once

#include "float_type.h"
#include "longest_path.h"
#include "schedule_sums.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::numbers {

enum class Operation : std::uint8_t { kSum, kAverage, kProduct, kScaledSum, kMax, kMin };
inline constexpr Operation kRoundingOperations[] = {Operation::kSum, Operation::kAverage, Operation::kProduct,
                                                    Operation::kScaledSum};
const char* name_of(Operation operation);
ReduceOp reduce_op_of(Operation operation);

enum class Data : std::uint8_t { kZeroMean, kPositive };
const char* name_of(Data data);

/// One call's inputs: normally distributed numbers or (positive) their magnitudes, each element's times a scale of its own.
/// The scale's logarithm is uniform from 1 to 2: results lie everywhere between two powers of two, as a rounding error
/// depends on that. Products get factors near 1. No result leaves the type's range.
struct Sample {
  const FloatType* type = nullptr;
  Operation operation = Operation::kSum;
  Data data = Data::kZeroMean;
  schedule::Request request;
  std::uint64_t count = 0;  ///< elements of a block
  std::uint64_t seed = 1;
  bool plain = false;      ///< all scales are 1
  bool wide_wire = false;  ///< partial sums travel as float32, where the operation is for that

  bool uses_wide_wire() const;

  std::uint32_t input_blocks() const { return schedule::input_blocks(request, request.root); }
  std::uint32_t output_blocks() const { return schedule::output_blocks(request, request.root); }
  std::vector<std::byte> input(int rank) const;
  double element_scale(std::uint64_t i) const;
  /// The factor of PreMulSum, as an element.
  std::uint64_t scale(int rank) const;
};

/// In more precision than float64: the value of result `i` of `block` (of the inputs), and its magnitude: the sum of the
/// magnitudes of what is added, or the product's.
struct Exact {
  long double value = 0;
  long double magnitude = 0;
};
std::vector<Exact> exact_results(const Sample& sample, const std::vector<std::vector<std::byte>>& inputs);

/// The most that a result may be off.
long double bound(const Sample& sample, const LongestPath& path, const Exact& exact);

/// Blocks of results in the order of their owners, once each.
std::vector<std::byte> simulate(const Sample& sample, const CompactSchedule& schedule,
                                const std::vector<std::vector<std::byte>>& inputs, bool& same_everywhere);

struct Error {
  double rms =
      0;  ///< root of the mean square of the errors, over that of the exact results; all elements in their scale
  double relative_rms = 0;  ///< root of the mean square of the relative errors
  double max = 0;           ///< the largest error over its result's magnitude
  double of_bound = 0;      ///< the largest share of its bound
  double lost = 0;          ///< how much smaller the results are than exact ones, all together
};
Error error_of(const Sample& sample, const LongestPath& path, const std::vector<Exact>& exact,
               const std::vector<std::byte>& results);

/// All of it: the schedule's sums, their error, and whether every rank had the same bits.
struct Simulated {
  Error error;
  bool same_everywhere = true;
};
Simulated simulated_error(const algorithm::Algorithm& row, const Sample& sample);
/// The same with the row's schedule for elements of this size made before.
Simulated simulated_error(const algorithm::Algorithm& row, const Sample& sample, const CompactSchedule& schedule);

}  // namespace tutti::numbers
