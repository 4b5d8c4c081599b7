// The payload loop: one or more blocks sum several sources, element by element and in the order given, into several destinations. What
// ReduceArgs (base/reduce.h) asks for, with the same bits as the host's kernels.
//
// A Thread, of a GPU (device_thread.cuh) or of an emulated block (sim/block_machine.h), gives:
//   index(), count(), block(), blocks()        its place in the launch
//   sync(), any(bool)                          all threads of the block; any: whether one of them said true
//   sync_apart()                               the same, where the threads of a warp come from different places
//   load(const T*), store(T*, value)           payload: 1, 2, 4, 8 or 16 (Chunk) bytes, aligned to as many
//   load_acquire, store_release                counts and announce words, system scope
//   load_words, store_words                    lines: a unit of two 8-byte words, each one atomic, relaxed
//   add(uint32_t*, n), claim(uint32_t*), is_claimed(const uint32_t*)   among the blocks of a launch
//   pause()                                    between two looks at something that others will change
// Here the order is load everything of some elements, then store them: a destination may be exactly a source.
#pragma once

#include "base/reduce.h"
#include "cuda/arithmetic.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// What a thread moves at a time.
struct alignas(16) Chunk {
  std::uint64_t words[2];
};

/// Blocks that share some work.
struct Workers {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
};

/// Any alignment.
template <class Element, class Thread>
TUTTI_DEVICE_CALL Element load_element(Thread& t, const void* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(Element) == 0) return t.load(static_cast<const Element*>(from));
  unsigned char bytes[sizeof(Element)];
  TUTTI_ROLLED
  for (std::size_t i = 0; i < sizeof(Element); ++i) bytes[i] = t.load(static_cast<const unsigned char*>(from) + i);
  Element element;
  __builtin_memcpy(&element, bytes, sizeof element);
  return element;
}
template <class Element, class Thread>
TUTTI_DEVICE_CALL void store_element(Thread& t, void* to, Element element) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(Element) == 0) return t.store(static_cast<Element*>(to), element);
  unsigned char bytes[sizeof(Element)];
  __builtin_memcpy(bytes, &element, sizeof element);
  TUTTI_ROLLED
  for (std::size_t i = 0; i < sizeof(Element); ++i) t.store(static_cast<unsigned char*>(to) + i, bytes[i]);
}

/// Where whole chunks lie in a range of elements: [head, head + chunks x per_chunk).
struct ChunkRange {
  std::uint64_t head = 0;
  std::uint64_t chunks = 0;
};

template <class Type>
inline constexpr bool kIsNarrow = !__is_same(
    typename Type::Element, typename Type::Accumulator);  ///< may have float32 among its sources and destinations

/// The operation is an argument: a branch that a whole chunk of every thread takes alike costs less than four copies of the loops.
template <class Thread, class Type>
class Fold {
 public:
  using Element = typename Type::Element;
  using Accumulator = typename Type::Accumulator;
  using Units = Packing<Type>;
  static constexpr int kPerUnit = Units::kCount;
  static constexpr int kPerChunk = 2 * kPerUnit;
  /// Chunks of a source that a thread has under way at once; the accumulators of all of them are registers.
  static constexpr int kUnroll = kPerChunk > 8 ? 2 : 4;
  /// Sources of which it has one chunk each under way, where there are few chunks.
  static constexpr int kBatch = 8;

  TUTTI_DEVICE_CALL Fold(Thread& thread, ReduceOp op, const ReduceArgs& args, Workers workers)
      : t_(thread), op_(op), args_(args), workers_(workers) {}

  TUTTI_DEVICE_CALL void run() {
    const ChunkRange range = chunk_range();
    if (range.chunks != 0) run_chunks(range);
    run_elements(range);
  }

 private:
  TUTTI_DEVICE_CALL bool is_wide(const std::uint8_t* wide, int i) const {
    return kIsNarrow<Type> && wide != nullptr && wide[i] != 0;
  }
  TUTTI_DEVICE_CALL const void* source(int s, std::uint64_t element) const {
    const std::size_t size = is_wide(args_.wide_sources, s) ? sizeof(Accumulator) : sizeof(Element);
    return static_cast<const unsigned char*>(args_.sources[s]) + element * size;
  }
  TUTTI_DEVICE_CALL void* destination(int d, std::uint64_t element) const {
    const std::size_t size = is_wide(args_.wide_destinations, d) ? sizeof(Accumulator) : sizeof(Element);
    return static_cast<unsigned char*>(args_.destinations[d]) + element * size;
  }
  TUTTI_DEVICE_CALL static bool is_aligned(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(Chunk) == 0;
  }

