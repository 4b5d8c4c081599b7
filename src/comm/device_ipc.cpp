#include "comm/device_ipc.h"

#include "comm/call.h"
#include "comm/device_launch.h"
#include "comm/device_lines.h"
#include "comm/device_rank.h"
#include "cuda/stream_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace tutti::comm {
namespace {

/// By rank, the first one on the same GPU.
std::vector<int> leaders_of(const Membership& members) {
  std::vector<int> leaders;
  for (int r = 0; r < members.control.ranks(); ++r) {
    int leader = 0;
    while (!same_gpu(members.control, leader, r)) ++leader;
    leaders.push_back(leader);
  }
  return leaders;
}

}  // namespace

Result<std::shared_ptr<DeviceIpc>> DeviceIpc::open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                   int rank) {
  TUTTI_TRY_ASSIGN(auto segment, DeviceSegment::open(device, control, rank, SegmentUse::kProcesses));
  std::shared_ptr<DeviceIpc> made(new DeviceIpc(std::move(device), std::move(segment)));
  TUTTI_TRY_ASSIGN(made->order_, DeviceOrder::make(made->device_));
  TUTTI_TRY_ASSIGN(made->mail_, DeviceMail::open(control.device_card(rank)));
  constexpr std::size_t kEndsPutOff = 64;  // more take memory
  made->ended_.reserve(kEndsPutOff);
  return made;
}

Status DeviceIpc::link(const Membership& members, int rank) {
  segment_->map_others(members.reach);
  blocks_max_ = resident_share(members.control);
  if (!ranks_share_gpus(members.control)) return {};
  // No kernel waits for another one with the bells, so that they need not be resident together.
  blocks_max_ = 2 * device_->facts().multiprocessors;
  TUTTI_TRY_ASSIGN(bells_, DeviceBells::open(device_, members.control.bells(), leaders_of(members), rank));
  return {};
}

Status DeviceIpc::start(Communicator& communicator, const DeviceLinks& links) {
  comm_ = &communicator;
  TUTTI_TRY(segment_->link(links));
  std::vector<bool> works(static_cast<std::size_t>(communicator.ranks()), true);
  const std::vector<int> leaders = leaders_of(communicator.members());
  for (std::size_t r = 0; bells_ && r < works.size(); ++r) works[r] = leaders[r] == static_cast<int>(r);
  places_ = std::make_unique<DevicePlaces>(communicator, *segment_, device_, *mail_, order_, crew(), std::move(works));
  TUTTI_TRY_ASSIGN(watch_, DeviceWatch::start(communicator, *segment_, bells_.get()));
  return {};
}

std::uint32_t DeviceIpc::mapped() const {
  std::uint32_t bits = 0;
  for (std::size_t r = 0; r < segment_->mapped().size(); ++r) bits |= (segment_->mapped()[r] != nullptr ? 1u : 0u) << r;
  return bits;
}

Status DeviceIpc::give_lanes(std::shared_ptr<DeviceLanes> lanes) {
  const std::size_t at = segment_->end_of_staging() - DeviceFifos::kBytes;
  std::vector<std::byte*> memory;
  for (std::byte* const base : segment_->mapped()) memory.push_back(base == nullptr ? nullptr : base + at);
  const auto write = [this, at](std::size_t offset, const void* from, std::size_t bytes) {
    return segment_->write(at + offset, from, bytes);
  };
  TUTTI_TRY(lanes->connect(std::move(memory), write));
  lanes_ = std::move(lanes);
  return {};
}

DeviceIpc::~DeviceIpc() {
  close();
  if (places_) places_->close();
}

void DeviceIpc::end_registration(bool is_window, const void* memory, std::size_t bytes) {
  const std::lock_guard lock(ending_);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(ended_.empty() ? 1 : 0);
  ended_.push_back({is_window, memory, bytes});
  DeviceWork::finish(*comm_, [&] { return order_.is_through() || std::chrono::steady_clock::now() > until; });
  has_ended_ = true;
  if (order_.is_through()) run_ends();
}

