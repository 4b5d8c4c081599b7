// Conversions between float32 and the narrower floats, for the instruction set that this file is compiled for. Only for
// reduce_kernels.cpp: everything is local to the file that includes it.
#pragma once

#include "base/float_formats.h"
#include "base/float_mode.h"
#include "base/reduce_mixed.h"
#include "base/simd.h"

#include <cstddef>
#include <cstdint>

namespace tutti::TUTTI_SIMD {
namespace {

/// Of whole arrays, elements in their order: what a vector of float32 holds at a time, the rest by way of a full vector.
template <class Format, class Element>
struct Conversion {
  static constexpr std::size_t kElements = kVectorBytes / sizeof(float);
  static constexpr std::size_t kStep = kElements * sizeof(Element);
  using Codes = typename VectorOf<Element, kStep>::Type;

  [[gnu::always_inline]] static void widen_vector(unsigned char* to, const unsigned char* from) {
    const Codes codes = load_unaligned<Codes>(from);
    store_unaligned(to, Format::template decode<Bits32>(__builtin_convertvector(codes, Bits32)));
  }
  [[gnu::always_inline]] static void narrow_vector(unsigned char* to, const unsigned char* from) {
    const Bits32 codes = Format::template encode<Bits32>(load_unaligned<Float32>(from));
    store_unaligned(to, __builtin_convertvector(codes, Codes));
  }

  static void widen(void* to, const void* from, std::size_t count) {
    const FloatMode standard;
    auto* wide = static_cast<unsigned char*>(to);
    const auto* narrow = static_cast<const unsigned char*>(from);
    for (; count >= kElements; count -= kElements, wide += kVectorBytes, narrow += kStep) widen_vector(wide, narrow);
    if (count == 0) return;
    unsigned char codes[kStep] = {};
    unsigned char numbers[kVectorBytes];
    __builtin_memcpy(codes, narrow, count * sizeof(Element));
    widen_vector(numbers, codes);
    __builtin_memcpy(wide, numbers, count * sizeof(float));
  }
  static void narrow(void* to, const void* from, std::size_t count) {
    const FloatMode standard;
    auto* narrow = static_cast<unsigned char*>(to);
    const auto* wide = static_cast<const unsigned char*>(from);
    for (; count >= kElements; count -= kElements, wide += kVectorBytes, narrow += kStep) narrow_vector(narrow, wide);
    if (count == 0) return;
    unsigned char codes[kStep];
    unsigned char numbers[kVectorBytes] = {};
    __builtin_memcpy(numbers, wide, count * sizeof(float));
    narrow_vector(codes, numbers);
    __builtin_memcpy(narrow, codes, count * sizeof(Element));
  }
  static constexpr FloatConversion kBoth = {widen, narrow};
};

#if TUTTI_SIMD_HALF
template <>
[[gnu::always_inline]] inline void Conversion<Float16, std::uint16_t>::widen_vector(unsigned char* to,
                                                                                    const unsigned char* from) {
  store_unaligned(to, decode_half(load_unaligned<Halves>(from)));
}
template <>
[[gnu::always_inline]] inline void Conversion<Float16, std::uint16_t>::narrow_vector(unsigned char* to,
                                                                                     const unsigned char* from) {
  store_unaligned(to, encode_half(load_unaligned<Float32>(from)));
}
#endif

}  // namespace
}  // namespace tutti::TUTTI_SIMD
