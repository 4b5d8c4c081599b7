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

Status DeviceLines::link(const Membership& members, const DeviceLinks& links) {
  blocks_max_ = resident_share(members.control);
  segment_->map_others(members.reach);
  return segment_->link(links);
}

Status DeviceLines::start(Communicator& communicator) {
  comm_ = &communicator;
  TUTTI_TRY_ASSIGN(watch_, DeviceWatch::start(communicator, *segment_, nullptr));
  return {};
}

Status DeviceLines::note(const Signature& signature, DeviceWatch::Way way) {
  const std::lock_guard lock(watching_);
  return watch_ ? watch_->note(signature, way, true) : Status();
}

void DeviceLines::finish() const {
  if (comm_ != nullptr) order_.finish(*comm_);
}

void DeviceLines::close() {
  finish();
  const std::lock_guard lock(watching_);
  watch_.reset();
  comm_ = nullptr;
}

}  // namespace tutti::comm
