// Calls whose ranks are on several devices of this process: each device does its ranks' parts with loads and stores of the others' memory.
// Events order the launches: none begins before every rank's stream is there, and no stream goes on before all have ended. So no kernel
// waits for another here either.
#include "comm/call.h"
#include "comm/device_launch.h"
#include "cuda/access.h"
#include "schedule/tiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tutti::comm {
namespace {

void shift(cuda::FoldCall& call, std::uint64_t input_bytes, std::uint64_t output_bytes) {
  for (std::uint32_t r = 0; r < call.ranks; ++r) {
    if (call.inputs[r]) call.inputs[r] = static_cast<const std::byte*>(call.inputs[r]) + input_bytes;
    if (call.outputs[r]) call.outputs[r] = static_cast<std::byte*>(call.outputs[r]) + output_bytes;
  }
}

/// One block from one place to another.
cuda::FoldCall send(const cuda::FoldCall& from, const void* input, std::uint64_t input_bytes, void* output,
                    std::uint64_t output_bytes) {
  cuda::FoldCall call;
  call.collective = Collective::kSend;
  call.ranks = 1;
  call.count = from.count;
  call.inputs[0] = static_cast<const std::byte*>(input) + input_bytes;
  call.outputs[0] = static_cast<std::byte*>(output) + output_bytes;
  return call;
}

}  // namespace

cuda::FoldCall part_of(const cuda::FoldCall& from, std::uint32_t e, DataType type) {
  cuda::FoldCall part = from;
  const std::uint64_t block = from.count * size_of(type);
  switch (from.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast: {
      schedule::Tiling tiling;
      tiling.count = from.count;
      tiling.element_bytes = static_cast<std::uint32_t>(size_of(type));
      const std::uint64_t unit = tiling.part(from.count, from.ranks);
      const std::uint64_t begin = std::min(e * unit, from.count);
      part.count = std::min(unit, from.count - begin);
      shift(part, begin * size_of(type), begin * size_of(type));
      return part;
    }
    case Collective::kReduceScatter:
      part.collective = Collective::kReduce;
      part.root = e;
      shift(part, e * block, 0);
      return part;
    case Collective::kAllGather:
      part.collective = Collective::kBroadcast;
      part.root = e;
      shift(part, 0, e * block);
      return part;
    case Collective::kAllToAll:
      part.collective = Collective::kScatter;
      part.root = e;
      shift(part, 0, e * block);
      return part;
    case Collective::kGather: return send(from, from.inputs[e], 0, from.outputs[from.root], e * block);
    case Collective::kScatter: return send(from, from.inputs[from.root], e * block, from.outputs[e], 0);
    default: return part;
  }
}

bool DeviceLauncher::is_spread(const MatchedCall& call) const {
  return std::ranges::any_of(
      call.parts, [&](const PostedCall& part) { return place_of(part).device != place_of(call.parts[0]).device; });
}

std::mutex& DeviceLauncher::across_devices() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

void DeviceLauncher::finish_spread(MatchedCall& call) {
  const std::lock_guard lock(across_devices());
  const Status status = call.parts[0].args.count == 0 ? Status() : put_spread(call);
  count_off(call, status);
  has_begun_ = false;
}

/// What follows on any of the streams waits for what all of them were given.
Status DeviceLauncher::join_streams(const MatchedCall& call, const Events& events) {
  Status recorded;  // all: whoever unloads the kernels has to know when each stream is done
  for (std::size_t r = 0; r < events.size(); ++r) {
    Status one = record_behind(*events[r], call.parts[r].args.stream);
    if (recorded.ok()) recorded = std::move(one);
  }
  TUTTI_TRY(std::move(recorded));
  for (const PostedCall& waits : call.parts) {
    for (std::size_t r = 0; r < events.size(); ++r) {
      if (&call.parts[r] == &waits) continue;
      TUTTI_TRY(events[r]->hold(*place_of(waits).device, waits.args.stream));
    }
  }
  return {};
}