void DeviceIpc::end_registrations() {
  if (!has_ended_) return;
  const std::lock_guard lock(ending_);
  finish();
  run_ends();
}

void DeviceIpc::end_idle_registrations() {
  if (!has_ended_) return;
  const std::unique_lock lock(ending_, std::try_to_lock);
  if (lock && order_.is_through()) run_ends();
}

void DeviceIpc::run_ends() {
  for (const auto& [is_window, memory, bytes] : ended_) {
    is_window ? places_->windows().remove(memory, bytes) : places_->exports().remove(memory, bytes);
  }
  ended_.clear();
  has_ended_ = false;
}

void DeviceIpc::close() {
  if (comm_ == nullptr) return;
  finish();
  if (watch_) watch_->leave();
  comm_ = nullptr;
}

Result<bool> DeviceIpc::takes(Communicator& communicator, const CallArgs& args) {
  end_idle_registrations();
  places_->exports().let_go();
  if (!bells_) return true;
  const std::uint64_t longest = DevicePlaces::longest_bytes(args, communicator.ranks());
  if (longest > communicator.members().control.settings().shared_gpu_host_bytes) return true;
  TUTTI_TRY_ASSIGN(const auto places, places_->in_windows(args));
  return places.has_value();
}

Status DeviceIpc::fail(Status status) const {
  if (!status.ok()) comm_->fail(status.error().code, comm_->rank(), status.error().message);
  return status;
}

Status DeviceIpc::look_at_captures(std::span<const CallArgs> calls) {
  captures_.clear();
  for (const CallArgs& call : calls) {
    if (!captures_.empty() && call.stream == calls[captures_.size() - 1].stream) {
      captures_.push_back(captures_.back());
      continue;
    }
    const Result<cuda::Capture> capture = cuda::capture_of(*device_, call.stream);
    if (!capture.ok() && capture.error().code == Code::kInvalidUsage) return capture.error();
    if (!capture.ok()) return fail(capture.error());
    captures_.push_back(capture.value());
  }
  return {};
}

Status DeviceIpc::arrive(std::span<const CallArgs> calls) {
  arrivals_.clear();
  TUTTI_TRY(look_at_captures(calls));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    auto& arrival = arrivals_.emplace_back();
    if (path_for(*comm_, calls[i]).path != DevicePath::kDirect) continue;
    is_told_ = true;
    Result<DevicePlaces::Arrival> made = places_->arrive(calls[i], captures_[i].id != 0);
    if (!made.ok()) return fail(made.error());
    arrival = std::move(made).value();
  }
  return {};
}

Status DeviceIpc::settle(std::span<const CallArgs> calls) {
  std::vector<DevicePlaces::Arrival> arrivals = std::exchange(arrivals_, {});
  if (arrivals.size() != calls.size()) TUTTI_TRY(look_at_captures(calls));
  arrivals.resize(calls.size());
  is_told_ = true;
  settled_.clear();
  next_ = done_ = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Result<Settled> settled = settle(calls[i], captures_[i], arrivals[i]);
    if (!settled.ok()) return fail(settled.error());
    settled_.push_back(std::move(settled).value());
  }
  return {};
}

Result<DeviceIpc::Settled> DeviceIpc::settle(const CallArgs& args, const cuda::Capture& capture,
                                             const DevicePlaces::Arrival& arrival) {
  Settled settled;
  if (capture.id != 0 && capture.id != held_by_) {
    TUTTI_TRY(cuda::keep_for_graph(capture, shared_from_this()));
    held_by_ = capture.id;
  }
  settled.capture = capture.id;
  settled.in_windows = arrival.windows.has_value();
  TUTTI_TRY_ASSIGN(settled.places, places_->settle(arrival));
  if (path_for(*comm_, args).path == DevicePath::kLanes) {
    TUTTI_TRY_ASSIGN(settled.lanes, lanes_->prepare(args));
  }
  return settled;
}