  /// Chunks, if one place in all sources and destinations is aligned for them.
  TUTTI_DEVICE_CALL ChunkRange chunk_range() const {
    const bool first_is_wide = is_wide(args_.wide_sources, 0);
    const std::size_t size = first_is_wide ? sizeof(Accumulator) : sizeof(Element);
    const std::uint64_t head_bytes = -reinterpret_cast<std::uintptr_t>(args_.sources[0]) % sizeof(Chunk);
    const std::uint64_t head = head_bytes / size;
    if (head_bytes % size != 0 || head >= args_.count) return {args_.count, 0};
    for (int s = 0; s < args_.source_count; ++s) {
      if (!is_aligned(source(s, head))) return {args_.count, 0};
    }
    for (int d = 0; d < args_.destination_count; ++d) {
      if (!is_aligned(destination(d, head))) return {args_.count, 0};
    }
    return {head, (args_.count - head) / kPerChunk};
  }

  // Chunks: a tile is kUnroll chunks of each thread; blocks take turns.

  TUTTI_DEVICE_CALL void run_chunks(const ChunkRange& range) {
    const bool plain = args_.wide_sources == nullptr && args_.wide_destinations == nullptr && args_.scales == nullptr;
    const std::uint64_t tile = std::uint64_t{t_.count()} * kUnroll;
    if (plain && range.chunks < workers_.count * tile) return run_few(range);
    for (std::uint64_t begin = workers_.index * tile; begin < range.chunks; begin += workers_.count * tile) {
      const std::uint64_t first = begin + t_.index();
      if (plain && begin + tile <= range.chunks) {
        run_tile(range.head, first);
      } else {
        const std::uint64_t end = begin + tile < range.chunks ? begin + tile : range.chunks;
        TUTTI_ROLLED
        for (std::uint64_t chunk = first; chunk < end; chunk += t_.count()) run_chunk(range.head + chunk * kPerChunk);
      }
    }
  }

  // So few chunks that some blocks would have no tile: each thread does one at a time, of several sources at once.

