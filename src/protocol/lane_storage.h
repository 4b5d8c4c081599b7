// What a lane works in, on the host: sized for one program, reused by the next.
#pragma once

#include "protocol/lane_call.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::protocol {

class LaneStorage {
 public:
  /// Valid until the next call or the storage's end.
  LaneWorkspace workspace(std::span<const schedule::Step> steps, std::size_t ranks, const LineShape& lines) {
    std::size_t sources = 0;
    std::size_t sinks = 0;
    std::size_t endpoints = 0;
    for (const schedule::Step& step : steps) {
      sources = std::max<std::size_t>(sources, step.source_count);
      sinks = std::max<std::size_t>(sinks, step.sink_count);
      endpoints =
          std::max<std::size_t>({endpoints, step.first_source + step.source_count, step.first_sink + step.sink_count});
    }
    grow(sides_, endpoints);
    grow(steps_, steps.size());
    grow(reductions_, steps.size());
    grow(pointers_, endpoints);
    grow(source_pointers_, sources);
    grow(scales_, sources);
    grow(wide_, sources + sinks);
    grow(arrived_, sources);
    grow(line_tiles_, sources * lines.payload_bytes());
    grow(sink_pointers_, sinks);
    grow(pulled_, ranks);
    LaneWorkspace made;
    made.sides = sides_.data();
    made.steps = steps_.data();
    made.reductions = reductions_.data();
    made.pointers = pointers_.data();
    made.source_pointers = source_pointers_.data();
    made.scales = scales_.data();
    made.wide_sources = wide_.data();
    made.wide_sinks = wide_.data() + sources;
    made.arrived = arrived_.data();
    made.line_tiles = line_tiles_.data();
    made.sink_pointers = sink_pointers_.data();
    made.pulled = pulled_.data();
    return made;
  }

 private:
  template <class T>
  static void grow(std::vector<T>& some, std::size_t size) {
    if (some.size() < size) some.resize(size);
  }

  std::vector<Side> sides_;
  std::vector<BoundStep> steps_;
  std::vector<ReduceArgs> reductions_;
  std::vector<void*> pointers_;
  std::vector<const void*> source_pointers_;
  std::vector<const void*> scales_;
  std::vector<std::uint8_t> wide_;
  std::vector<std::uint32_t> arrived_;
  std::vector<std::byte> line_tiles_;
  std::vector<void*> sink_pointers_;
  std::vector<std::uint32_t> pulled_;
};

}  // namespace tutti::protocol
