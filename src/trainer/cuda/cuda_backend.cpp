#include "trainer/cuda/cuda_backend.h"

#include "trainer/cuda/cublas.h"
#include "trainer/cuda/gpu.h"
#include "trainer/cuda/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tutti::trainer {
namespace {

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<Gpu> gpu, Cublas products)
      : gpu_(std::move(gpu)), products_(std::move(products)) {}

  tuttiDevice_t device() const override { return tuttiDeviceCuda; }
  std::string name() const override { return gpu_->name(); }

  void upload(void* to, const void* from, std::size_t bytes) override {
    then([&] { return gpu_->upload(to, from, bytes); });
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    then([&] { return gpu_->download(to, from, bytes); });
  }
  PlacedBatch place(const Batch& batch) override;

  void linear_forward(const float* x, const float* weight, const float* bias, float* y, LinearShape shape) override {
    if (shape.samples == 0) return;
    each(kernels::BiasRows{y, bias, shape.samples, shape.out}, shape.samples * shape.out);
    multiply({.rows = shape.samples, .columns = shape.out, .inner = shape.in, .a = x, .b = weight, .c = y, .beta = 1});
  }
  void linear_backward_parameters(const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                  LinearShape shape) override {
    if (shape.samples == 0) {
      clear(weight_grad, shape.in * shape.out * sizeof(float));
    } else {
      multiply({.rows = shape.in,
                .columns = shape.out,
                .inner = shape.samples,
                .a = x,
                .b = y_grad,
                .c = weight_grad,
                .transposed_a = true});
    }
    constexpr std::size_t kColumns = kernels::ColumnSums::kColumns;
    blocks(kernels::ColumnSums{y_grad, bias_grad, shape.samples, shape.out}, (shape.out + kColumns - 1) / kColumns);
  }
  void linear_backward_input(const float* y_grad, const float* weight, float* x_grad, LinearShape shape) override {
    if (shape.samples == 0) return;
    multiply({.rows = shape.samples,
              .columns = shape.in,
              .inner = shape.out,
              .a = y_grad,
              .b = weight,
              .c = x_grad,
              .transposed_b = true});
  }
  void activation_forward(Activation activation, float* y, std::size_t count) override {
    each(kernels::Activate{activation, y, count}, count);
  }
  void activation_backward(Activation activation, const float* y, float* grad, std::size_t count) override {
    each(kernels::ActivateGradient{activation, y, grad, count}, count);
  }
  void embedding_forward(const std::uint8_t* bytes, const float* table, float* x, std::size_t count,
                         std::size_t width) override {
    each(kernels::EmbeddingRows{bytes, table, x, count, width}, count * width);
  }
  void embedding_backward(const std::uint8_t* bytes, const float* x_grad, float* table_grad, std::size_t count,
                          std::size_t width) override {
    blocks(kernels::EmbeddingSums{bytes, x_grad, table_grad, count, width}, kernels::EmbeddingSums::kRows);
  }
  void softmax_cross_entropy(float* logits, const std::uint8_t* labels, std::size_t samples, std::size_t classes,
                             LossSums* sums) override {
    if (samples == 0) return;
    if (losses_.size() < samples) losses_ = zeros<kernels::SampleLoss>(samples);
    blocks(kernels::SoftmaxRows{logits, labels, losses_.data(), classes}, samples);
    blocks(kernels::LossTotal{losses_.data(), sums, samples}, 1);
  }
  void add(float* sum, const float* part, std::size_t count) override { each(kernels::Add{sum, part, count}, count); }
  void step(const SgdStep& sgd) override { each(kernels::Sgd{sgd}, sgd.count); }
  void step(const AdamStep& adam) override { each(kernels::Adam{adam}, adam.count); }

  cudaStream_t collectives() const override { return reinterpret_cast<cudaStream_t>(gpu_->collectives()); }
  void before_collectives() override {
    then([&] { return gpu_->before_collectives(); });
  }
  void after_collectives() override {
    then([&] { return gpu_->after_collectives(); });
  }
  Problem wait() override {
    then([&] { return gpu_->wait(); });
    return failure_;
  }
  double stood_still_ms() override { return gpu_->stood_still_ms(); }

 private:
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    std::shared_ptr<void> memory;
    then([&]() -> Status {
      TUTTI_TRY_ASSIGN(memory, gpu_->allocate(bytes));
      return {};
    });
    return memory;
  }
  std::shared_ptr<void> allocate_shared(std::size_t bytes) override;

  /// Unless something failed before.
  template <class Do>
  void then(const Do& what) {
    if (failure_) return;
    if (const Status status = what(); !status.ok()) {
      failure_ = Failure{fmt::format("{}: {}", gpu_->label(), status.error().message)};
    }
  }
  /// As many threads as elements, within reason.
  template <class Kernel>
  void each(const Kernel& kernel, std::size_t count) {
    constexpr std::size_t kBlocksMax = 4096;
    if (count == 0) return;
    blocks(kernel, std::min((count + kernels::kKernelThreads - 1) / kernels::kKernelThreads, kBlocksMax));
  }
  template <class Kernel>
  void blocks(const Kernel& kernel, std::size_t count) {
    then([&] { return gpu_->launch(kernel, count); });
  }
  void multiply(const Product& product) {
    then([&] { return products_.multiply(product); });
  }
  void clear(void* memory, std::size_t bytes) {
    then([&] { return gpu_->clear(memory, bytes); });
  }
  template <class T>
  const T* placed(Array<T>& to, const T* from, std::size_t count) {
    if (to.size() < count) to = zeros<T>(count);
    upload(to.data(), from, count * sizeof(T));
    return to.data();
  }

  std::unique_ptr<Gpu> gpu_;
  Cublas products_;
  Array<float> features_;
  Array<std::uint8_t> bytes_, labels_;
  Array<kernels::SampleLoss> losses_;
  Problem failure_;
};

