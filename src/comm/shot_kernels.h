// What a stream does itself about the first shot of a sum or a broadcast (two_shot.h).
#pragma once

#include "comm/staged_part.h"
#include "cuda/device.h"

namespace tutti::comm {

/// Before the part's input is there for others. Nothing for all but PreMulSum's first shot.
Status scale_for_shot(const cuda::Device& device, const StagedPart& part, cuda::StreamHandle stream);
/// When what the others have sent is there. Nothing for all but first shots.
Status add_up_shot(const cuda::Device& device, const StagedPart& part, int ranks, int rank, cuda::StreamHandle stream);

}  // namespace tutti::comm
