#include "comm/shot_kernels.h"

#include "comm/call.h"
#include "comm/device_launch.h"
#include "comm/two_shot.h"
#include "cuda/stream_words.h"

namespace tutti::comm {
namespace {

/// One call that folds `ranks` sources of `count` elements into a destination, by as many blocks as that is worth.
Status fold(const cuda::Device& device, cuda::FoldLaunch& launch, DataType type, std::size_t count,
            cuda::StreamHandle stream) {
  if (count == 0) return {};
  cuda::FoldCall& call = launch.calls[0];
  launch.call_count = 1;
  call.collective = Collective::kReduce;
  call.count = count;
  call.block_count = cuda::fold_blocks(count * size_of(type), device.facts().multiprocessors);
  return device.launch(cuda::KernelKind::kFold, type, call.block_count, &launch, stream);
}

}  // namespace

Status scale_for_shot(const cuda::Device& device, const StagedPart& part, cuda::StreamHandle stream) {
  const ShotWork& work = part.shot;
  if (work.unscaled == nullptr) return {};
  for (std::size_t i = 0; i < work.blocks.count; ++i) {
    cuda::FoldLaunch launch;
    launch.factors[0] = {work.factor, work.factor_is_address};
    launch.calls[0].scaled = true;
    launch.calls[0].ranks = 1;
    launch.calls[0].inputs[0] = work.unscaled + i * work.blocks.pitch;
    launch.calls[0].outputs[0] = static_cast<std::byte*>(const_cast<void*>(part.args.send)) + i * work.blocks.bytes;
    TUTTI_TRY(fold(device, launch, part.args.type, work.blocks.bytes / size_of(part.args.type), stream));
  }
  return {};
}

Status add_up_shot(const cuda::Device& device, const StagedPart& part, int ranks, int rank, cuda::StreamHandle stream) {
  const ShotWork& work = part.shot;
  if (work.result == nullptr) return {};
  if (!reduces(part.args.collective)) return cuda::copy_on_stream(device, work.result, work.own, work.count, stream);
  const Shares shares(part.args, ranks);
  cuda::FoldLaunch launch;
  cuda::FoldCall& call = launch.calls[0];
  call.op = part.args.op == ReduceOp::kAverage ? ReduceOp::kSum : part.args.op;
  call.ranks = static_cast<std::uint32_t>(ranks);
  call.divisor = divisor_of(part.args, ranks);
  for (int r = 0; r < ranks; ++r) {
    const auto* const slots = static_cast<const std::byte*>(part.args.receive);
    call.inputs[r] = r == rank ? work.own : slots + static_cast<std::size_t>(r) * shares.slot_bytes();
  }
  call.outputs[0] = work.result;
  return fold(device, launch, part.args.type, work.count, stream);
}

}  // namespace tutti::comm