  TUTTI_DEVICE_CALL void run_few(const ChunkRange& range) {
    const std::uint64_t stride = std::uint64_t{workers_.count} * t_.count();
    TUTTI_ROLLED
    for (std::uint64_t chunk = std::uint64_t{workers_.index} * t_.count() + t_.index(); chunk < range.chunks;
         chunk += stride) {
      run_batched(range.head + chunk * kPerChunk);
    }
  }
  TUTTI_DEVICE_CALL void run_batched(std::uint64_t element) {
    Accumulator sums[kPerChunk] = {};
    TUTTI_ROLLED
    for (int first = 0; first < args_.source_count; first += kBatch) {
      Chunk held[kBatch] = {};
      TUTTI_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < args_.source_count) held[i] = t_.load(static_cast<const Chunk*>(source(first + i, element)));
      }
      TUTTI_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (first + i >= args_.source_count) break;
        Accumulator next[kPerChunk];
        unpack(held[i], next);
        if (first + i == 0) {
          TUTTI_UNROLL
          for (int e = 0; e < kPerChunk; ++e) sums[e] = next[e];
        } else {
          add<kPerChunk>(sums, next);
        }
      }
    }
    if (args_.divisor != 0) divide<kPerChunk>(sums);
    const Chunk packed = pack(sums);
    TUTTI_ROLLED
    for (int d = 0; d < args_.destination_count; ++d) t_.store(static_cast<Chunk*>(destination(d, element)), packed);
  }

  // kUnroll chunks of this thread, a block's width apart: the hot loop.

  TUTTI_DEVICE_CALL void run_tile(std::uint64_t head, std::uint64_t first) {
    Accumulator sums[kUnroll * kPerChunk] = {};
    gather(sums, head, first);
    if (args_.divisor != 0) divide<kUnroll * kPerChunk>(sums);
    Chunk packed[kUnroll];
    TUTTI_UNROLL
    for (int c = 0; c < kUnroll; ++c) packed[c] = pack(sums + c * kPerChunk);
    TUTTI_ROLLED
    for (int d = 0; d < args_.destination_count; ++d) {
      auto* const to = static_cast<Element*>(args_.destinations[d]);
      TUTTI_UNROLL
      for (int c = 0; c < kUnroll; ++c) t_.store(reinterpret_cast<Chunk*>(to + element_of(head, first, c)), packed[c]);
    }
  }
  TUTTI_DEVICE_CALL std::uint64_t element_of(std::uint64_t head, std::uint64_t first, int chunk) const {
    return head + (first + static_cast<std::uint64_t>(chunk) * t_.count()) * kPerChunk;
  }
  TUTTI_DEVICE_CALL static void unpack(const Chunk& chunk, Accumulator* to) {
    Units::unpack(chunk.words[0], to);
    Units::unpack(chunk.words[1], to + kPerUnit);
  }
  TUTTI_DEVICE_CALL static Chunk pack(const Accumulator* from) {
    return {{Units::pack(from), Units::pack(from + kPerUnit)}};
  }
  template <int kCount>
  TUTTI_DEVICE_CALL void add(Accumulator* sums, const Accumulator* next) const {
    switch (op_) {
      case ReduceOp::kProduct: return add_with<Product, kCount>(sums, next);
      case ReduceOp::kMax: return add_with<Max, kCount>(sums, next);
      case ReduceOp::kMin: return add_with<Min, kCount>(sums, next);
      default: return add_with<Sum, kCount>(sums, next);
    }
  }
  template <class Op, int kCount>
  TUTTI_DEVICE_CALL static void add_with(Accumulator* sums, const Accumulator* next) {
    TUTTI_UNROLL
    for (int i = 0; i < kCount; ++i) sums[i] = Op::template apply<Type>(sums[i], next[i]);
  }
  template <int kCount>
  TUTTI_DEVICE_CALL void divide(Accumulator* sums) const {
    TUTTI_UNROLL
    for (int i = 0; i < kCount; ++i) sums[i] = Type::divide(sums[i], args_.divisor);
  }

  TUTTI_DEVICE_CALL void load_chunks(Chunk* to, int s, std::uint64_t head, std::uint64_t first) {
    const auto* const from = static_cast<const Element*>(args_.sources[s]);
    TUTTI_UNROLL
    for (int c = 0; c < kUnroll; ++c)
      to[c] = t_.load(reinterpret_cast<const Chunk*>(from + element_of(head, first, c)));
  }
  /// The next source's chunks are on their way while one's are added.
  TUTTI_DEVICE_CALL void gather(Accumulator* sums, std::uint64_t head, std::uint64_t first) {
    Chunk next[kUnroll];
    load_chunks(next, 0, head, first);
    TUTTI_UNROLL
    for (int c = 0; c < kUnroll; ++c) unpack(next[c], sums + c * kPerChunk);
    if (args_.source_count == 1) return;
    load_chunks(next, 1, head, first);
    TUTTI_ROLLED
    for (int s = 1; s < args_.source_count; ++s) {
      Chunk now[kUnroll];
      TUTTI_UNROLL
      for (int c = 0; c < kUnroll; ++c) now[c] = next[c];
      if (s + 1 < args_.source_count) load_chunks(next, s + 1, head, first);
      TUTTI_UNROLL
      for (int c = 0; c < kUnroll; ++c) {
        Accumulator values[kPerChunk];
        unpack(now[c], values);
        add<kPerChunk>(sums + c * kPerChunk, values);
      }
    }
  }

  // One chunk, of which some sources or destinations may be float32, or have a factor.

  TUTTI_DEVICE_CALL void run_chunk(std::uint64_t element) {
    Accumulator sums[kPerChunk] = {};
    TUTTI_ROLLED
    for (int s = 0; s < args_.source_count; ++s) {
      Accumulator next[kPerChunk];
      load_any(next, s, element);
      if (s == 0) {
        TUTTI_UNROLL
        for (int i = 0; i < kPerChunk; ++i) sums[i] = next[i];
      } else {
        add<kPerChunk>(sums, next);
      }
    }
    if (args_.divisor != 0) divide<kPerChunk>(sums);
    TUTTI_ROLLED
    for (int d = 0; d < args_.destination_count; ++d) store_any(d, element, sums);
  }
  TUTTI_DEVICE_CALL void load_any(Accumulator* to, int s, std::uint64_t element) {
    const auto* const from = static_cast<const Chunk*>(source(s, element));
    if constexpr (kIsNarrow<Type>) {
      if (is_wide(args_.wide_sources, s)) {
        TUTTI_UNROLL
        for (int i = 0; i < kPerChunk / 4; ++i) {
          const Chunk chunk = t_.load(from + i);
          __builtin_memcpy(to + 4 * i, &chunk, sizeof chunk);
        }
        return;
      }
    }
    unpack(t_.load(from), to);
    if (args_.scales == nullptr || args_.scales[s] == nullptr) return;
    const Accumulator by = factor(s);
    TUTTI_UNROLL
    for (int i = 0; i < kPerChunk; ++i) to[i] = Type::decode(Type::encode(Type::product(to[i], by)));
  }
  /// Written before this launch, or by this block before its last barrier.
  TUTTI_DEVICE_CALL Accumulator factor(int s) const {
    Element element;
    __builtin_memcpy(&element, args_.scales[s], sizeof element);
    return Type::decode(element);
  }
  TUTTI_DEVICE_CALL void store_any(int d, std::uint64_t element, const Accumulator* sums) {
    auto* const to = static_cast<Chunk*>(destination(d, element));
    if constexpr (kIsNarrow<Type>) {
      if (is_wide(args_.wide_destinations, d)) {
        TUTTI_UNROLL
        for (int i = 0; i < kPerChunk / 4; ++i) {
          Chunk chunk;
          __builtin_memcpy(&chunk, sums + 4 * i, sizeof chunk);
          t_.store(to + i, chunk);
        }
        return;
      }
    }
    t_.store(to, pack(sums));
  }

  // What is left: before the first chunk and behind the last one, or everything.

  TUTTI_DEVICE_CALL void run_elements(const ChunkRange& range) {
    const std::uint64_t behind = range.head + range.chunks * kPerChunk;
    const std::uint64_t left = args_.count - (behind - range.head);
    const std::uint64_t stride = std::uint64_t{workers_.count} * t_.count();
    for (std::uint64_t i = std::uint64_t{workers_.index} * t_.count() + t_.index(); i < left; i += stride) {
      run_element(i < range.head ? i : behind + (i - range.head));
    }
  }
  TUTTI_DEVICE_CALL void run_element(std::uint64_t i) {
    Accumulator sum{};
    TUTTI_ROLLED
    for (int s = 0; s < args_.source_count; ++s) {
      const Accumulator next = load_one(s, i);
      if (s == 0) {
        sum = next;
      } else {
        add<1>(&sum, &next);
      }
    }
    if (args_.divisor != 0) sum = Type::divide(sum, args_.divisor);
    TUTTI_ROLLED
    for (int d = 0; d < args_.destination_count; ++d) {
      if (is_wide(args_.wide_destinations, d)) {
        store_element<Accumulator>(t_, destination(d, i), sum);
      } else {
        store_element<Element>(t_, destination(d, i), Type::encode(sum));
      }
    }
  }
  TUTTI_DEVICE_CALL Accumulator load_one(int s, std::uint64_t i) {
    if (is_wide(args_.wide_sources, s)) return load_element<Accumulator>(t_, source(s, i));
    const Accumulator value = Type::decode(load_element<Element>(t_, source(s, i)));
    if (args_.scales == nullptr || args_.scales[s] == nullptr) return value;
    return Type::decode(Type::encode(Type::product(value, factor(s))));
  }

  Thread& t_;
  ReduceOp op_;
  const ReduceArgs& args_;
  Workers workers_;
};

