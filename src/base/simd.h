// The few vector operations that the reduction kernels are written in, for the instruction set that this file is
// compiled for. Only for reduce_kernels.cpp: everything is local to the file that includes it.
#pragma once

#include "base/float_formats.h"

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__) || defined(__AVX512BW__)
#include <immintrin.h>
#endif

#ifndef TUTTI_SIMD
#error "define TUTTI_SIMD: the namespace of the instruction set (portable, avx2, avx512)"
#endif

// Whether there is add_halves(): the assembler must know the instruction.
#ifndef TUTTI_SIMD_ADDS_HALVES
#define TUTTI_SIMD_ADDS_HALVES 0
#endif

namespace tutti::TUTTI_SIMD {
namespace {

#if defined(__AVX512BW__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class Element, int kBytes = kVectorBytes>
struct VectorOf {
  typedef Element Type __attribute__((vector_size(kBytes)));
};
template <class Element>
using Vector = typename VectorOf<Element>::Type;
using Bits32 = Vector<std::uint32_t>;
using Float32 = Vector<float>;

template <class T>
[[gnu::always_inline]] inline T load_unaligned(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
[[gnu::always_inline]] inline void store_unaligned(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

/// Moves fewer than 2 kBytes: the largest power of two first.
template <int kBytes = kVectorBytes / 2>
[[gnu::always_inline]] inline void copy_few(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  if ((bytes & kBytes) != 0) {
    __builtin_memcpy(out, in, kBytes);
    out += kBytes;
    in += kBytes;
  }
  if constexpr (kBytes > 1) copy_few<kBytes / 2>(out, in, bytes);
}

// load_partial reads the first `bytes` of a vector, fewer than it has, and makes the rest zero; store_partial writes
// as many. `to` and `from`, respectively, are a whole vector.
#if defined(__AVX512BW__)
[[gnu::always_inline]] inline __mmask64 mask_of(std::size_t bytes) { return (std::uint64_t{1} << bytes) - 1; }
[[gnu::always_inline]] inline void load_partial(void* to, const void* from, std::size_t bytes) {
  _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(mask_of(bytes), from));
}
[[gnu::always_inline]] inline void store_partial(void* to, const void* from, std::size_t bytes) {
  _mm512_mask_storeu_epi8(to, mask_of(bytes), _mm512_loadu_si512(from));
}
#else
[[gnu::always_inline]] inline void load_partial(void* to, const void* from, std::size_t bytes) {
  __builtin_memset(to, 0, kVectorBytes);
  copy_few(to, from, bytes);
}
[[gnu::always_inline]] inline void store_partial(void* to, const void* from, std::size_t bytes) {
  copy_few(to, from, bytes);
}
#endif

// stream_aligned writes past the caches, to a multiple of the value's size; finish_streams makes what this thread stores
// later visible after that.
#if defined(__AVX2__)
constexpr bool kHasStreams = true;
template <class T>
[[gnu::always_inline]] inline void stream_aligned(void* to, T value) {
#if defined(__AVX512BW__)
  if constexpr (sizeof value == 64) return _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)value);
#endif
  if constexpr (sizeof value == 32) _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)value);
  if constexpr (sizeof value == 16) _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)value);
}
[[gnu::always_inline]] inline void finish_streams() { _mm_sfence(); }
#else
constexpr bool kHasStreams = false;
template <class T>
[[gnu::always_inline]] inline void stream_aligned(void* to, T value) {
  store_unaligned(to, value);
}
[[gnu::always_inline]] inline void finish_streams() {}
#endif

/// Sixteen-bit codes: a vector of them, and half a vector.
using Words = Vector<std::uint16_t>;
using Halves = VectorOf<std::uint16_t, kVectorBytes / 2>::Type;

// Where the processor converts float16 itself: decode_half and encode_half do, and sum_of_halves adds. low_half and
// high_half take a vector apart, and join_words makes one of the lanes of two, the low one first (they must be under 2^16).
#if defined(__AVX2__)

#define TUTTI_SIMD_HALF 1
/// Eight numbers at a time; with AVX-512 also sixteen, a whole vector (Float32, Halves). Which is faster depends on the
/// processor.
using EightFloats = VectorOf<float, 32>::Type;
using EightHalves = VectorOf<std::uint16_t, 16>::Type;
[[gnu::always_inline]] inline EightFloats decode_half(EightHalves codes) {
  return (EightFloats)_mm256_cvtph_ps((__m128i)codes);
}
[[gnu::always_inline]] inline EightHalves encode_half(EightFloats v) {
  __m128i codes = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
  asm("" : "+x"(codes));  // into a register: AMD's processors take twice as long to convert into memory
  return (EightHalves)codes;
}
/// By a multiplier: 1 * a + b is rounded once, too, and AMD's processors convert where they add.
[[gnu::always_inline]] inline EightFloats sum_of_halves(EightFloats a, EightFloats b) {
  __m256 one = _mm256_set1_ps(1);
  asm("" : "+x"(one));  // else a compiler may see that it is a plain sum
  return (EightFloats)_mm256_fmadd_ps((__m256)a, one, (__m256)b);
}

