// The reduction kernels. Compiled once for each instruction set, each time into a namespace of its own (TUTTI_SIMD):
// nothing here may leave a symbol that the linker could share between them, so no standard-library templates, and
// everything but kernel() and conversion() is local.
//
// One loop serves every data type, operation, number of sources and of destinations. It walks the buffers in groups of
// a few vectors; a group's accumulators stay in registers while the sources are folded into them from left to right,
// then are rounded once and stored to each destination. So every source is read once, every destination written once,
// and all sources of a group are read before any destination of it is written (which makes in place right).

#include "base/dtype.h"
#include "base/float_formats.h"
#include "base/float_mode.h"
#include "base/reduce.h"
#include "base/reduce_conversions.h"
#include "base/reduce_mixed.h"
#include "base/reduce_types.h"
#include "base/reduce_variants.h"
#include "base/simd.h"

#include <cstddef>
#include <cstdint>

namespace tutti::TUTTI_SIMD {
namespace {

using Byte = unsigned char;

// The operations.
struct Sum {
  static constexpr bool kIsSum = true;
  template <class A, class L>
  [[gnu::always_inline]] static L apply(L a, L b) {
    return A::sum(a, b);
  }
};
struct Product {
  static constexpr bool kIsSum = false;
  template <class A, class L>
  [[gnu::always_inline]] static L apply(L a, L b) {
    return A::product(a, b);
  }
};
struct Max {
  static constexpr bool kIsSum = false;
  template <class A, class L>
  [[gnu::always_inline]] static L apply(L a, L b) {
    return A::max(a, b);
  }
};
struct Min {
  static constexpr bool kIsSum = false;
  template <class A, class L>
  [[gnu::always_inline]] static L apply(L a, L b) {
    return A::min(a, b);
  }
};

/// Vectors of accumulators per group: enough independent chains to hide the latencies, few enough for the registers.
constexpr int kGroup = 8;

template <class Type>
constexpr bool kIsConverted = sizeof(typename Type::Element) < sizeof(typename Type::Lanes{}[0]);

/// What is frequent has loops of its own: sums, which gradients are combined by, and types that take few instructions. The
/// rest goes by one loop, or the library would be twice as large; so does all where an x86 processor has no AVX2.
#if defined(__x86_64__) && !defined(__AVX2__)
constexpr bool kIsCompact = true;
#else
constexpr bool kIsCompact = false;
#endif
template <class Type, class Op>
constexpr bool kHasOwnLoops = !kIsCompact && (Op::kIsSum || !kIsConverted<Type>);

/// The elements at `from`, each multiplied with the scale and rounded to the data type, in `to`.
template <class Type>
[[gnu::noinline]] void scale_vectors(Byte* to, const Byte* from, const void* scale, int vectors) {
  using Packed = typename Type::Packed;
  const auto factor = Type::splat(scale);
  for (int i = 0; i < vectors; ++i) {
    typename Type::Lanes lanes[Type::kLanes];
    Type::unpack(lanes, load_unaligned<Packed>(from + i * sizeof(Packed)));
    for (auto& lane : lanes) lane = Type::Arithmetic::product(lane, factor);
    store_unaligned(to + i * sizeof(Packed), Type::pack(lanes));
  }
}

[[gnu::always_inline]] inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

constexpr std::size_t kLine = 64;     ///< bytes of a cache line
constexpr std::size_t kLarge = 4096;  ///< bytes of a sum that may begin with what aligns the rest

/// How far ahead lines of sources of so many bytes are asked for: not at all where they may be in a cache.
[[gnu::always_inline]] inline std::size_t ahead_in(std::size_t bytes) {
  return bytes >= std::size_t{256} << 10 ? 1024 : 0;
}

/// Asks for the lines `ahead` of the `bytes` at `from`, for types that are converted: so many instructions work on each line
/// that the processor by itself does not look far ahead. They may lie behind the source's end.
template <class Type>
[[gnu::always_inline]] inline void prefetch(const Byte* from, std::size_t bytes, std::size_t ahead) {
  if constexpr (kIsConverted<Type>) {
    if (ahead == 0) return;
#pragma GCC unroll 8
    for (std::size_t line = 0; line < bytes; line += kLine) __builtin_prefetch(from + ahead + line);
  }
}

constexpr int kScaled = -1;  ///< in place of a number of sources: any, perhaps with scales and a divisor
constexpr int kAny = 0;      ///< any, without

/// Reduces kVectors vectors at `offset` bytes; with `partial` not 0 one, of which only the first `partial` bytes are
/// there. The first `streamed` destinations are written past the caches where they are aligned; `ahead` is prefetch's.
/// With kSources not kScaled there are no scales and no divisor, and so many sources unless it is kAny.
template <class Type, class Op, int kVectors, int kSources = kScaled>
[[gnu::always_inline]] inline void reduce_group(const ReduceArgs& args, std::size_t offset, int streamed,
                                                std::size_t ahead, std::size_t partial = 0) {
  using Lanes = typename Type::Lanes;
  using Packed = typename Type::Packed;
  constexpr int kLanes = Type::kLanes;
  constexpr std::size_t kStride = sizeof(Packed);
  Byte filled[kVectorBytes];
  Byte scaled[kVectors * kStride];

  const auto source_at = [&](int s) __attribute__((always_inline)) {
    const Byte* from = static_cast<const Byte*>(args.sources[s]) + offset;
    prefetch<Type>(from, kVectors * kStride, ahead);
    if (partial != 0) {
      load_partial(filled, from, partial);
      from = filled;
    }
    if (Op::kIsSum && kSources == kScaled && args.scales != nullptr && args.scales[s] != nullptr) {
      scale_vectors<Type>(scaled, from, args.scales[s], kVectors);
      from = scaled;
    }
    return from;
  };

  Lanes sums[kVectors * kLanes];
  const Byte* from = source_at(0);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) Type::unpack(sums + v * kLanes, load_unaligned<Packed>(from + v * kStride));
  const auto fold = [&](int s) __attribute__((always_inline)) {
    from = source_at(s);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Lanes next[kLanes];
      Type::unpack(next, load_unaligned<Packed>(from + v * kStride));
#pragma GCC unroll 4
      for (int i = 0; i < kLanes; ++i) {
        Lanes& sum = sums[v * kLanes + i];
        sum = Op::template apply<typename Type::Arithmetic>(sum, next[i]);
      }
    }
  };
  if constexpr (kSources <= kAny) {
#pragma GCC unroll 1
    for (int s = 1; s < args.source_count; ++s) fold(s);
  } else {
#pragma GCC unroll 8
    for (int s = 1; s < kSources; ++s) fold(s);
  }
  if (Op::kIsSum && kSources == kScaled && args.divisor != 0) Type::divide(sums, kVectors * kLanes, args.divisor);

