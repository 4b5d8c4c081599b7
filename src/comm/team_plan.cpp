#include "comm/team_plan.h"

#include "comm/staged_rounds.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::size_t kLine = 256;

std::size_t round_up(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

bool goes_by_blocks(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter;
}

/// Of a share, or of a block in a part: of all shares of a part, or all blocks, a buffer has `part_bytes` at most.
std::size_t longest(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes) {
  const std::size_t places = layout.inside.size();
  const std::size_t pieces = goes_by_blocks(call.collective) ? places * layout.across.size() : places;
  CallArgs in_pieces = call;
  in_pieces.collective = Collective::kReduceScatter;
  const std::size_t whole = goes_by_blocks(call.collective) ? call.count : (call.count + places - 1) / places;
  return std::min(elements_per_part(in_pieces, static_cast<int>(pieces), part_bytes), whole);
}

}  // namespace

bool TeamPlan::knows(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kReduceScatter:
    case Collective::kAllGather: return true;
    default: return false;
  }
}

TeamPlan::TeamPlan(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes)
    : call_(call),
      layout_(layout),
      by_blocks_(goes_by_blocks(call.collective)),
      most_(longest(call, layout, part_bytes)),
      parts_(by_blocks_ ? (call.count + most_ - 1) / most_ : (call.count + places() * most_ - 1) / (places() * most_)),
      half_bytes_(by_blocks_ ? round_up(bytes_of(ranks() * most_)) + round_up(bytes_of(hosts() * most_))
                             : round_up(bytes_of(places() * most_))) {}

TeamPlan::Range TeamPlan::range(std::size_t part) const {
  const std::size_t step = by_blocks_ ? most_ : places() * most_;
  Range range{.first = part * step};
  range.count = std::min(step, call_.count - range.first);
  range.share = by_blocks_ ? range.count : (range.count + places() - 1) / places();
  range.is_ragged = !by_blocks_ && range.count != places() * range.share;
  return range;
}

/// What this rank sends across, or has from there: its share, or a block for each host.
std::byte* TeamPlan::share(std::size_t part) const {
  const std::size_t at = by_blocks_ ? round_up(bytes_of(ranks() * most_))
                                    : static_cast<std::size_t>(layout_.place) * bytes_of(range(part).share);
  return half(part) + at;
}

/// Blocks in the order of places, those of a place in the order of hosts.
std::byte* TeamPlan::packed(std::size_t part, std::size_t place, std::size_t host) const {
  return half(part) + bytes_of((place * hosts() + host) * range(part).count);
}

const std::byte* TeamPlan::input(std::size_t element) const {
  return static_cast<const std::byte*>(call_.send) + bytes_of(element);
}
std::byte* TeamPlan::output(std::size_t element) const {
  return static_cast<std::byte*>(call_.receive) + bytes_of(element);
}

/// The average is divided once, at last, and a factor applied at first.
CallArgs TeamPlan::inside(Collective collective, std::size_t count) const {
  CallArgs call = call_;
  call.collective = collective;
  call.count = count;
  call.identity = 0;
  call.root = layout_.place_of(call_.root);
  if (call.op == ReduceOp::kAverage) call.op = ReduceOp::kSum;
  if (reduces(collective)) return call;
  call.op = ReduceOp::kSum;
  call.scaled = false;
  call.scale = 0;
  call.scale_is_address = false;
  return call;
}

CallArgs TeamPlan::across(std::size_t part) const {
  CallArgs call = call_;
  call.count = range(part).share;
  call.identity = 0;
  call.root = layout_.host_of(call_.root);
  call.scaled = false;
  call.scale = 0;
  call.scale_is_address = false;
  call.averaged_over = static_cast<int>(ranks());
  call.send = call.receive = share(part);
  if (call_.collective == Collective::kAllGather) call.send = input(range(part).first);
  if (call_.collective == Collective::kReduceScatter) call.receive = output(range(part).first);
  return call;
}

TeamStep TeamPlan::first(std::size_t part) const {
  switch (call_.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce: return spread(part, Collective::kReduceScatter, true);
    case Collective::kBroadcast:
      if (!is_on_roots_host()) return {};
      return spread(part, Collective::kScatter, is_root());
    case Collective::kReduceScatter: return pack(part);
    default: return {};
  }
}

TeamStep TeamPlan::last(std::size_t part) const {
  switch (call_.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast: return collect(part, Collective::kAllGather, true);
    case Collective::kReduce:
      if (!is_on_roots_host()) return {};
      return collect(part, Collective::kGather, is_root());
    case Collective::kAllGather: return unpack(part);
    default: return {};
  }
}

bool TeamPlan::is_on_roots_host() const { return layout_.host == layout_.host_of(call_.root); }
bool TeamPlan::is_root() const { return is_on_roots_host() && layout_.place == layout_.place_of(call_.root); }

/// From the input of those that have one, to everybody's share.
TeamStep TeamPlan::spread(std::size_t part, Collective collective, bool has_input) const {
  const Range now = range(part);
  TeamStep step;
  CallArgs& call = step.call.emplace(inside(collective, now.share));
  call.send = has_input ? input(now.first) : nullptr;
  call.receive = share(part);
  if (!has_input || !now.is_ragged) return step;
  // What lies behind the part's last element goes the same way, and to nobody.
  step.before.push_back({half(part), input(now.first), bytes_of(now.count)});
  call.send = half(part);
  return step;
}

/// From everybody's share to the output of those that have one.
TeamStep TeamPlan::collect(std::size_t part, Collective collective, bool has_output) const {
  const Range now = range(part);
  TeamStep step;
  CallArgs& call = step.call.emplace(inside(collective, now.share));
  call.send = share(part);
  call.receive = has_output ? output(now.first) : nullptr;
  if (!has_output || !now.is_ragged) return step;
  call.receive = half(part);
  step.after.push_back({output(now.first), half(part), bytes_of(now.count)});
  return step;
}

TeamStep TeamPlan::pack(std::size_t part) const {
  const Range now = range(part);
  TeamStep step;
  for (std::size_t place = 0; place < places(); ++place) {
    for (std::size_t host = 0; host < hosts(); ++host) {
      const auto rank = static_cast<std::size_t>(layout_.hosts[host][place]);
      step.before.push_back({packed(part, place, host), input(rank * call_.count + now.first), bytes_of(now.count)});
    }
  }
  CallArgs& call = step.call.emplace(inside(Collective::kReduceScatter, hosts() * now.count));
  call.send = half(part);
  call.receive = share(part);
  return step;
}

TeamStep TeamPlan::unpack(std::size_t part) const {
  const Range now = range(part);
  TeamStep step;
  CallArgs& call = step.call.emplace(inside(Collective::kAllGather, hosts() * now.count));
  call.send = share(part);
  call.receive = half(part);
  for (std::size_t place = 0; place < places(); ++place) {
    for (std::size_t host = 0; host < hosts(); ++host) {
      const auto rank = static_cast<std::size_t>(layout_.hosts[host][place]);
      step.after.push_back({output(rank * call_.count + now.first), packed(part, place, host), bytes_of(now.count)});
    }
  }
  return step;
}

}  // namespace tutti::comm