Status DeviceLauncher::allow_access(const MatchedCall& call) const {
  for (const PostedCall& part : call.parts) {
    const cuda::Device& owner = *place_of(part).device;
    std::vector<int> others;
    for (const PostedCall& other : call.parts) {
      const int ordinal = place_of(other).device->facts().ordinal;
      if (ordinal != owner.facts().ordinal && std::ranges::find(others, ordinal) == others.end())
        others.push_back(ordinal);
    }
    const CallShape shape = shape_of(part.args, static_cast<int>(call.parts.size()), part.rank);
    struct Buffer {
      const char* name;
      const void* address;
      std::size_t bytes;
    };
    const bool has_factor = part.args.scaled && part.args.scale_is_address;
    const std::array buffers = {
        Buffer{"sendbuff", part.args.send, shape.input_bytes},
        Buffer{"recvbuff", part.args.receive, shape.output_bytes},
        Buffer{"scalar", reinterpret_cast<const void*>(has_factor ? part.args.scale : 0), has_factor ? 1U : 0U}};
    for (const Buffer& buffer : buffers) {
      if (buffer.bytes == 0) continue;
      const Status status = cuda::allow_access(owner, buffer.address, buffer.bytes, others);
      if (status.ok()) continue;
      return error(status.error().code, fmt::format("{} {} of rank {}: {}", buffer.name, fmt::ptr(buffer.address),
                                                    part.rank, status.error().message));
    }
    if (part.args.collective == Collective::kAllToAll) TUTTI_TRY(cuda::allow_asides(owner, others));
  }
  return {};
}

Status DeviceLauncher::put_spread(const MatchedCall& call) {
  TUTTI_TRY(allow_access(call));
  TUTTI_TRY_ASSIGN(const cuda::Capture capture, capture_of(call));
  TUTTI_TRY(keep_for(capture));
  cuda::FoldCall whole;
  fill(whole, call);
  // In place an all-to-all's inputs are aside before anybody writes there.
  std::vector<void*> asides(call.parts.size());
  Status status;
  for (std::size_t r = 0; r < call.parts.size() && whole.collective == Collective::kAllToAll && status.ok(); ++r) {
    if (whole.inputs[r] != whole.outputs[r]) continue;
    const std::size_t bytes = whole.count * call.parts.size();
    Result<void*> aside =
        cuda::copy_aside(*place_of(call.parts[r]).device, whole.inputs[r], bytes, call.parts[r].args.stream);
    if (!aside.ok()) status = aside.error();
    if (aside.ok()) whole.inputs[r] = asides[r] = aside.value();
  }
  if (status.ok()) status = put_parts(call, whole, capture);
  for (std::size_t r = 0; r < asides.size(); ++r) {
    if (!asides[r]) continue;
    const Status freed = cuda::free_aside(*place_of(call.parts[r]).device, asides[r], call.parts[r].args.stream);
    if (status.ok() && !freed.ok()) status = freed;
  }
  return status;
}

Status DeviceLauncher::put_parts(const MatchedCall& call, const cuda::FoldCall& whole, const cuda::Capture& capture) {
  const DataType type = kernel_of(call.parts[0].args);
  const std::array calls = {&call};
  Events before;
  Events behind;
  for (const PostedCall& part : call.parts) {
    const LaunchPlace& place = place_of(part);
    behind.push_back(before.emplace_back(&place.event));
    if (capture.id != 0) continue;
    TUTTI_TRY_ASSIGN(behind.back(), trail_->on(place.device, part.args.stream, ranks_of(calls)));
  }
  TUTTI_TRY(join_streams(call, before));
  Status status;
  for (std::size_t e = 0; e < call.parts.size() && status.ok(); ++e) {
    // The receiver fetches what was sent.
    if (whole.collective == Collective::kSend && e == 0) continue;
    const PostedCall& part = call.parts[e];
    cuda::FoldLaunch launch;
    launch.calls[0] = part_of(whole, static_cast<std::uint32_t>(e), type);
    launch.call_count = 1;
    if (launch.calls[0].count == 0) continue;
    for (std::size_t r = 0; r < call.parts.size() && whole.scaled; ++r) {
      launch.factors[r] = {call.parts[r].args.scale, call.parts[r].args.scale_is_address};
    }
    const cuda::Device& device = *place_of(part).device;
    launch.calls[0].block_count =
        cuda::fold_blocks(launch.calls[0].count * size_of(type), device.facts().multiprocessors);
    status = device.launch(cuda::KernelKind::kFold, type, launch.calls[0].block_count, &launch, part.args.stream);
    has_begun_ |= status.ok();
  }
  Status joined = join_streams(call, behind);
  return status.ok() ? joined : status;
}

}  // namespace tutti::comm
