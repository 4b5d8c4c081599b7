// Layers on a GPU. No CUDA header is needed to include this; built without nvcc, both functions say so.
#pragma once

#include "trainer/backend.h"
#include "trainer/outcome.h"

#include <memory>

namespace tutti::trainer {

/// On GPU `number` of those that this process sees, counted round: its context is the calling thread's until the back end is gone, which
/// must be on this thread.
Outcome<std::unique_ptr<Backend>> make_cuda_backend(int number);

/// The GPUs that this process sees; none is a failure. Not before a fork whose child uses them.
Outcome<int> count_gpus();

}  // namespace tutti::trainer