  Packed packed[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) packed[v] = Type::pack(sums + v * kLanes);
  for (int d = 0; d < args.destination_count; ++d) {
    Byte* to = static_cast<Byte*>(args.destinations[d]) + offset;
    if (partial != 0) {
      __builtin_memcpy(filled, packed, kStride);
      store_partial(to, filled, partial);
    } else if (kHasStreams && d < streamed && is_aligned(to, kStride)) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) stream_aligned(to + v * kStride, packed[v]);
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store_unaligned(to + v * kStride, packed[v]);
    }
  }
}

constexpr std::size_t kInwards = 10240;    ///< bytes from which a part is reduced from its ends to its middle
constexpr std::size_t kDownOfMany = 8192;  ///< those at its end, of more than two sources

/// How many of `count` steps of so many bytes go downwards, for go_inwards(). None where they are written past the caches, or few; no more
/// than it takes of many sources, whose lines are fetched ahead less well downwards.
inline std::size_t steps_down(std::size_t count, std::size_t step, bool streams, int sources) {
  if (streams || count * step < kInwards) return 0;
  const std::size_t half = count / 2;
  return sources > 2 && half * step > kDownOfMany ? kDownOfMany / step : half;
}

/// Calls work(offset) for `count` steps of so many bytes from `offset` on: the last `down` from the end down, then the others from the start up.
/// What the processor fetches ahead by itself then lies in the middle, and not behind the end, where another rank's part begins: its
/// lines would leave that rank's cache, and come back at its next store.
template <class Work>
[[gnu::always_inline]] inline void go_inwards(std::size_t offset, std::size_t count, std::size_t step, std::size_t down,
                                              Work work) {
  if constexpr (!kHasStreams) {  // the portable kernels are merely right
    for (; count != 0; --count, offset += step) work(offset);
    return;
  }
  std::size_t at = offset + (count - 1) * step;
  std::size_t by = -step;
  std::size_t left = down;
#pragma GCC unroll 1
  for (int half = 0; half < 2; ++half) {  // one copy of the work's code for both
#pragma GCC unroll 1
    for (; left != 0; --left, at += by) work(at);
    left = count - down;
    at = offset;
    by = step;
  }
}

