#include "base/reduce.h"

#include "base/assert.h"
#include "base/config.h"
#include "base/log.h"
#include "base/reduce_mixed.h"
#include "base/reduce_variants.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>

namespace tutti {

// Each of these is reduce_kernels.cpp, compiled for one instruction set, of which there may be several variants.
namespace portable {
ReduceFunction kernel(DataType type, ReduceOp op, ReduceVariant variant);
FloatConversion conversion(DataType type);
}  // namespace portable
#if defined(__x86_64__)
namespace avx2 {
ReduceFunction kernel(DataType type, ReduceOp op, ReduceVariant variant);
FloatConversion conversion(DataType type);
}  // namespace avx2
namespace avx512 {
ReduceFunction kernel(DataType type, ReduceOp op, ReduceVariant variant);
FloatConversion conversion(DataType type);
}  // namespace avx512
#endif

namespace {

constexpr std::string_view kVariantNames[kReduceVariants] = {"portable", "avx2", "avx512", "avx512-whole",
                                                             "avx512-half"};

/// AMD's Zen 4 converts 16 float16 in 2.6 times the time of 8; Zen 5 and Intel's processors in no more, or little more.
bool converts_by_halves() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amdfam19h");
#else
  return false;
#endif
}

/// The one that TUTTI_SIMD names, if this processor has it, else the best.
ReduceVariant choose_variant() {
  const std::string& wanted = config().simd;
  for (int i = kReduceVariants - 1; i >= 0; --i) {
    const auto variant = static_cast<ReduceVariant>(i);
    if (wanted == kVariantNames[i]) {
      if (is_usable(variant)) return variant;
      log_warn("TUTTI_SIMD={}: this processor or build does not have it; using the best it has instead", wanted);
    }
  }
  for (int i = kReduceVariants - 1; i > 0; --i) {
    const auto variant = static_cast<ReduceVariant>(i);
    if (variant >= ReduceVariant::kAvx512Whole && converts_by_halves()) continue;
    if (is_usable(variant)) return variant;
  }
  return ReduceVariant::kPortable;
}

#if defined(__x86_64__)
// Asked directly: clang's __builtin_cpu_supports does not know f16c before version 15. Registers are AVX's and AVX-512's.

bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx512_fp16() {
  constexpr unsigned kFp16 = 1u << 23;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kFp16) != 0;
}
#endif

bool find_usable(ReduceVariant variant) {
#if defined(__x86_64__)
  // These answers include that the operating system saves the registers.
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (variant == ReduceVariant::kAvx2) return has_avx2;
  if (variant == ReduceVariant::kAvx512Half && !has_avx512_fp16()) return false;
  if (variant >= ReduceVariant::kAvx512) {
    return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
#endif
  return variant == ReduceVariant::kPortable;
}

}  // namespace

std::string_view name_of(ReduceVariant variant) { return kVariantNames[static_cast<int>(variant)]; }

bool is_usable(ReduceVariant variant) {
  // Asked once: on a virtual machine each answer of the processor's takes some 10 us, as the host gives it.
  static const std::array<bool, kReduceVariants> usable = [] {
    std::array<bool, kReduceVariants> found{};
    for (int i = 0; i < kReduceVariants; ++i) found[i] = find_usable(static_cast<ReduceVariant>(i));
    return found;
  }();
  return usable[static_cast<int>(variant)];
}

ReduceFunction reduce_function_of(ReduceVariant variant, DataType type, ReduceOp op) {
  TUTTI_ASSERT(is_usable(variant));
#if defined(__x86_64__)
  if (variant == ReduceVariant::kAvx2) return avx2::kernel(type, op, variant);
  if (variant != ReduceVariant::kPortable) return avx512::kernel(type, op, variant);
#endif
  return portable::kernel(type, op, variant);
}

FloatConversion float_conversion_of(ReduceVariant variant, DataType type) {
  TUTTI_ASSERT(is_usable(variant) && is_narrow_float(type));
#if defined(__x86_64__)
  if (variant == ReduceVariant::kAvx2) return avx2::conversion(type);
  if (variant != ReduceVariant::kPortable) return avx512::conversion(type);
#endif
  return portable::conversion(type);
}

namespace {

ReduceVariant chosen_variant() {
  static const ReduceVariant variant = choose_variant();
  return variant;
}

/// One mixed reduction. Its kernels are known before it first runs.
template <DataType kType, ReduceOp kOp>
void mixed(const ReduceArgs& args) {
  static const MixedKernels kernels = {reduce_function(kType, kOp), reduce_function(DataType::kFloat32, kOp),
                                       float_conversion_of(chosen_variant(), kType), size_of(kType)};
  reduce_mixed(args, kernels);
}

/// By operation, in ReduceOp's order; an average is a sum.
template <DataType kType>
constexpr ReduceFunction kMixed[kReduceOps] = {mixed<kType, ReduceOp::kSum>, mixed<kType, ReduceOp::kProduct>,
                                               mixed<kType, ReduceOp::kMax>, mixed<kType, ReduceOp::kMin>,
                                               mixed<kType, ReduceOp::kSum>};

}  // namespace

ReduceFunction reduce_function(DataType type, ReduceOp op) { return reduce_function_of(chosen_variant(), type, op); }

void copy_past_caches(void* to, const void* from, std::size_t bytes) {
  static const ReduceFunction copy = reduce_function(DataType::kUint8, ReduceOp::kSum);
  ReduceArgs args;
  args.sources = &from;
  args.source_count = 1;
  args.destinations = &to;
  args.destination_count = 1;
  args.count = bytes;
  args.streamed_count = 1;
  copy(args);
}

bool has_fast_strings() {
#if defined(__x86_64__)
  static const bool fast = [] {
    constexpr unsigned kFastShortStrings = 1u << 4;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kFastShortStrings) != 0;
  }();
  return fast;
#else
  return false;
#endif
}

ReduceFunction reduce_mixed_function(DataType type, ReduceOp op) {
  TUTTI_ASSERT(is_narrow_float(type));
  const int column = static_cast<int>(op);
  switch (type) {
    case DataType::kFloat16: return kMixed<DataType::kFloat16>[column];
    case DataType::kBfloat16: return kMixed<DataType::kBfloat16>[column];
    case DataType::kFloat8e4m3: return kMixed<DataType::kFloat8e4m3>[column];
    default: return kMixed<DataType::kFloat8e5m2>[column];
  }
}

}  // namespace tutti
