#include "comm/device_lines.h"

#include "comm/device_launch.h"

#include <algorithm>

namespace tutti::comm {

LinesCall::LinesCall(const CallArgs& args, int ranks, DevicePath path, std::uint32_t fingerprint)
    : type_(kernel_of(args)), message_bytes_(message_bytes(path, args.count * size_of(args.type), ranks)) {
  cuda::FoldCall call;
  describe(call, args, static_cast<std::uint32_t>(ranks));
  launch_.launch_ranks = 0;
  launch_.collective = call.collective;
  launch_.op = call.op;
  launch_.two_shot = path == DevicePath::kTwoShotLines;
  launch_.scaled = call.scaled;
  launch_.root = call.root;
  launch_.divisor = call.divisor;
  launch_.fingerprint = fingerprint | 1;
  launch_.count = call.count;
}

void LinesCall::add(const cuda::RankHome* home, const CallArgs& args) {
  const std::uint32_t k = launch_.launch_ranks++;
  launch_.homes[k] = home;
  launch_.inputs[k] = args.send;
  launch_.outputs[k] = args.receive;
  launch_.factors[k] = {args.scale, args.scale_is_address};
}

Status LinesCall::launch(const cuda::Device& device, std::uint32_t blocks_max, cuda::StreamHandle stream) {
  launch_.blocks_per_rank = std::min(cuda::lines_blocks(message_bytes_), blocks_max);
  const std::uint32_t blocks = launch_.launch_ranks * launch_.blocks_per_rank;
  return device.launch(cuda::KernelKind::kLines, type_, blocks, &launch_, stream);
}

Result<std::shared_ptr<DeviceLines>> DeviceLines::open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                       int rank) {
  std::shared_ptr<DeviceLines> made(new DeviceLines);
  TUTTI_TRY_ASSIGN(made->order_, DeviceOrder::make(device));
  TUTTI_TRY_ASSIGN(made->segment_, DeviceSegment::open(std::move(device), control, rank, SegmentUse::kOneProcess));
  return made;
}

Status DeviceLines::link(const Membership& members) {
  blocks_max_ = resident_share(members.control);
  return segment_->link(members.reach);
}

Status DeviceLines::start(Communicator& communicator) {
  comm_ = &communicator;
  TUTTI_TRY_ASSIGN(watch_, DeviceWatch::start(communicator, *segment_, nullptr));
  return {};
}

void DeviceLines::finish() const {
  if (comm_ != nullptr) order_.finish(*comm_);
}

void DeviceLines::close() {
  finish();
  watch_.reset();
  comm_ = nullptr;
}

namespace {

/// Those of the call's ranks that share a GPU, in order of rank.
using Crew = std::vector<const PostedCall*>;

std::vector<cuda::StreamHandle> streams_of(const Crew& crew) {
  std::vector<cuda::StreamHandle> streams;
  for (const PostedCall* part : crew) {
    if (std::ranges::find(streams, part->args.stream) == streams.end()) streams.push_back(part->args.stream);
  }
  return streams;
}

}  // namespace

void DeviceLauncher::finish_lines(MatchedCall& call) {
  bool begun = false;
  const Status status = call.parts[0].args.count == 0 ? Status() : put_lines(call, begun);
  for (PostedCall& part : call.parts) count_off(part, status.ok() ? nullptr : &status.error(), begun);
}

Status DeviceLauncher::put_lines(const MatchedCall& call, bool& begun) {
  std::vector<Crew> crews;
  for (const PostedCall& part : call.parts) {
    const auto is_its = [&](const Crew& crew) { return place_of(*crew[0]).device == place_of(part).device; };
    const auto found = std::ranges::find_if(crews, is_its);
    (found != crews.end() ? *found : crews.emplace_back()).push_back(&part);
  }
  // What can be refused is refused before anything is on a stream: a launch that the others' do not follow waits for an abort.
  std::uint64_t capture = 0;
  for (const PostedCall& part : call.parts) {
    TUTTI_TRY_ASSIGN(const cuda::Capture its, cuda::capture_of(*place_of(part).device, part.args.stream));
    if (&part == &call.parts[0]) capture = its.id;
    if (its.id != capture) return captures_differ();
  }
  for (const Crew& crew : crews) TUTTI_TRY(put_crew(call, crew, capture, begun));
  return {};
}

/// As put() does it for launches that nobody waits in.
Status DeviceLauncher::put_crew(const MatchedCall& call, std::span<const PostedCall* const> crew, std::uint64_t capture,
                                bool& begun) {
  const auto& [device, event, first] = place_of(*crew[0]);
  const std::vector<cuda::StreamHandle> streams = streams_of({crew.begin(), crew.end()});
  const cuda::StreamHandle main = streams[0];
  for (std::size_t i = 1; i < streams.size(); ++i) {
    TUTTI_TRY(event.record(streams[i]));
    TUTTI_TRY(event.hold(*device, main));
  }
  LinesCall lines(call.parts[0].args, static_cast<int>(call.parts.size()), call.parts[0].path,
                  signature_of(call.parts[0].args).fingerprint());
  for (const PostedCall* part : crew) {
    TUTTI_TRY(place_of(*part).lines->order().follow(main, capture));
    lines.add(place_of(*part).lines->home(), part->args);
  }
  TUTTI_TRY(lines.launch(*device, first->blocks_max(), main));
  begun = true;
  Status ended;  // of all: each has a kernel under way that its memory has to wait for
  for (const PostedCall* part : crew) {
    Status one = place_of(*part).lines->order().end(main, capture);
    if (ended.ok()) ended = std::move(one);
  }
  TUTTI_TRY(std::move(ended));
  if (streams.size() > 1) TUTTI_TRY(event.record(main));
  for (std::size_t i = 1; i < streams.size(); ++i) TUTTI_TRY(event.hold(*device, streams[i]));
  return {};
}

}  // namespace tutti::comm