/// One source, nothing to compute: bytes, NaNs' too. A place that is copied to itself is not written: others may be reading it.
template <class Thread>
class Copy {
 public:
  TUTTI_DEVICE_CALL Copy(Thread& thread, Workers workers) : t_(thread), workers_(workers) {}

  TUTTI_DEVICE_CALL void run(const void* from, void* const* to, int destinations, std::uint64_t bytes) {
    std::uintptr_t apart = 0;
    bool moves = false;
    for (int d = 0; d < destinations; ++d) {
      apart |= reinterpret_cast<std::uintptr_t>(from) ^ reinterpret_cast<std::uintptr_t>(to[d]);
      moves |= to[d] != from;
    }
    if (!moves) return;
    if (apart % sizeof(Chunk) == 0) {
      run_units<Chunk>(from, to, destinations, bytes);
    } else if (apart % sizeof(std::uint32_t) == 0) {
      run_units<std::uint32_t>(from, to, destinations, bytes);
    } else {
      run_units<unsigned char>(from, to, destinations, bytes);
    }
  }

 private:
  using Byte = unsigned char;
  static constexpr int kUnroll = 4;

  /// Source and destinations are aligned for a Unit at the same places.
  template <class Unit>
  TUTTI_DEVICE_CALL void run_units(const void* from, void* const* to, int destinations, std::uint64_t bytes) {
    const std::uint64_t lead = -reinterpret_cast<std::uintptr_t>(from) % sizeof(Unit);
    const std::uint64_t head = lead < bytes ? lead : bytes;
    const std::uint64_t units = (bytes - head) / sizeof(Unit);
    const std::uint64_t tile = std::uint64_t{t_.count()} * kUnroll;
    for (std::uint64_t begin = workers_.index * tile; begin < units; begin += workers_.count * tile) {
      const std::uint64_t first = begin + t_.index();
      if (sizeof(Unit) == sizeof(Chunk) && begin + tile <= units) {
        move<Unit, sizeof(Unit) == sizeof(Chunk) ? kUnroll : 1>(from, to, destinations, head, first);
      } else {
        const std::uint64_t end = begin + tile < units ? begin + tile : units;
        TUTTI_ROLLED
        for (std::uint64_t i = first; i < end; i += t_.count()) move<Unit, 1>(from, to, destinations, head, i);
      }
    }
    // The bytes before and behind.
    const std::uint64_t left = bytes - units * sizeof(Unit);
    const std::uint64_t stride = std::uint64_t{workers_.count} * t_.count();
    for (std::uint64_t i = std::uint64_t{workers_.index} * t_.count() + t_.index(); i < left; i += stride) {
      move<Byte, 1>(from, to, destinations, i < head ? i : units * sizeof(Unit) + i, 0);
    }
  }
  template <class Unit, int kUnits>
  TUTTI_DEVICE_CALL void move(const void* from, void* const* to, int destinations, std::uint64_t head,
                              std::uint64_t first) {
    const auto* const in = reinterpret_cast<const Unit*>(static_cast<const Byte*>(from) + head) + first;
    Unit held[kUnits];
    TUTTI_UNROLL
    for (int i = 0; i < kUnits; ++i) held[i] = t_.load(in + static_cast<unsigned>(i) * t_.count());
    TUTTI_ROLLED
    for (int d = 0; d < destinations; ++d) {
      if (to[d] == from) continue;
      auto* const out = reinterpret_cast<Unit*>(static_cast<Byte*>(to[d]) + head) + first;
      TUTTI_UNROLL
      for (int i = 0; i < kUnits; ++i) t_.store(out + static_cast<unsigned>(i) * t_.count(), held[i]);
    }
  }

  Thread& t_;
  Workers workers_;
};

#ifdef __CUDACC__
#define TUTTI_OUT_OF_LINE __noinline__
#else
#define TUTTI_OUT_OF_LINE
#endif

/// Does args with `workers`: all threads of each of them call this, and none of them waits.
template <class Type, class Thread>
TUTTI_DEVICE_CALL void fold(Thread& t, ReduceOp op, const ReduceArgs& args, Workers workers) {
  if (args.source_count == 1 && args.scales == nullptr && args.divisor == 0 && args.wide_sources == nullptr) {
    const std::uint64_t bytes = args.count * sizeof(typename Type::Element);
    return Copy<Thread>(t, workers).run(args.sources[0], args.destinations, args.destination_count, bytes);
  }
  Fold<Thread, Type>(t, op, args, workers).run();
}

}  // namespace tutti::cuda