#else
#define TUTTI_SIMD_HALF 0
#endif

#if defined(__AVX512BW__)
// The masked forms, with every lane on: the plain ones make GCC 12 warn of the value that they leave undefined.
[[gnu::always_inline]] inline Float32 decode_half(Halves codes) {
  return (Float32)_mm512_maskz_cvtph_ps(0xffff, (__m256i)codes);
}
[[gnu::always_inline]] inline Halves encode_half(Float32 v) {
  __m256i codes = _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  asm("" : "+v"(codes));
  return (Halves)codes;
}
[[gnu::always_inline]] inline Float32 sum_of_halves(Float32 a, Float32 b) {
  __m512 one = _mm512_set1_ps(1);
  asm("" : "+v"(one));
  return (Float32)_mm512_fmadd_ps((__m512)a, one, (__m512)b);
}
#if TUTTI_SIMD_ADDS_HALVES
/// AVX512-FP16's, which the processor has only for one variant of these kernels.
[[gnu::always_inline]] inline Words add_halves(Words a, Words b) {
  asm("vaddph %1, %0, %0" : "+v"(a) : "v"(b));
  return a;
}
#endif
[[gnu::always_inline]] inline Halves low_half(Words v) {
  return (Halves)_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)v, 0);
}
[[gnu::always_inline]] inline Halves high_half(Words v) {
  return (Halves)_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)v, 1);
}
[[gnu::always_inline]] inline Words join_words(Bits32 low, Bits32 high) {
  const __m512i pairs = _mm512_packus_epi32((__m512i)low, (__m512i)high);
  return (Words)_mm512_maskz_permutexvar_epi64(0xff, _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), pairs);
}
#elif defined(__AVX2__)
[[gnu::always_inline]] inline Halves low_half(Words v) { return (Halves)_mm256_castsi256_si128((__m256i)v); }
[[gnu::always_inline]] inline Halves high_half(Words v) { return (Halves)_mm256_extracti128_si256((__m256i)v, 1); }
[[gnu::always_inline]] inline Words join_words(Bits32 low, Bits32 high) {
  return (Words)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
}
#endif

// join_bfloats rounds two vectors of float32 to bfloat16, in the low and the high halves of the lanes. A NaN must have a
// lower half of zeros: every NaN that comes from bfloat16 numbers has, whatever was computed with them. With the halves
// sorted, one addition does both vectors: up where the lower half is more than 0x8000, or is that and the upper is odd.
#if defined(__AVX512BW__)
/// For a shuffle of bytes: the other half's, in each lane.
[[gnu::always_inline]] inline __m512i swapped_halves() {
  return _mm512_set4_epi32(0x0d0c0f0e, 0x09080b0a, 0x05040706, 0x01000302);
}
[[gnu::always_inline]] inline Bits32 join_bfloats(Float32 low, Float32 high) {
  constexpr int kAndNotOr = 0xae;  // ~a & b | c
  constexpr __mmask64 kLowHalves = 0x3333333333333333;
  const Bits32 zero{};
  const __m512i upper = _mm512_mask_shuffle_epi8((__m512i)high, kLowHalves, (__m512i)low, swapped_halves());
  const __m512i lower = _mm512_mask_shuffle_epi8((__m512i)low, ~kLowHalves, (__m512i)high, swapped_halves());
  const auto least =
      _mm512_ternarylogic_epi32(upper, (__m512i)(zero + 0x00010001U), (__m512i)(zero + 0x80008000U), kAndNotOr);
  const __mmask32 up = _mm512_cmpge_epu16_mask(lower, least);
  return (Bits32)_mm512_mask_sub_epi16(upper, up, upper, (__m512i)~zero);
}
#elif defined(__AVX2__)
[[gnu::always_inline]] inline Bits32 join_bfloats(Float32 low, Float32 high) {
  constexpr int kHighHalves = 0xaa;
  const auto upper = (Words)_mm256_blend_epi16((__m256i)((Bits32)low >> 16), (__m256i)high, kHighHalves);
  const auto lower = (Words)_mm256_blend_epi16((__m256i)low, (__m256i)((Bits32)high << 16), kHighHalves);
  // Up is where lower, less 1 if the upper is even, is 0x8000 or more: as a signed number, where it is negative.
  const auto even = (Words)_mm256_andnot_si256((__m256i)upper, (__m256i)(Words{} + 1));
  const __m256i rest = _mm256_subs_epu16((__m256i)lower, (__m256i)even);
  return (Bits32)(upper - (Words)_mm256_cmpgt_epi16(__m256i{}, rest));  // true is -1
}
#endif

}  // namespace
}  // namespace tutti::TUTTI_SIMD

template <>
struct tutti::LaneTypes<tutti::TUTTI_SIMD::Bits32> {
  using Float = tutti::TUTTI_SIMD::Float32;
  using Signed = tutti::TUTTI_SIMD::Vector<std::int32_t>;
};
