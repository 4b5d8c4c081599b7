// The Device machine: what the lane interpreter needs, for one thread block. Thread 0 leads: it alone runs the interpreter, so that
// protocol state has one owner. The others serve: they wait for the payload work that the leader posts.
//
//   leader                              all other threads
//   ... protocol ...                    wait at the barrier
//   post the work, barrier  --------->  barrier passed: do their share
//   do its own share, barrier <-------  barrier, wait again
//
// Why it is right: the first barrier orders the leader's acquire loads before everybody's payload loads, the second orders everybody's
// payload stores before the leader's release store; both stores and loads of counts are at system scope and cumulative.
// It compiles; that it runs is for a GPU to show.
#pragma once

#include "base/reduce.h"

#include <cuda/atomic>

#include <cstddef>
#include <cstdint>

namespace tutti::cuda_device {

/// Float32 sums: the first row of the table of kernels that a GPU will need.
struct Float32Sum {
  using Element = float;
  static __device__ float apply(float a, float b) { return a + b; }
  static __device__ float scale(float value, const void* by) { return value * *static_cast<const float*>(by); }
  static __device__ float divide(float sum, int by) { return sum / static_cast<float>(by); }
};

/// What the leader has posted; in shared memory.
struct PostedWork {
  ReduceArgs args;
  bool over;
};

template <class Arithmetic>
class DeviceMachine {
 public:
  /// `abort_word`: not 0 = give up. `tiles`: device memory for staging(), `tile_bytes` each. `posted`: shared memory.
  __device__ DeviceMachine(const std::uint64_t* abort_word, std::byte* tiles, std::size_t tile_bytes,
                           PostedWork* posted)
      : abort_word_(abort_word), tiles_(tiles), tile_bytes_(tile_bytes), posted_(posted) {}

  // The leader's part.

  __device__ std::uint64_t load_acquire(const std::uint64_t* word) const {
    return reference(word).load(cuda::memory_order_acquire);
  }
  __device__ void store_release(std::uint64_t* word, std::uint64_t value) const {
    reference(word).store(value, cuda::memory_order_release);
  }
  __device__ std::uint64_t load_word(const std::uint64_t* word) const {
    return reference(word).load(cuda::memory_order_relaxed);
  }
  __device__ void store_word(std::uint64_t* word, std::uint64_t value) const {
    reference(word).store(value, cuda::memory_order_relaxed);
  }
  __device__ void load_bytes(void* to, const void* from, std::size_t bytes) const { __builtin_memcpy(to, from, bytes); }
  __device__ void store_bytes(void* to, const void* from, std::size_t bytes) const {
    __builtin_memcpy(to, from, bytes);
  }
  __device__ void prepare_write(const std::byte*, std::size_t) const {}
  __device__ bool aborted() const { return load_acquire(abort_word_) != 0; }
  __device__ void reduce(const ReduceArgs& args) const {
    posted_->args = args;
    posted_->over = false;
    __syncthreads();
    do_share(args);
    __syncthreads();
  }
  // No memory is reached by system calls from here.
  __device__ bool read_remote(std::uint32_t, std::uint64_t, std::byte*, std::size_t) const { return false; }
  __device__ bool write_remote(std::uint32_t, std::uint64_t, const std::byte*, std::size_t) const { return false; }
  __device__ std::byte* staging(std::size_t index, std::size_t) const { return tiles_ + index * tile_bytes_; }
  /// Lets the others go.
  __device__ void finish() const {
    posted_->over = true;
    __syncthreads();
  }

  /// The others' part: until finish().
  __device__ void serve() const {
    for (;;) {
      __syncthreads();
      if (posted_->over) return;
      do_share(posted_->args);
      __syncthreads();
    }
  }

 private:
  using Word = cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>;
  static __device__ Word reference(const std::uint64_t* word) { return Word(*const_cast<std::uint64_t*>(word)); }

  static __device__ void do_share(const ReduceArgs& args) {
    using Element = typename Arithmetic::Element;
    for (std::size_t i = threadIdx.x; i < args.count; i += blockDim.x) {
      Element sum = source<Element>(args, 0, i);
      for (int s = 1; s < args.source_count; ++s) sum = Arithmetic::apply(sum, source<Element>(args, s, i));
      if (args.divisor != 0) sum = Arithmetic::divide(sum, args.divisor);
      for (int d = 0; d < args.destination_count; ++d) {
        // Others may be reading a place that is copied to itself.
        const bool same = args.source_count == 1 && args.destinations[d] == args.sources[0] && !args.scales;
        if (!same || args.divisor != 0) static_cast<Element*>(args.destinations[d])[i] = sum;
      }
    }
  }
  template <class Element>
  static __device__ Element source(const ReduceArgs& args, int s, std::size_t i) {
    const Element value = static_cast<const Element*>(args.sources[s])[i];
    const void* const scale = args.scales ? args.scales[s] : nullptr;
    return scale ? Arithmetic::scale(value, scale) : value;
  }

  const std::uint64_t* abort_word_;
  std::byte* tiles_;
  std::size_t tile_bytes_;
  PostedWork* posted_;
};

}  // namespace tutti::cuda_device