/// Two sources, nothing but Op, and so few destinations that all pointers stay in registers: the most frequent sum, in a
/// loop that starts fast. A cache line at a time: streams flow best when loads and stores alternate so. Goes on as long
/// as there are whole lines, and returns the new offset.
template <class Type, class Op, int kDestinations, bool kStreams>
[[gnu::always_inline]] inline std::size_t reduce_two(const ReduceArgs& args, std::size_t offset, std::size_t bytes) {
  using Packed = typename Type::Packed;
  constexpr int kVectors = kLine / sizeof(Packed);
  const auto* first = static_cast<const Byte*>(args.sources[0]);
  const auto* second = static_cast<const Byte*>(args.sources[1]);
  Byte* const to[] = {static_cast<Byte*>(args.destinations[0]),
                      static_cast<Byte*>(args.destinations[kDestinations - 1])};
  const std::size_t ahead = ahead_in(bytes);
  const std::size_t lines = (bytes - offset) / kLine;
  const std::size_t down = steps_down(lines, kLine, kStreams, 2);
  go_inwards(
      offset, lines, kLine, down, [&](std::size_t line) __attribute__((always_inline)) {
        prefetch<Type>(first + line, kLine, ahead);
        prefetch<Type>(second + line, kLine, ahead);
        Packed packed[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          typename Type::Lanes sums[Type::kLanes], next[Type::kLanes];
          Type::unpack(sums, load_unaligned<Packed>(first + line + v * sizeof(Packed)));
          Type::unpack(next, load_unaligned<Packed>(second + line + v * sizeof(Packed)));
#pragma GCC unroll 4
          for (int i = 0; i < Type::kLanes; ++i) {
            sums[i] = Op::template apply<typename Type::Arithmetic>(sums[i], next[i]);
          }
          packed[v] = Type::pack(sums);
        }
#pragma GCC unroll 2
        for (int d = 0; d < kDestinations; ++d) {
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) {
            Byte* at = to[d] + line + v * sizeof(Packed);
            kStreams ? stream_aligned(at, packed[v]) : store_unaligned(at, packed[v]);
          }
        }
      });
  return offset + lines * kLine;
}

[[gnu::always_inline]] inline bool is_reduction_of_two(const ReduceArgs& args) {
  return args.source_count == 2 && args.scales == nullptr && args.divisor == 0 && args.destination_count <= 2;
}

/// As reduce_two, past the caches, if all destinations are to be written so, and are aligned at `offset`.
template <class Type, class Op>
[[gnu::noinline]] std::size_t stream_two(const ReduceArgs& args, std::size_t offset, std::size_t bytes, int streamed) {
  if (!is_reduction_of_two(args) || streamed != args.destination_count) return offset;
  for (int d = 0; d < streamed; ++d) {
    if (!is_aligned(static_cast<Byte*>(args.destinations[d]) + offset, sizeof(typename Type::Packed))) return offset;
  }
  return streamed == 1 ? reduce_two<Type, Op, 1, true>(args, offset, bytes)
                       : reduce_two<Type, Op, 2, true>(args, offset, bytes);
}

/// How many vectors reduce_from does at a time: few where each takes many instructions.
template <class Type, class Op>
constexpr int kGroupVectors = kHasOwnLoops<Type, Op> ? kGroup / Type::kLanes
                              : !kIsConverted<Type>  ? kGroup / 2
                              : kIsCompact           ? 1
                                                     : kLine / sizeof(typename Type::Packed);

/// Reduces whole groups of so many vectors from `offset` on, and returns the new offset.
template <class Type, class Op, int kSources, int kVectors = kGroupVectors<Type, Op>>
[[gnu::always_inline]] inline std::size_t reduce_groups(const ReduceArgs& args, std::size_t offset, std::size_t bytes,
                                                        int streamed) {
  constexpr std::size_t kStep = kVectors * sizeof(typename Type::Packed);
  const std::size_t ahead = ahead_in(bytes);
  const std::size_t steps = (bytes - offset) / kStep;
  const std::size_t down = steps_down(steps, kStep, streamed > 0, args.source_count);
  go_inwards(
      offset, steps, kStep, down, [&](std::size_t at) __attribute__((always_inline)) {
        reduce_group<Type, Op, kVectors, kSources>(args, at, streamed, ahead);
      });
  return offset + steps * kStep;
}

