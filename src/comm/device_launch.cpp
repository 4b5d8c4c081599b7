#include "comm/device_launch.h"

#include "comm/call.h"
#include "cuda/context.h"
#include "cuda/stream_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>

namespace tutti::comm {
namespace {

struct Range {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
};
bool overlap(const Range& a, const Range& b) {
  const auto is_there = [](const Range& range) { return range.begin != 0 && range.bytes != 0; };
  return is_there(a) && is_there(b) && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

Range input_of(const PostedCall& part, int ranks) {
  return {reinterpret_cast<std::uintptr_t>(part.args.send), shape_of(part.args, ranks, part.rank).input_bytes};
}
Range output_of(const PostedCall& part, int ranks) {
  return {reinterpret_cast<std::uintptr_t>(part.args.receive), shape_of(part.args, ranks, part.rank).output_bytes};
}

bool same_factors(const MatchedCall& a, const MatchedCall& b) {
  return std::ranges::equal(a.parts, b.parts, [](const PostedCall& x, const PostedCall& y) {
    return x.args.scale == y.args.scale && x.args.scale_is_address == y.args.scale_is_address;
  });
}

}  // namespace

Signature signature_of(const CallArgs& args) {
  Signature signature;
  signature.count = args.count;
  signature.root = is_rooted(args.collective) ? args.root : 0;
  signature.collective = args.collective;
  signature.type = args.type;
  signature.op = args.op;
  signature.scaled = args.scaled ? 1 : 0;
  return signature;
}

DataType kernel_of(const CallArgs& args) { return reduces(args.collective) ? args.type : DataType::kUint8; }

/// By whoever has the meeting's mutex; others only look. Once for each call: its submission may be gone then.
void count_off(PostedCall& call, const Error* failure, bool broken) {
  if (!call.is_open) return;
  DeviceSubmission& submission = *call.submission;
  if (failure && !submission.failure) submission.failure = *failure;
  submission.broken |= broken;
  call.is_open = false;
  submission.open.store(submission.open.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

void DeviceLauncher::count_off(MatchedCall& call, const Status& status) const {
  for (PostedCall& part : call.parts) comm::count_off(part, status.ok() ? nullptr : &status.error(), has_begun_);
}

namespace {

void refuse(std::span<MatchedCall> calls, const Error& why) {
  for (MatchedCall& call : calls) {
    for (PostedCall& part : call.parts) count_off(part, &why, false);
  }
}

/// Nothing that is under way.
struct LeftPlace : DeviceWork {
  explicit LeftPlace(LaunchPlace&& its) : place(std::move(its)) {}
  bool is_through() const override { return true; }
  LaunchPlace place;
};

}  // namespace

DeviceLauncher::~DeviceLauncher() {
  try {
    DeviceWork::keep(std::move(trail_), std::nullopt);
    for (LaunchPlace& place : places_) {
      if (!place.device) continue;
      const int device = place.device->facts().ordinal;
      DeviceWork::leave(std::make_shared<LeftPlace>(std::move(place)), device);
    }
  } catch (const std::bad_alloc&) {
    // It goes at once.
  }
}

/// A graph may be launched while calls of the communicator run that nothing orders with it: what it replays keeps nothing between calls.
Result<bool> DeviceLauncher::goes_by_crews(const MatchedCall& call) const {
  const PostedCall& part = call.parts[0];
  if (part.path == DevicePath::kDirect) return false;
  TUTTI_TRY_ASSIGN(const cuda::Capture capture, cuda::capture_of(*place_of(part).device, part.args.stream));
  return capture.id == 0;
}

void DeviceLauncher::launch(std::span<MatchedCall> calls) {
  if (calls.empty()) return;
  // For all that follows on the first device, so that not each call of the driver needs it.
  const cuda::ContextScope scope(place_of(calls[0].parts[0]).device->context(), cuda::ContextUse::kStreams);
  if (!scope.status().ok()) return refuse(calls, scope.status().error());
  forget_pending();
  trail_->tidy();
  for (MatchedCall& call : calls) {
    const Result<bool> by_crews = goes_by_crews(call);
    if (!by_crews.ok()) {
      refuse({&call, 1}, by_crews.error());
      continue;
    }
    if (by_crews.value()) {
      finish();
      finish_crews(call);
      continue;
    }
    if (is_spread(call)) {
      finish();
      finish_spread(call);
      continue;
    }
    if (call.parts[0].args.count == 0) {
      all_pending_.push_back(&call);
      continue;
    }
    if (!takes(call)) finish();
    const Status admitted = admit(call);
    if (!admitted.ok()) refuse({&call, 1}, admitted.error());
  }
  finish();
}

void DeviceLauncher::forget_pending() {
  pending_.clear();
  all_pending_.clear();
  streams_.clear();
}

/// One launch waits for all its calls' streams, and all of them for it. So a call does not bring streams with it that have nothing to do
/// with the others: sends and receives of a rank's group do, but in a chain.
bool DeviceLauncher::shares_streams(const MatchedCall& call) const {
  if (place_of(call.parts[0]).device != place_of(pending_[0]->parts[0]).device) return false;
  const auto is_there = [&](const PostedCall& part) {
    return std::ranges::find(streams_, part.args.stream) != streams_.end();
  };
  return is_point_to_point(call.parts[0].args) ? std::ranges::any_of(call.parts, is_there)
                                               : std::ranges::all_of(call.parts, is_there);
}

bool DeviceLauncher::takes(const MatchedCall& call) const {
  if (pending_.empty()) return true;
  const CallArgs& args = call.parts[0].args;
  const MatchedCall& first = *pending_[0];
  if (!shares_streams(call)) return false;
  if (pending_.size() == cuda::kCallsMax || kernel_of(args) != kernel_of(first.parts[0].args)) return false;
  if (args.scaled && !same_factors(call, first)) return false;
  const int ranks = static_cast<int>(call.parts.size());
  for (const MatchedCall* other : pending_) {
    const int others = static_cast<int>(other->parts.size());
    for (const PostedCall& a : call.parts) {
      const Range written = output_of(a, ranks);
      const Range read = input_of(a, ranks);
      for (const PostedCall& b : other->parts) {
        const Range other_written = output_of(b, others);
        if (overlap(written, other_written) || overlap(read, other_written) || overlap(written, input_of(b, others))) {
          return false;
        }
      }
    }
  }
  return true;
}

/// None may wait for an event of another capture, nor of a stream that is not captured.
Status DeviceLauncher::admit(MatchedCall& call) {
  const std::size_t known = streams_.size();
  for (const PostedCall& part : call.parts) {
    if (std::ranges::find(streams_, part.args.stream) != streams_.end()) continue;
    Result<cuda::Capture> its = cuda::capture_of(*place_of(part).device, part.args.stream);
    if (its.ok() && !streams_.empty() && its.value().id != capture_.id) its = captures_differ();
    if (!its.ok()) {
      streams_.resize(known);
      return its.error();
    }
    capture_ = its.value();
    streams_.push_back(part.args.stream);
  }
  all_pending_.push_back(&call);
  pending_.push_back(&call);
  return {};
}

void DeviceLauncher::finish() {
  Status status = pending_.empty() ? Status() : put();
  for (MatchedCall* call : all_pending_) count_off(*call, status);
  has_begun_ = false;
  forget_pending();
}

Error captures_differ() {
  return error(
      Code::kInvalidUsage,
      "the ranks' streams are captured into different graphs, or some of them are not captured: the kernels of "
      "ranks in one process are put on all their streams at once; capture all of them into one graph (fork "
      "them from one stream by events)");
}

/// Of one call, as admit() finds it.
Result<cuda::Capture> DeviceLauncher::capture_of(const MatchedCall& call) const {
  std::optional<cuda::Capture> all;
  const PostedCall* last = nullptr;
  for (const PostedCall& part : call.parts) {
    const bool is_known = last && shares_stream(*last, part);
    last = &part;
    if (is_known) continue;
    TUTTI_TRY_ASSIGN(const cuda::Capture capture, cuda::capture_of(*place_of(part).device, part.args.stream));
    if (all && all->id != capture.id) return captures_differ();
    all = capture;
  }
  return *all;
}

/// Replays may come when the communicator is gone, and what would have unloaded the kernels with it.
Status DeviceLauncher::keep_for(const cuda::Capture& capture) {
  if (capture.id == 0 || capture.id == kept_for_) return {};
  for (const LaunchPlace& place : places_) {
    if (place.device) TUTTI_TRY(cuda::keep_for_graph(capture, place.device));
  }
  kept_for_ = capture.id;
  return {};
}

DeviceTrail::Ranks DeviceLauncher::ranks_of(std::span<const MatchedCall* const> calls) {
  DeviceTrail::Ranks ranks = 0;
  for (const MatchedCall* call : calls) {
    for (const PostedCall& part : call->parts) ranks |= bit_of(part.rank);
  }
  return ranks;
}

/// The communicator fails where this does, and still has to know when the stream is done.
Status DeviceLauncher::record_behind(const cuda::Event& event, cuda::StreamHandle stream) {
  Status recorded = event.record(stream);
  if (!recorded.ok()) (void)event.record(stream);
  return recorded;
}

Status DeviceLauncher::put() {
  const cuda::StreamHandle main = streams_[0];
  const LaunchPlace& place = place_of(pending_[0]->parts[0]);
  TUTTI_TRY(keep_for(capture_));
  // The graph keeps what it replays.
  const cuda::Event* behind = &place.event;
  if (capture_.id == 0) {
    TUTTI_TRY_ASSIGN(behind, trail_->on(place.device, main, ranks_of(pending_)));
  }
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    TUTTI_TRY(place.event.record(streams_[i]));
    TUTTI_TRY(place.event.hold(*place.device, main));
  }
  const Status given = put_kernel(main);
  has_begun_ = given.ok();  // also if there is no memory to say that what follows failed
  const Status recorded = streams_.size() > 1 || capture_.id == 0 ? record_behind(*behind, main) : Status();
  TUTTI_TRY(given);
  TUTTI_TRY(recorded);
  for (std::size_t i = 1; i < streams_.size(); ++i) TUTTI_TRY(behind->hold(*place.device, streams_[i]));
  return {};
}

void describe(cuda::FoldCall& to, const CallArgs& args, std::uint32_t ranks) {
  const bool moves = !reduces(args.collective);
  to.collective = args.collective;
  to.op = args.op == ReduceOp::kAverage || moves ? ReduceOp::kSum : args.op;
  to.scaled = args.scaled;
  to.root = is_rooted(args.collective) ? static_cast<std::uint32_t>(args.root) : 0;
  to.divisor = !moves && args.op == ReduceOp::kAverage ? static_cast<std::int32_t>(ranks) : 0;
  to.ranks = ranks;
  to.count = moves ? args.count * size_of(args.type) : args.count;
}

void fill(cuda::FoldCall& to, const MatchedCall& from) {
  const CallArgs& args = from.parts[0].args;
  describe(to, args, static_cast<std::uint32_t>(from.parts.size()));
  if (is_point_to_point(args)) {
    to.collective = Collective::kSend;
    to.ranks = 1;
    to.inputs[0] = from.parts[0].args.send;
    to.outputs[0] = from.parts[1].args.receive;
    return;
  }
  for (std::size_t r = 0; r < from.parts.size(); ++r) {
    to.inputs[r] = from.parts[r].args.send;
    to.outputs[r] = from.parts[r].args.receive;
  }
}

namespace {

/// Of the longest buffer: what the blocks have to go through. But for rooted calls all ranks' are as long.
std::uint64_t work_of(const MatchedCall& call) {
  std::uint64_t most = 0;
  for (const PostedCall& part : call.parts) {
    const CallShape shape = shape_of(part.args, static_cast<int>(call.parts.size()), part.rank);
    most = std::max<std::uint64_t>({most, shape.input_bytes, shape.output_bytes});
    if (!is_rooted(part.args.collective)) break;
  }
  return most;
}

/// A collective of a rank alone.
bool is_copy(const MatchedCall& call) {
  return call.parts.size() == 1 && !call.parts[0].args.scaled && !is_point_to_point(call.parts[0].args);
}
/// The driver knows best how.
Status put_copy(const cuda::Device& device, const MatchedCall& call, cuda::StreamHandle stream) {
  const CallArgs& args = call.parts[0].args;
  if (args.send == args.receive) return {};
  return cuda::copy_on_stream(device, args.receive, args.send, args.count * size_of(args.type), stream);
}

}  // namespace

Status DeviceLauncher::put_kernel(cuda::StreamHandle stream) {
  cuda::FoldLaunch launch;
  const cuda::Device& device = *place_of(pending_[0]->parts[0]).device;
  std::uint32_t blocks = 0;
  std::vector<void*> asides;
  Status status;
  for (const MatchedCall* call : pending_) {
    if (is_copy(*call)) {
      TUTTI_TRY(put_copy(device, *call, stream));
      continue;
    }
    cuda::FoldCall& fold = launch.calls[launch.call_count++];
    fill(fold, *call);
    fold.first_block = blocks;
    fold.block_count = cuda::fold_blocks(work_of(*call), device.facts().multiprocessors);
    blocks += fold.block_count;
    for (std::size_t r = 0; r < call->parts.size() && fold.scaled; ++r) {
      launch.factors[r] = {call->parts[r].args.scale, call->parts[r].args.scale_is_address};
    }
    for (std::size_t r = 0; r < call->parts.size() && status.ok(); ++r) {
      if (fold.collective != Collective::kAllToAll || fold.inputs[r] != fold.outputs[r]) continue;
      Result<void*> aside = cuda::copy_aside(device, fold.inputs[r], work_of(*call), stream);
      if (!aside.ok()) {
        status = aside.error();
        break;
      }
      asides.push_back(aside.value());
      fold.inputs[r] = aside.value();
    }
  }
  if (status.ok() && launch.call_count != 0) {
    status = device.launch(cuda::KernelKind::kFold, kernel_of(pending_[0]->parts[0].args), blocks, &launch, stream);
  }
  for (void* aside : asides) {
    const Status freed = cuda::free_aside(device, aside, stream);
    if (status.ok() && !freed.ok()) status = freed;
  }
  return status;
}

}  // namespace tutti::comm
