#include "comm/device_ipc.h"

#include "comm/call.h"
#include "comm/device_launch.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace tutti::comm {
namespace {

/// How long kernels that were told to give up may take.
constexpr double kAbortGraceS = 10;

/// The blocks that a rank may launch: all ranks of a GPU have a share of what is resident there at once.
std::uint32_t blocks_of_all(const Control& control) {
  std::uint32_t most = cuda::kBlocksMax;
  for (int r = 0; r < control.ranks(); ++r) {
    const DeviceCard& card = control.device_card(r);
    std::uint32_t sharing = 0;
    for (int other = 0; other < control.ranks(); ++other) {
      sharing += std::memcmp(control.device_card(other).uuid, card.uuid, sizeof card.uuid) == 0;
    }
    most = std::min(most, card.resident_blocks / sharing);
  }
  return std::max(most, 1u);
}

/// Blocks in the longest buffer that any rank has.
std::uint64_t blocks_in_buffer(Collective collective, int ranks) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast: return 1;
    default: return static_cast<std::uint64_t>(ranks);
  }
}

}  // namespace

Result<std::unique_ptr<DeviceIpc>> DeviceIpc::open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                   int rank) {
  TUTTI_TRY_ASSIGN(auto segment, DeviceSegment::open(device, control, rank));
  std::unique_ptr<DeviceIpc> made(new DeviceIpc(std::move(device), std::move(segment)));
  TUTTI_TRY_ASSIGN(made->last_, cuda::Event::create(made->device_));
  TUTTI_TRY_ASSIGN(made->last_eager_, cuda::Event::create(made->device_));
  return made;
}

Status DeviceIpc::start(Communicator& communicator) {
  comm_ = &communicator;
  blocks_max_ = blocks_of_all(communicator.members().control);
  TUTTI_TRY_ASSIGN(watch_, DeviceWatch::start(communicator, *segment_));
  return {};
}

void DeviceIpc::finish() {
  executor::Backoff backoff(true);
  std::optional<std::chrono::steady_clock::time_point> failed_at;
  while (has_eager_) {
    const Result<bool> done = last_eager_.is_complete();
    if (!done.ok() || done.value()) return;
    if (!failed_at && comm_->failed()) failed_at = std::chrono::steady_clock::now();
    if (failed_at && std::chrono::steady_clock::now() - *failed_at > std::chrono::duration<double>(kAbortGraceS))
      return;
    backoff.wait();
  }
}

DeviceIpc::~DeviceIpc() {
  finish();
  watch_.reset();
}

Status DeviceIpc::enqueue(std::span<const CallArgs> calls) {
  if (std::ranges::any_of(calls, is_point_to_point)) {
    return error(
        Code::kInvalidUsage,
        "ncclSend and ncclRecv on GPU memory among ranks in several processes are not supported yet, and nothing "
        "was done; use collectives, or give all ranks one process");
  }
  for (const CallArgs& call : calls) {
    Status status = put(call);
    if (status.ok()) continue;
    comm_->fail(status.error().code, comm_->rank(), status.error().message);
    return status;
  }
  return {};
}

Status DeviceIpc::put(const CallArgs& args) {
  TUTTI_TRY_ASSIGN(const cuda::Capture capture, cuda::capture_of(*device_, args.stream));
  TUTTI_TRY(follow_last(args.stream, capture.id));
  watch_->note(signature_of(args), capture.id == 0);
  TUTTI_TRY(put_pieces(args));
  return end_call(args.stream, capture.id);
}

Status DeviceIpc::follow_last(cuda::StreamHandle stream, std::uint64_t capture) {
  // What is captured and what is not has no order but that of the program's launches.
  if (!has_last_ || stream == last_stream_ || capture != last_capture_) return {};
  return last_.hold(*device_, stream);
}

Status DeviceIpc::end_call(cuda::StreamHandle stream, std::uint64_t capture) {
  TUTTI_TRY(last_.record(stream));
  has_last_ = true;
  last_stream_ = stream;
  last_capture_ = capture;
  if (capture != 0) return {};
  TUTTI_TRY(last_eager_.record(stream));
  has_eager_ = true;
  return {};
}

Status DeviceIpc::put_pieces(const CallArgs& args) {
  const std::uint64_t element_bytes = size_of(args.type);
  // Whole cache lines, so that all blocks begin aligned.
  const std::uint64_t block_bytes =
      DeviceSegment::kStagingBytes / blocks_in_buffer(args.collective, comm_->ranks()) / 128 * 128;
  Piece piece;
  do {
    piece.count = std::min<std::uint64_t>(args.count - piece.first, block_bytes / element_bytes);
    TUTTI_TRY(put_piece(args, piece));
    piece.first += piece.count;
  } while (piece.first < args.count);
  return {};
}

Status DeviceIpc::put_piece(const CallArgs& args, const Piece& piece) {
  const CallShape shape = shape_of(args, comm_->ranks(), comm_->rank());
  TUTTI_TRY(copy_blocks(args, piece, shape.input_bytes, true));
  TUTTI_TRY(launch(args, piece, shape.input_bytes != 0, shape.output_bytes != 0));
  return copy_blocks(args, piece, shape.output_bytes, false);
}

Status DeviceIpc::copy_blocks(const CallArgs& args, const Piece& piece, std::size_t bytes, bool in) {
  const std::size_t block_bytes = args.count * size_of(args.type);
  const std::size_t piece_bytes = piece.count * size_of(args.type);
  const std::size_t first = piece.first * size_of(args.type);
  for (std::size_t block = 0; block * block_bytes < bytes; ++block) {
    const std::size_t at = block * block_bytes + first;
    std::byte* const staged = (in ? segment_->input() : segment_->output()) + block * piece_bytes;
    TUTTI_TRY(in ? cuda::copy_in_order(*device_, staged, static_cast<const std::byte*>(args.send) + at, piece_bytes,
                                       args.stream)
                 : cuda::copy_in_order(*device_, static_cast<std::byte*>(args.receive) + at, staged, piece_bytes,
                                       args.stream));
  }
  return {};
}

Status DeviceIpc::launch(const CallArgs& args, const Piece& piece, bool uses_input, bool uses_output) {
  const auto rank = static_cast<std::size_t>(comm_->rank());
  CallArgs part = args;
  part.count = piece.count;
  cuda::FoldLaunch launch;
  launch.home = segment_->home();
  launch.call_count = 1;
  launch.announced.fingerprint = signature_of(args).fingerprint();
  launch.factors[rank] = {args.scale, args.scale_is_address};
  cuda::FoldCall& call = launch.calls[0];
  describe(call, part, static_cast<std::uint32_t>(comm_->ranks()));
  if (uses_input) {
    call.inputs[rank] = segment_->input();
    launch.announced.own.input = segment_->reference_to(segment_->input());
  }
  if (uses_output) {
    call.outputs[rank] = segment_->output();
    launch.announced.own.output = segment_->reference_to(segment_->output());
  }
  const std::uint64_t bytes = piece.count * size_of(args.type) * blocks_in_buffer(args.collective, comm_->ranks());
  constexpr std::uint64_t kBlockBytes = std::uint64_t{cuda::kThreads} * 16;
  call.block_count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / kBlockBytes, 1, blocks_max_));
  return device_->launch(cuda::KernelKind::kFold, kernel_of(args), call.block_count, &launch, args.stream);
}

}  // namespace tutti::comm
