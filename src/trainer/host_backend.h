// Layers on the processor: OpenBLAS for the matrix products, loops for the rest. Collectives go to a host stream, so they run while the
// caller computes.
#pragma once

#include "trainer/backend.h"

#include <chrono>
#include <memory>

namespace tutti::trainer {

class HostBackend : public Backend {
 public:
  static Outcome<std::unique_ptr<Backend>> make();
  ~HostBackend() override;

  tuttiDevice_t device() const override { return tuttiDeviceHost; }
  std::string name() const override { return "the host"; }

  void upload(void* to, const void* from, std::size_t bytes) override;
  void download(void* to, const void* from, std::size_t bytes) override;
  PlacedBatch place(const Batch& batch) override;

  void linear_forward(const float* x, const float* weight, const float* bias, float* y, LinearShape shape) override;
  void linear_backward_parameters(const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                  LinearShape shape) override;
  void linear_backward_input(const float* y_grad, const float* weight, float* x_grad, LinearShape shape) override;
  void activation_forward(Activation activation, float* y, std::size_t count) override;
  void activation_backward(Activation activation, const float* y, float* grad, std::size_t count) override;
  void embedding_forward(const std::uint8_t* bytes, const float* table, float* x, std::size_t count,
                         std::size_t width) override;
  void embedding_backward(const std::uint8_t* bytes, const float* x_grad, float* table_grad, std::size_t count,
                          std::size_t width) override;
  void softmax_cross_entropy(float* logits, const std::uint8_t* labels, std::size_t samples, std::size_t classes,
                             LossSums* sums) override;
  void add(float* sum, const float* part, std::size_t count) override;
  void step(const SgdStep& sgd) override;
  void step(const AdamStep& adam) override;

  cudaStream_t collectives() const override { return stream_; }
  void before_collectives() override {}  // what is computed is there
  void after_collectives() override;
  Problem wait() override;
  double stood_still_ms() override { return std::exchange(stood_still_ms_, 0.0); }

 private:
  HostBackend() = default;
  std::shared_ptr<void> allocate(std::size_t bytes) override { return host_zeros(bytes); }
  std::shared_ptr<void> allocate_shared(std::size_t bytes) override;

  cudaStream_t stream_ = nullptr;
  double stood_still_ms_ = 0;
  Problem failure_;
};

}  // namespace tutti::trainer
