// Built without nvcc.
#include "trainer/cuda/cuda_backend.h"

namespace tutti::trainer {
namespace {

Failure absent() {
  return Failure{
      "--device cuda: this tutti-train was built without CUDA (nvcc was not there); build it where the CUDA toolkit "
      "is"};
}

}  // namespace

Outcome<std::unique_ptr<Backend>> make_cuda_backend(int) { return absent(); }
Outcome<int> count_gpus() { return absent(); }

}  // namespace tutti::trainer
