// A Thread (payload.h) of the GPU.
#pragma once

#include "cuda/payload.h"

#include <cuda/atomic>

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

class DeviceThread {
 public:
  __device__ std::uint32_t index() const { return threadIdx.x; }
  __device__ std::uint32_t count() const { return blockDim.x; }
  __device__ std::uint32_t block() const { return blockIdx.x; }
  __device__ std::uint32_t blocks() const { return gridDim.x; }
  __device__ void sync() const { __syncthreads(); }
  /// The threads of a warp need not be at the same instruction, as they must for sync().
  __device__ void sync_apart() const { asm volatile("barrier.sync 0;" ::: "memory"); }
  __device__ bool any(bool mine) const { return __syncthreads_or(mine ? 1 : 0) != 0; }

  // Payload lies in global memory, this GPU's or a peer's.
  template <class T>
  __device__ T load(const T* from) const {
    __builtin_assume(__isGlobal(from));
    return *from;
  }
  template <class T>
  __device__ void store(T* to, const T& value) const {
    __builtin_assume(__isGlobal(to));
    *to = value;
  }
  __device__ Chunk load(const Chunk* from) const {
    __builtin_assume(__isGlobal(from));
    const auto both = *reinterpret_cast<const ulonglong2*>(from);
    return {{both.x, both.y}};
  }
  /// Said outright: the compiler would make two stores of what it has just packed.
  __device__ void store(Chunk* to, const Chunk& value) const {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "l"(value.words[0]), "l"(value.words[1])
                 : "memory");
  }

  __device__ std::uint64_t load_acquire(const std::uint64_t* word) const {
    return reference(word).load(::cuda::memory_order_acquire);
  }
  __device__ void store_release(std::uint64_t* word, std::uint64_t value) const {
    reference(word).store(value, ::cuda::memory_order_release);
  }
  __device__ std::uint64_t load_word(const std::uint64_t* word) const {
    return reference(word).load(::cuda::memory_order_relaxed);
  }
  __device__ void store_word(std::uint64_t* word, std::uint64_t value) const {
    reference(word).store(value, ::cuda::memory_order_relaxed);
  }
  /// One access of 16 bytes; each of its words is atomic, both together are not.
  __device__ void load_words(const std::uint64_t* from, std::uint64_t (&words)[2]) const {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words[0]), "=l"(words[1])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
  }
  __device__ void store_words(std::uint64_t* to, std::uint64_t low, std::uint64_t high) const {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "l"(low), "l"(high)
                 : "memory");
  }

  /// The value before. What the blocks before have done is seen by whoever adds last.
  __device__ std::uint32_t add(std::uint32_t* number, std::uint32_t by) const {
    return Number(*number).fetch_add(by, ::cuda::memory_order_acq_rel);
  }
  /// True for the first one only.
  __device__ bool claim(std::uint32_t* number) const {
    return Number(*number).exchange(1, ::cuda::memory_order_relaxed) == 0;
  }
  __device__ bool is_claimed(const std::uint32_t* number) const {
    return Number(*const_cast<std::uint32_t*>(number)).load(::cuda::memory_order_relaxed) != 0;
  }
  __device__ void pause() const {}

 private:
  using Word = ::cuda::atomic_ref<std::uint64_t, ::cuda::thread_scope_system>;
  using Number = ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_device>;
  static __device__ Word reference(const std::uint64_t* word) { return Word(*const_cast<std::uint64_t*>(word)); }
};

}  // namespace tutti::cuda