Result<bool> DeviceIpc::step(std::span<const CallArgs> calls) {
  const CallArgs& args = calls[next_];
  const Settled& settled = settled_[next_];
  if (done_ == 0) TUTTI_TRY(fail(begin(args, settled)));
  Status status = put_or_break_off(args, settled);
  if (status.ok() && done_ < args.count) return true;
  // Of a call that breaks off, too (I6).
  Status ended = order_.end(args.stream, settled.capture);
  if (status.ok()) status = std::move(ended);
  TUTTI_TRY(fail(std::move(status)));
  done_ = 0;
  is_told_ = ++next_ < calls.size();
  return is_told_;
}

void DeviceIpc::end_calls() {
  if (!std::exchange(is_told_, false)) return;
  comm_->fail(Code::kSystem, comm_->rank(), "a call broke off for want of memory");
}

Status DeviceIpc::begin(const CallArgs& args, const Settled& settled) {
  TUTTI_TRY(order_.follow(args.stream, settled.capture));
  using Way = DeviceWatch::Way;
  std::uint64_t stream = 0;
  if (bells_ && settled.capture == 0) {
    TUTTI_TRY_ASSIGN(stream, DeviceWatch::stream_key(*device_, args.stream));
  }
  const Way way = settled.in_windows ? Way::kWindows : Way::kKernels;
  return watch_->note(signature_of(args), way, settled.capture == 0, stream);
}

Status DeviceIpc::put_or_break_off(const CallArgs& args, const Settled& settled) try {
  return put(args, settled);
} catch (const std::bad_alloc&) {
  return Error{Code::kSystem, "out of memory"};  // a text that is short enough to take none
}

Status DeviceIpc::put(const CallArgs& args, const Settled& settled) {
  const auto& [capture, in_windows, places, lanes] = settled;
  // Whoever aborts waits for this thread, and the stream has yet to be let go of at each piece.
  if (capture == 0 && comm_->failed()) return comm_->failure();
  const Signature signature = signature_of(args);
  const DevicePath path = path_for(*comm_, args).path;
  if (path == DevicePath::kDirect && !places) return put_next_piece(args);
  done_ = args.count;
  if (path == DevicePath::kLanes) {
    TUTTI_TRY(put_lanes(args, lanes));
  } else if (path != DevicePath::kDirect) {
    TUTTI_TRY(put_lines(args, path));
  } else {
    const std::uint64_t bytes = args.count * size_of(args.type);
    std::uint32_t fingerprint = DeviceWatch::fingerprint_of(signature, in_windows);
    if (!in_windows) fingerprint = DeviceWatch::agreed(fingerprint);
    TUTTI_TRY(put_launches(args, *places, args.count, bytes, fingerprint));
  }
  return {};
}

Status DeviceIpc::put_lines(const CallArgs& args, DevicePath path) {
  LinesCall call(args, comm_->ranks(), path, DeviceWatch::fingerprint_of(signature_of(args), false));
  call.add(segment_->home(), args);
  return call.launch(*device_, blocks_max_, args.stream);
}

Status DeviceIpc::put_lanes(const CallArgs& args, const DeviceLanes::Part& part) {
  LanesCall call(args, comm_->ranks(), *lanes_, *part.plan, DeviceWatch::fingerprint_of(signature_of(args), false));
  call.add(comm_->rank(), segment_->home(), part, args);
  return call.launch(*device_, args.stream);
}

DeviceIpc::Staging DeviceIpc::staging_of(Collective collective, std::uint64_t ranks) const {
  std::uint64_t inputs = 1;
  std::uint64_t outputs = 1;
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast: outputs = 0; break;
    case Collective::kReduceScatter:
    case Collective::kScatter: inputs = ranks; break;
    case Collective::kAllGather:
    case Collective::kGather: outputs = ranks; break;
    default: inputs = outputs = ranks; break;
  }
  Staging staging;
  // Whole cache lines, so that all blocks of full pieces begin aligned.
  const std::size_t whole = DeviceSegment::kStagingBytes - (lanes_ ? DeviceFifos::kBytes : 0);
  staging.block_bytes = whole / (inputs + outputs) / 128 * 128;
  staging.output_at = outputs == 0 ? 0 : inputs * staging.block_bytes;
  staging.blocks = std::max(inputs, outputs);
  return staging;
}

