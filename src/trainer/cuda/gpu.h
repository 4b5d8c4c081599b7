// A rank's GPU: its context, the trainer's kernels, a stream to compute on and one for collectives, and the memory in which copies wait.
#pragma once

#include "trainer/cuda/kernels.h"

#include "base/result.h"
#include "cuda/driver.h"

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti::trainer {

class Gpu {
 public:
  /// GPUs that this process sees; kUnhandledCuda where there is no driver, or no GPU.
  static Result<int> count();
  /// GPU `number` modulo count(). Its context is current on the calling thread until this ends, on the same thread.
  static Result<std::unique_ptr<Gpu>> open(int number);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// "NVIDIA H100"
  const std::string& name() const { return name_; }
  /// "GPU 3 (NVIDIA H100)"
  std::string label() const;
  int driver_version() const { return driver_version_; }
  CUstream computing() const { return computing_; }
  CUstream collectives() const { return collectives_; }

  /// Zeros, which whoever holds them frees while this exists.
  Result<std::shared_ptr<void>> allocate(std::size_t bytes);

  /// The pinned memory through which copies go, piece by piece where they are longer.
  static constexpr std::size_t kStagingBytes = std::size_t{4} << 20;

  // On the stream to compute on:

  Status clear(void* memory, std::size_t bytes);
  /// `from`, of the host, may change when it returns.
  Status upload(void* to, const void* from, std::size_t bytes);
  /// `to`, of the host, has it after wait().
  Status download(void* to, const void* from, std::size_t bytes);
  template <class Kernel>
  Status launch(const Kernel& kernel, std::size_t blocks) {
    return launch(index_of(kernel), &kernel, blocks);
  }

  /// What collectives() is given later comes after what computing() has.
  Status before_collectives();
  /// What computing() is given later comes after what collectives() has.
  Status after_collectives();
  /// Until computing() has done all that it has.
  Status wait();
  /// Milliseconds in which computing() stood at after_collectives(), of those that wait() has seen; counts from 0 after each call.
  double stood_still_ms() { return std::exchange(stood_still_ms_, 0.0); }

 private:
  enum Index : std::size_t {
#define TUTTI_TRAINER_KERNEL(Kernel, name) k##Kernel,
#include "trainer/cuda/kernels.def"
#undef TUTTI_TRAINER_KERNEL
    kKernelCount
  };
#define TUTTI_TRAINER_KERNEL(Kernel, name) \
  static constexpr Index index_of(const kernels::Kernel&) { return k##Kernel; }
#include "trainer/cuda/kernels.def"
#undef TUTTI_TRAINER_KERNEL

  /// A download under way.
  struct Waiting {
    std::byte* to;
    std::span<const std::byte> staged;
  };

  Gpu() = default;
  Status start(int number);
  Status load_kernels();
  Status launch(Index index, const void* kernel, std::size_t blocks);
  /// Pinned memory for the beginning of so many bytes, one or more, that nobody else uses until the next wait(); where there is none left, it waits.
  Result<std::span<std::byte>> staging(std::size_t bytes);

  std::string name_;
  int driver_version_ = 0;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  bool is_current_ = false;
  CUmodule module_ = nullptr;
  std::array<CUfunction, kKernelCount> functions_{};
  CUstream computing_ = nullptr, collectives_ = nullptr;
  CUevent ready_ = nullptr;                      ///< to be sent
  CUevent computed_ = nullptr, sent_ = nullptr;  ///< at the last after_collectives()
  bool is_joined_ = false;                       ///< after_collectives() since the last wait()
  double stood_still_ms_ = 0;
  std::byte* staging_ = nullptr;
  std::size_t staging_used_ = 0;
  std::vector<Waiting> waiting_;
};

}  // namespace tutti::trainer
