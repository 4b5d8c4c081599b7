// FloatMode: while it lives, this thread's float arithmetic is IEEE 754's: rounding to nearest, subnormals kept, no traps.
// A caller compiled for fast mathematics has other modes, and every rank must get the same bits.
#pragma once

#include <cstdint>

namespace tutti {

/// Everything here is forced inline: the kernels that use it are compiled for several instruction sets.
class FloatMode {
 public:
  [[gnu::always_inline]] FloatMode() : callers_(read()) {
    if ((callers_ & kModes) != kStandard) write((callers_ & ~kModes) | kStandard);
    // The numbers are loaded after this, so that no arithmetic moves in front of it.
    asm volatile("" ::: "memory");
  }
  [[gnu::always_inline]] ~FloatMode() {
    asm volatile("" ::: "memory");
    if ((callers_ & kModes) != kStandard) write(callers_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: flush to zero, rounding, exception masks, denormals are zeros; the rest are flags of what has happened.
  static constexpr std::uint64_t kModes = 0xffc0;
  static constexpr std::uint64_t kStandard = 0x1f80;
  [[gnu::always_inline]] static std::uint64_t read() { return __builtin_ia32_stmxcsr(); }
  [[gnu::always_inline]] static void write(std::uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t kModes = ~std::uint64_t{0};
  static constexpr std::uint64_t kStandard = 0;
  [[gnu::always_inline]] static std::uint64_t read() {
    std::uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  [[gnu::always_inline]] static void write(std::uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else
  static constexpr std::uint64_t kModes = 0;
  static constexpr std::uint64_t kStandard = 0;
  [[gnu::always_inline]] static std::uint64_t read() { return 0; }
  [[gnu::always_inline]] static void write(std::uint64_t) {}
#endif

  std::uint64_t callers_;
};

/// What `work` returns where all ranks must come to the same, whatever modes their threads have. What it captures is loaded in here.
template <class Work>
[[gnu::noinline]] auto in_standard_mode(const Work& work) {
  const FloatMode standard;
  return work();
}

}  // namespace tutti