Status DeviceIpc::put_next_piece(const CallArgs& args) {
  const Staging staging = staging_of(args.collective, static_cast<std::uint64_t>(comm_->ranks()));
  const Piece piece{done_, std::min<std::uint64_t>(args.count - done_, staging.block_bytes / size_of(args.type))};
  done_ += piece.count;
  return put_piece(args, staging, piece);
}

Status DeviceIpc::put_piece(const CallArgs& args, const Staging& staging, const Piece& piece) {
  const CallShape shape = shape_of(args, comm_->ranks(), comm_->rank());
  std::byte* const input = segment_->staging();
  std::byte* const output = segment_->staging() + staging.output_at;
  Places places;
  if (shape.input_bytes != 0) {
    places.input = input;
    places.announced.input = segment_->reference_to(input);
  }
  if (shape.output_bytes != 0) {
    places.output = output;
    places.announced.output = segment_->reference_to(output);
  }
  TUTTI_TRY(copy_blocks(args, piece, shape.input_bytes, true, input));
  TUTTI_TRY(put_launches(args, places, piece.count, piece.count * size_of(args.type) * staging.blocks,
                         DeviceWatch::fingerprint_of(signature_of(args), false)));
  return copy_blocks(args, piece, shape.output_bytes, false, output);
}

Status DeviceIpc::put_launches(const CallArgs& args, const Places& places, std::uint64_t count, std::uint64_t bytes,
                               std::uint32_t fingerprint) {
  const auto rank = static_cast<std::size_t>(comm_->rank());
  cuda::FoldLaunch launch;
  launch.home = segment_->home();
  launch.call_count = 1;
  launch.announced.own = places.announced;
  launch.announced.fingerprint = fingerprint;
  launch.factors[rank] = {args.scale, args.scale_is_address};
  cuda::FoldCall& call = launch.calls[0];
  CallArgs part = args;
  part.count = count;
  describe(call, part, static_cast<std::uint32_t>(comm_->ranks()));
  call.inputs[rank] = places.input;
  call.outputs[rank] = places.output;
  constexpr std::uint64_t kBlockBytes = std::uint64_t{cuda::kThreads} * 16;
  const auto blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / kBlockBytes, 1, blocks_max_));
  const auto put = [&](std::uint32_t count_of_blocks) {
    call.block_count = count_of_blocks;
    return device_->launch(cuda::KernelKind::kFold, kernel_of(args), count_of_blocks, &launch, args.stream);
  };
  if (!bells_) return put(blocks);
  TUTTI_TRY(
      bells_->begin(launch.announced, args.scaled ? &launch.factors[rank] : nullptr, size_of(args.type), args.stream));
  if (bells_->leads()) {
    launch.members = bells_->members();
    launch.members.learns = true;
    TUTTI_TRY(put(1));
    launch.members.learns = false;
    TUTTI_TRY(put(blocks));
  }
  return bells_->end(args.stream);
}

Status DeviceIpc::copy_blocks(const CallArgs& args, const Piece& piece, std::size_t bytes, bool in, std::byte* staged) {
  const std::size_t block_bytes = args.count * size_of(args.type);
  const std::size_t piece_bytes = piece.count * size_of(args.type);
  std::size_t at = piece.first * size_of(args.type);
  for (; at < bytes; at += block_bytes, staged += piece_bytes) {
    TUTTI_TRY(in ? cuda::copy_on_stream(*device_, staged, static_cast<const std::byte*>(args.send) + at, piece_bytes,
                                        args.stream)
                 : cuda::copy_on_stream(*device_, static_cast<std::byte*>(args.receive) + at, staged, piece_bytes,
                                        args.stream));
  }
  return {};
}

}  // namespace tutti::comm
