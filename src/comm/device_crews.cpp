// Calls of ranks that share a process, as lines or lanes: each of their GPUs gets one launch with all its ranks, and the launches wait for each
// other. One thread puts all of them on the streams.
#include "comm/device_lanes.h"
#include "comm/device_launch.h"
#include "comm/device_lines.h"

#include <algorithm>

namespace tutti::comm {
namespace {

/// Such calls are not captured: goes_by_crews().
constexpr std::uint64_t kNoCapture = 0;

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

void DeviceLauncher::finish_crews(MatchedCall& call) {
  const std::lock_guard lock(across_devices());
  const Status status = call.parts[0].args.count == 0 ? Status() : put_crews(call);
  count_off(call, status);
  has_begun_ = false;
}

Status DeviceLauncher::put_crews(const MatchedCall& call) {
  std::vector<Crew> crews;
  for (const PostedCall& part : call.parts) {
    const auto is_its = [&](const Crew& crew) { return place_of(*crew[0]).device == place_of(part).device; };
    const auto found = std::ranges::find_if(crews, is_its);
    (found != crews.end() ? *found : crews.emplace_back()).push_back(&part);
  }
  // What can be refused is refused before anything is on a stream: a launch that the others' do not follow waits for an abort.
  const PostedCall* last = nullptr;
  for (const PostedCall& part : call.parts) {
    const bool is_known = last && shares_stream(*last, part);
    last = &part;
    if (is_known) continue;
    TUTTI_TRY_ASSIGN(const cuda::Capture its, cuda::capture_of(*place_of(part).device, part.args.stream));
    if (its.id != 0) return captures_differ();
  }
  if (call.parts[0].path == DevicePath::kLanes) {
    for (const PostedCall& part : call.parts) TUTTI_TRY(place_of(part).lanes->prepare(part.args));
  }
  for (const Crew& crew : crews) TUTTI_TRY(put_crew(call, crew));
  return {};
}

/// As put() does it for launches that nobody waits in.
Status DeviceLauncher::put_crew(const MatchedCall& call, std::span<const PostedCall* const> crew) {
  const auto& [device, event, first, lanes] = place_of(*crew[0]);
  const std::vector<cuda::StreamHandle> streams = streams_of({crew.begin(), crew.end()});
  const cuda::StreamHandle main = streams[0];
  for (std::size_t i = 1; i < streams.size(); ++i) {
    TUTTI_TRY(event.record(streams[i]));
    TUTTI_TRY(event.hold(*device, main));
  }
  for (const PostedCall* part : crew) TUTTI_TRY(place_of(*part).lines->order().follow(main, kNoCapture));
  TUTTI_TRY(launch_crew(call, crew, main));
  has_begun_ = true;
  Status ended;  // of all: each has a kernel under way that its memory has to wait for
  for (const PostedCall* part : crew) {
    Status one = place_of(*part).lines->order().end(main, kNoCapture);
    if (ended.ok()) ended = std::move(one);
  }
  TUTTI_TRY(std::move(ended));
  if (streams.size() > 1) TUTTI_TRY(event.record(main));
  for (std::size_t i = 1; i < streams.size(); ++i) TUTTI_TRY(event.hold(*device, streams[i]));
  return {};
}

Status DeviceLauncher::launch_crew(const MatchedCall& call, std::span<const PostedCall* const> crew,
                                   cuda::StreamHandle stream) {
  const CallArgs& args = call.parts[0].args;
  const int ranks = static_cast<int>(call.parts.size());
  const LaunchPlace& place = place_of(*crew[0]);
  if (call.parts[0].path != DevicePath::kLanes) {
    LinesCall lines(args, ranks, call.parts[0].path, signature_of(args).fingerprint());
    for (const PostedCall* part : crew) lines.add(place_of(*part).lines->home(), part->args);
    return lines.launch(*place.device, place.lines->blocks_max(), stream);
  }
  TUTTI_TRY_ASSIGN(const DeviceLanes::Part first, place.lanes->prepare(args));
  LanesCall lanes(args, ranks, *place.lanes, *first.plan, std::nullopt);
  for (const PostedCall* part : crew) {
    TUTTI_TRY_ASSIGN(const DeviceLanes::Part its, place_of(*part).lanes->prepare(part->args));
    lanes.add(part->rank, place_of(*part).lines->home(), its, part->args);
  }
  return lanes.launch(*place.device, stream);
}

Status DeviceLauncher::give_lanes(int rank, std::shared_ptr<DeviceLanes> lanes) {
  places_[static_cast<std::size_t>(rank)].lanes = std::move(lanes);
  std::vector<std::shared_ptr<DeviceLanes>> all;
  for (const LaunchPlace& place : places_) {
    if (!place.lanes) return {};
    all.push_back(place.lanes);
  }
  return DeviceLanes::connect_here(all);
}

}  // namespace tutti::comm