PlacedBatch CudaBackend::place(const Batch& batch) {
  return {batch.samples, placed(features_, batch.features.data(), batch.features.size()),
          placed(bytes_, batch.bytes.data(), batch.bytes.size()),
          placed(labels_, batch.labels.data(), batch.labels.size())};
}

std::shared_ptr<void> CudaBackend::allocate_shared(std::size_t bytes) {
  if (failure_) return nullptr;
  void* memory = nullptr;
  if (tuttiSetDevice(tuttiDeviceCuda) != ncclSuccess || ncclMemAlloc(&memory, bytes) != ncclSuccess) {
    failure_ = Failure{fmt::format("{}: {} bytes of memory: {}", gpu_->label(), bytes, ncclGetLastError(nullptr))};
    return nullptr;
  }
  std::shared_ptr<void> shared(memory, [](void* allocated) {
    if (ncclMemFree(allocated) != ncclSuccess) (void)ncclMemFree(allocated);  // nothing, if it was freed
  });
  clear(memory, bytes);
  return shared;
}

Failure failure_of(const Error& error) { return Failure{"--device cuda: " + error.message}; }

Result<std::unique_ptr<Backend>> open_backend(int number) {
  TUTTI_TRY_ASSIGN(std::unique_ptr<Gpu> gpu, Gpu::open(number));
  TUTTI_TRY_ASSIGN(Cublas products, Cublas::open(gpu->computing(), gpu->driver_version()));
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(std::move(gpu), std::move(products)));
}

}  // namespace

Outcome<std::unique_ptr<Backend>> make_cuda_backend(int number) {
  auto opened = open_backend(number);
  if (!opened.ok()) return failure_of(opened.error());
  return std::move(opened).value();
}

Outcome<int> count_gpus() {
  const auto count = Gpu::count();
  if (!count.ok()) return failure_of(count.error());
  return count.value();
}

}  // namespace tutti::trainer
