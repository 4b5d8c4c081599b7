// The kernels, compiled for the Block machine.
#pragma once

#include "base/dtype.h"
#include "cuda/kernel_abi.h"
#include "sim/block_machine.h"

namespace tutti::cuda {

sim::BlockMachine::Body fold_body(DataType dtype, const FoldLaunch& launch);
sim::BlockMachine::Body lines_body(DataType dtype, const LinesLaunch& launch);
sim::BlockMachine::Body lanes_body(DataType dtype, const LanesLaunch& launch);
std::size_t fold_shared_bytes();
std::size_t lanes_shared_bytes();

}  // namespace tutti::cuda
