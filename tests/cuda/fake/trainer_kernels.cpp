// tutti-train's kernels, their own code, and the product of its fake cuBLAS. Blocks run one after the other; where the threads of one meet they are
// fibers.
#include "gemm.h"
#include "world.h"

#include "sim/fiber.h"
#include "trainer/cuda/kernels.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace fake_driver {
namespace {

namespace kernels = tutti::trainer::kernels;
using tutti::sim::Fiber;

/// Fewer than on a GPU where they are fibers: enough to sum in several runs of rows.
constexpr std::uint32_t kFibers = 64;

class Thread {
 public:
  Thread(std::uint32_t index, std::uint32_t count, std::uint32_t block, std::uint32_t blocks, Fiber* fiber)
      : index_(index), count_(count), block_(block), blocks_(blocks), fiber_(fiber) {}
  std::uint32_t index() const { return index_; }
  std::uint32_t count() const { return count_; }
  std::uint32_t block() const { return block_; }
  std::uint32_t blocks() const { return blocks_; }
  void sync() const { fiber_->suspend(); }

 private:
  std::uint32_t index_, count_, block_, blocks_;
  Fiber* fiber_;
};

template <class Kernel>
void run_alone(const Kernel& kernel, std::uint32_t block, std::uint32_t blocks) {
  kernels::Nothing nothing;
  for (std::uint32_t t = 0; t < kernels::kKernelThreads; ++t) {
    Thread thread(t, kernels::kKernelThreads, block, blocks, nullptr);
    kernel.run(thread, nothing);
  }
}

/// A round takes every thread from one barrier to the next, in an order that changes.
template <class Kernel>
void run_together(const Kernel& kernel, std::uint32_t block, std::uint32_t blocks) {
  struct Runner {
    const Kernel* kernel;
    typename Kernel::Shared* shared;
    Thread thread;
  };
  static auto& fibers = *new std::vector<Fiber>(kFibers);  // under the world's lock
  // What nobody has written is no zero.
  typename Kernel::Shared shared;
  std::memset(static_cast<void*>(&shared), 0xa5, sizeof shared);
  std::vector<Runner> runners;
  runners.reserve(kFibers);
  for (std::uint32_t t = 0; t < kFibers; ++t) {
    runners.push_back({&kernel, &shared, Thread(t, kFibers, block, blocks, &fibers[t])});
    fibers[t].start(
        [](void* argument) {
          auto& self = *static_cast<Runner*>(argument);
          self.kernel->run(self.thread, *self.shared);
        },
        &runners.back());
  }
  for (std::uint32_t ended = 0, round = block; ended == 0; ++round) {
    for (std::uint32_t t = 0; t < kFibers; ++t) {
      Fiber& fiber = fibers[(t * 37 + round * 11) % kFibers];
      fiber.resume();
      ended += fiber.ended() ? 1 : 0;
    }
    if (ended != 0 && ended != kFibers) {
      std::fprintf(stderr, "fake driver: %u of %u threads of a block end where the others meet\n", ended, kFibers);
      std::abort();
    }
  }
}

template <class Kernel>
Work launch(const void* argument, unsigned blocks) {
  const auto* const kernel = static_cast<const Kernel*>(argument);
  return [kernel, blocks] {
    for (unsigned b = 0; b < blocks; ++b) {
      if constexpr (std::is_same_v<typename Kernel::Shared, kernels::Nothing>) {
        run_alone(*kernel, b, blocks);
      } else {
        run_together(*kernel, b, blocks);
      }
    }
    return true;
  };
}

void multiply(const Gemm& g) {
  const auto at = [](int row, int column, int stride) { return static_cast<std::size_t>(column) * stride + row; };
  for (int column = 0; column < g.n; ++column) {
    for (int row = 0; row < g.m; ++row) {
      float sum = 0;
      for (int i = 0; i < g.k; ++i) {
        sum += g.a[g.transposed_a ? at(i, row, g.lda) : at(row, i, g.lda)] *
               g.b[g.transposed_b ? at(column, i, g.ldb) : at(i, column, g.ldb)];
      }
      float& c = g.c[at(row, column, g.ldc)];
      c = g.beta == 0 ? sum : sum + g.beta * c;
    }
  }
}

}  // namespace

std::vector<Kernel> trainer_kernels() {
  return {
#define TUTTI_TRAINER_KERNEL(Kernel, name) {"tutti_train_" #name, sizeof(kernels::Kernel), launch<kernels::Kernel>},
#include "trainer/cuda/kernels.def"
#undef TUTTI_TRAINER_KERNEL
      {kGemmKernel, sizeof(Gemm),
       [](const void* argument, unsigned) -> Work {
         return [gemm = static_cast<const Gemm*>(argument)] {
           multiply(*gemm);
           return true;
         };
       }},
  };
}

}  // namespace fake_driver
