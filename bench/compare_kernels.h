// The floor's inner loops: adding and copying with vectors as wide as the compiler's target has, with ordinary or with
// non-temporal stores (which go to memory past the caches).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::compare {

#if defined(__AVX512F__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif
#if defined(__x86_64__)
constexpr bool kHasNonTemporalStores = true;
#else
constexpr bool kHasNonTemporalStores = false;
#endif

enum class Store { kOrdinary, kNonTemporal };

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};

template <class Vector>
inline Vector load_vector(const void* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Non-temporal stores need `to` at a multiple of kVectorBytes.
template <Store kStore, class Vector>
inline void store_vector(void* to, Vector value) {
#if defined(__AVX512F__)
  if constexpr (kStore == Store::kNonTemporal) {
    _mm512_stream_si512(static_cast<__m512i*>(to), std::bit_cast<__m512i>(value));
    return;
  }
#elif defined(__AVX__)
  if constexpr (kStore == Store::kNonTemporal) {
    _mm256_stream_si256(static_cast<__m256i*>(to), std::bit_cast<__m256i>(value));
    return;
  }
#elif defined(__x86_64__)
  if constexpr (kStore == Store::kNonTemporal) {
    _mm_stream_si128(static_cast<__m128i*>(to), std::bit_cast<__m128i>(value));
    return;
  }
#endif
  std::memcpy(to, &value, sizeof value);
}

/// Non-temporal stores of this thread are visible before anything it stores later.
template <Store kStore>
inline void finish_stores() {
#if defined(__x86_64__)
  if constexpr (kStore == Store::kNonTemporal) _mm_sfence();
#endif
}

template <Store kStore>
inline bool stores_fit(const void* to) {
  return kStore == Store::kOrdinary || reinterpret_cast<std::uintptr_t>(to) % kVectorBytes == 0;
}

template <Store kStore>
void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  using Vector = VectorOf<std::uint8_t>::Type;
  std::size_t at = 0;
  if (stores_fit<kStore>(to)) {
    for (; at + kVectorBytes <= bytes; at += kVectorBytes)
      store_vector<kStore>(to + at, load_vector<Vector>(from + at));
  }
  std::memcpy(to + at, from + at, bytes - at);
  finish_stores<kStore>();
}

/// Elements [begin, end) of all inputs, added, to all outputs. An input may be an output.
template <class T, Store kStore, int kInputs, int kOutputs>
void add(const T* const* input_list, T* const* output_list, std::size_t begin, std::size_t end) {
  using Vector = typename VectorOf<T>::Type;
  constexpr std::size_t kWidth = kVectorBytes / sizeof(T);
  // Copies that no store can change: they stay in registers.
  const T* inputs[kInputs];
  T* outputs[kOutputs];
  std::copy_n(input_list, kInputs, inputs);
  std::copy_n(output_list, kOutputs, outputs);
  std::size_t at = begin;
  bool fit = true;
  for (int k = 0; k < kOutputs; ++k) fit = fit && stores_fit<kStore>(outputs[k] + begin);
  for (; fit && at + kWidth <= end; at += kWidth) {
    Vector sum = load_vector<Vector>(inputs[0] + at);
    for (int k = 1; k < kInputs; ++k) sum += load_vector<Vector>(inputs[k] + at);
    for (int k = 0; k < kOutputs; ++k) store_vector<kStore>(outputs[k] + at, sum);
  }
  for (; at < end; ++at) {
    T sum = inputs[0][at];
    for (int k = 1; k < kInputs; ++k) sum += inputs[k][at];
    for (int k = 0; k < kOutputs; ++k) outputs[k][at] = sum;
  }
  finish_stores<kStore>();
}

}  // namespace tutti::compare