/// As reduce_groups, for plain sums of 3 to 8 sources: each number of sources has a loop of its own, in which each
/// load reads one source only. A processor that foresees loads by their instruction then sees lines that follow each other.
/// For more sources it does nothing.
template <class Type, int kSources = 3>
[[gnu::noinline]] std::size_t sum_groups(const ReduceArgs& args, std::size_t offset, std::size_t bytes) {
  if constexpr (kSources > 8) {
    return offset;
  } else {
    if (args.source_count != kSources) return sum_groups<Type, kSources + 1>(args, offset, bytes);
    return reduce_groups<Type, Sum, kSources>(args, offset, bytes, 0);
  }
}

/// Reduces from `offset` on: whole groups, then vectors, then what is left. What goes past the caches does a line at a time: so loads and
/// stores of many buffers alternate, and flow best.
template <class Type, class Op>
[[gnu::noinline]] void reduce_from(const ReduceArgs& args, std::size_t offset, std::size_t bytes, int streamed) {
  constexpr std::size_t kStep = sizeof(typename Type::Packed);
  if constexpr (kHasOwnLoops<Type, Op>) {
    if (streamed > 0) offset = reduce_groups<Type, Op, kScaled, kLine / kStep>(args, offset, bytes, streamed);
    streamed = 0;  // what is left is less than a line
    if (Op::kIsSum && args.scales == nullptr && args.divisor == 0) {
      if constexpr (TUTTI_SIMD_HALF != 0 && kIsConverted<Type> && sizeof(typename Type::Element) == 2) {
        offset = sum_groups<Type>(args, offset, bytes);
      }
      offset = reduce_groups<Type, Op, kAny>(args, offset, bytes, streamed);
    }
  }
  offset = reduce_groups<Type, Op, kScaled>(args, offset, bytes, streamed);
#pragma GCC unroll 1
  for (; offset < bytes; offset += kStep) {
    const std::size_t rest = bytes - offset;
    reduce_group<Type, Op, 1>(args, offset, streamed, 0, rest < kStep ? rest : 0);
  }
}

/// Reduces up to a cache line's start in the first destination, if an element starts there; returns the new offset.
template <class Type, class Op>
[[gnu::noinline]] std::size_t reduce_head(const ReduceArgs& args, std::size_t bytes) {
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(args.destinations[0]) % kLine;
  if (head >= bytes || head % sizeof(typename Type::Element) != 0) return 0;
  reduce_from<Type, Op>(args, 0, head, 0);
  return head;
}

/// With streamed destinations.
template <class Type, class Op, class Two>
[[gnu::noinline]] void reduce_streamed(const ReduceArgs& args, std::size_t bytes, int streamed) {
  std::size_t offset = reduce_head<Type, Op>(args, bytes);
  if constexpr (kHasOwnLoops<Type, Op>) offset = stream_two<Two, Op>(args, offset, bytes, streamed);
  reduce_from<Type, Op>(args, offset, bytes, streamed);
  finish_streams();
}

/// How many destinations to write past the caches: none if one of them is a source, and thus in a cache already.
int streamed_destinations(const ReduceArgs& args) {
  if (!kHasStreams) return 0;
  for (int d = 0; d < args.streamed_count; ++d) {
    for (int s = 0; s < args.source_count; ++s) {
      if (args.destinations[d] == args.sources[s]) return 0;
    }
  }
  return args.streamed_count;
}

/// One source, nothing to compute. Several destinations are served from the cache.
void copy(const ReduceArgs& args, std::size_t bytes, int streamed) {
  if (streamed > 0) {
    using Bytes = Integer<std::uint8_t, std::uint8_t>;
    return reduce_streamed<Bytes, Sum, Bytes>(args, bytes, streamed);
  }
  const Byte* source = static_cast<const Byte*>(args.sources[0]);
  if (args.destination_count == 1) {
    if (args.destinations[0] != source) __builtin_memcpy(args.destinations[0], source, bytes);
    return;
  }
  constexpr std::size_t kBlock = 16384;
  for (std::size_t offset = 0; offset < bytes; offset += kBlock) {
    const std::size_t length = bytes - offset < kBlock ? bytes - offset : kBlock;
    for (int d = 0; d < args.destination_count; ++d) {
      Byte* to = static_cast<Byte*>(args.destinations[d]) + offset;
      if (to != source + offset) __builtin_memcpy(to, source + offset, length);
    }
  }
}

/// `Two`: the type by which two sources are reduced, with nothing else to it.
template <class Type, class Op, class Two>
[[gnu::noinline]] void reduce_any(const ReduceArgs& args) {
  const std::size_t bytes = args.count * sizeof(typename Type::Element);
  if (bytes == 0 || args.destination_count == 0) return;
  if (!Op::kIsSum && (args.scales != nullptr || args.divisor != 0)) __builtin_trap();  // reduce.h: only sums have these
  const int streamed = args.streamed_count > 0 ? streamed_destinations(args) : 0;
  if (args.source_count == 1 && args.scales == nullptr && args.divisor == 0) return copy(args, bytes, streamed);
  const FloatMode standard;
  if (kHasStreams && streamed > 0) return reduce_streamed<Type, Op, Two>(args, bytes, streamed);
  // Stores across two cache lines take twice as long; a large sum avoids them.
  std::size_t offset =
      bytes >= kLarge && !is_aligned(args.destinations[0], kLine) ? reduce_head<Type, Op>(args, bytes) : 0;
  if constexpr (kHasOwnLoops<Type, Op>) {
    if (is_reduction_of_two(args)) {
      offset = args.destination_count == 1 ? reduce_two<Two, Op, 1, false>(args, offset, bytes)
                                           : reduce_two<Two, Op, 2, false>(args, offset, bytes);
      if (offset == bytes) return;
    }
  }
  reduce_from<Type, Op>(args, offset, bytes, 0);
}

/// What small calls come to, by the shortest way.
[[gnu::always_inline]] inline bool is_small_sum_of_two(const ReduceArgs& args, std::size_t bytes) {
  return args.source_count == 2 && args.destination_count == 1 && args.scales == nullptr && args.divisor == 0 &&
         args.streamed_count <= 0 && bytes % kLine == 0 && bytes < kLarge;
}

template <class Type, class Op, class Two = Type>
void reduce(const ReduceArgs& args) {
  if constexpr (kHasOwnLoops<Type, Op>) {
    const std::size_t bytes = args.count * sizeof(typename Type::Element);
    if (is_small_sum_of_two(args, bytes)) {
      const FloatMode standard;
      reduce_two<Two, Op, 1, false>(args, 0, bytes);
      return;
    }
  }
  reduce_any<Type, Op, Two>(args);
}

struct Row {
  ReduceFunction functions[4];  // in ReduceOp's order
};
template <class Type>
constexpr Row kRow = {{reduce<Type, Sum>, reduce<Type, Product>, reduce<Type, Max>, reduce<Type, Min>}};

}  // namespace

// The two symbols of this file.

FloatConversion conversion(DataType type) {
  switch (type) {
    case DataType::kFloat16: return Conversion<Float16, std::uint16_t>::kBoth;
    case DataType::kBfloat16: return Conversion<Bfloat16, std::uint16_t>::kBoth;
    case DataType::kFloat8e4m3: return Conversion<Float8e4m3, std::uint8_t>::kBoth;
    case DataType::kFloat8e5m2: return Conversion<Float8e5m2, std::uint8_t>::kBoth;
    default: return {};
  }
}

ReduceFunction kernel(DataType type, ReduceOp op, ReduceVariant variant) {
  static constexpr Row kTable[kDataTypes] = {
      kRow<Integer<std::int8_t, std::uint8_t>>,     // kInt8
      kRow<Integer<std::uint8_t, std::uint8_t>>,    // kUint8
      kRow<Integer<std::int32_t, std::uint32_t>>,   // kInt32
      kRow<Integer<std::uint32_t, std::uint32_t>>,  // kUint32
      kRow<Integer<std::int64_t, std::uint64_t>>,   // kInt64
      kRow<Integer<std::uint64_t, std::uint64_t>>,  // kUint64
      kRow<FloatOf16>,                              // kFloat16
      kRow<WideFloat<float, std::uint32_t>>,        // kFloat32
      kRow<WideFloat<double, std::uint64_t>>,       // kFloat64
      kRow<BfloatOf16>,                             // kBfloat16
      kRow<FloatOf8<Float8e4m3>>,                   // kFloat8e4m3
      kRow<FloatOf8<Float8e5m2>>,                   // kFloat8e5m2
  };
  static constexpr Row kWholeHalves = kRow<WholeFloatOf16>;
  const int column = op == ReduceOp::kAverage ? 0 : static_cast<int>(op);
  if (type == DataType::kFloat16) {
    if (variant == ReduceVariant::kAvx512Half && column == 0) return reduce<WholeFloatOf16, Sum, AddedHalf>;
    if (variant >= ReduceVariant::kAvx512Whole) return kWholeHalves.functions[column];
  }
  return kTable[static_cast<int>(type)].functions[column];
}

}  // namespace tutti::TUTTI_SIMD
