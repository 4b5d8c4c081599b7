#include "comm/team_plan.h"

#include "base/round_up.h"
#include "comm/staged_rounds.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::size_t kLine = 256;

bool goes_by_blocks(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter;
}

/// Elements of each of so many pieces that a buffer of `part_bytes` has at most.
std::size_t room(const CallArgs& call, std::size_t pieces, std::size_t part_bytes) {
  CallArgs in_pieces = call;
  in_pieces.collective = Collective::kReduceScatter;
  return elements_per_part(in_pieces, static_cast<int>(pieces), part_bytes);
}

/// Elements of each rank's block that slices have room for of which one for each host crosses as a part.
std::size_t in_slices(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes) {
  return room(call, layout.hosts.size(), part_bytes) * layout.shares / layout.longest;
}

/// Of a share, or of a block in a part: of all shares of a part, or all blocks, a buffer has `part_bytes` at most. There are as many blocks for
/// each host as the longest one has, in what crosses.
std::size_t longest(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes) {
  if (!goes_by_blocks(call.collective))
    return std::min(room(call, layout.shares, part_bytes), (call.count + layout.shares - 1) / layout.shares);
  return std::min(
      {room(call, layout.longest * layout.hosts.size(), part_bytes), in_slices(call, layout, part_bytes), call.count});
}

}  // namespace

bool TeamPlan::knows(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast: return true;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      // What fills up the shorter hosts' slices crosses too: no more than there is.
      return layout.longest * layout.hosts.size() <= 2 * layout.ranks() && in_slices(call, layout, part_bytes) > 0;
    default: return false;
  }
}

TeamPlan::TeamPlan(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes)
    : call_(call),
      layout_(layout),
      by_blocks_(goes_by_blocks(call.collective)),
      by_shares_(layout.inside.size() >= 2 * layout.shares),
      most_(longest(call, layout, part_bytes)),
      parts_(by_blocks_ ? (call.count + most_ - 1) / most_ : (call.count + shares() * most_ - 1) / (shares() * most_)),
      packed_bytes_(round_up(bytes_of(places() * (by_blocks_ ? hosts() * slice_of(most_) : most_)), kLine)),
      crossing_bytes_(by_blocks_ ? round_up(bytes_of(hosts() * slice_of(most_)), kLine) : 0),
      half_bytes_(packed_bytes_ + crossing_bytes_ +
                  (by_blocks_ && !layout.is_even() ? round_up(bytes_of(places() * slice_of(most_)), kLine) : 0)) {}

TeamPlan::Range TeamPlan::range(std::size_t part) const {
  const std::size_t step = by_blocks_ ? most_ : shares() * most_;
  Range range{.first = part * step};
  range.count = std::min(step, call_.count - range.first);
  range.share = by_blocks_ ? slice_of(range.count) : (range.count + shares() - 1) / shares();
  return range;
}

/// What this rank sends across, or has from there: its share, or a slice for each host.
std::byte* TeamPlan::share(std::size_t part) const {
  return half(part) + (by_blocks_ ? packed_bytes_ : bytes_of(place() * range(part).share));
}

/// Slices in the order of shares, those of a share in the order of hosts.
std::byte* TeamPlan::packed(std::size_t part, std::size_t share, std::size_t host) const {
  return half(part) + bytes_of((share * hosts() + host) * range(part).share);
}

/// This host's, one behind the other, where hosts have different numbers of them.
std::byte* TeamPlan::own_blocks(std::size_t part) const { return half(part) + packed_bytes_ + crossing_bytes_; }

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
  call.averaged_over = static_cast<int>(layout_.ranks());
  call.send = call.receive = share(part);
  const std::size_t first = range(part).first;
  const bool is_even = layout_.is_even();
  if (call_.collective == Collective::kAllGather) call.send = is_even ? input(first) : own_slice(part);
  if (call_.collective == Collective::kReduceScatter) call.receive = is_even ? output(first) : own_slice(part);
  return call;
}

TeamStep TeamPlan::first(std::size_t part) const {
  switch (call_.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce: return sum_up(part);
    case Collective::kBroadcast: return is_on_roots_host() ? leave_root(part) : TeamStep();
    case Collective::kReduceScatter: return pack(part);
    case Collective::kAllGather: return layout_.is_even() ? TeamStep() : join_blocks(part);
    default: return {};
  }
}

TeamStep TeamPlan::last(std::size_t part) const {
  switch (call_.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast: return reach_all(part);
    case Collective::kReduce: return is_on_roots_host() ? reach_root(part) : TeamStep();
    case Collective::kReduceScatter: return layout_.is_even() ? TeamStep() : take_block(part);
    case Collective::kAllGather: return unpack(part);
    default: return {};
  }
}

bool TeamPlan::is_on_roots_host() const { return layout_.host == layout_.host_of(call_.root); }
bool TeamPlan::is_root() const { return is_on_roots_host() && layout_.place == layout_.place_of(call_.root); }

TeamStep TeamPlan::sum_up(std::size_t part) const {
  if (!by_shares_) return spread(part, Collective::kReduceScatter, true);
  const Range now = range(part);
  return {.calls = reduce_shares(input(now.first), share(part), now.share, now.count)};
}

/// By shares: all get the whole part, in scratch memory.
TeamStep TeamPlan::leave_root(std::size_t part) const {
  if (!by_shares_) return spread(part, Collective::kScatter, is_root());
  const Range now = range(part);
  CallArgs call = inside(Collective::kBroadcast, now.count);
  call.send = is_root() ? input(now.first) : nullptr;
  call.receive = half(part);
  return {.calls = {call}};
}

TeamStep TeamPlan::reach_all(std::size_t part) const {
  if (!by_shares_) return collect(part, Collective::kAllGather, true);
  const Range now = range(part);
  const bool is_here = call_.collective == Collective::kBroadcast && is_on_roots_host();
  if (is_here) return {.after = {{output(now.first), half(part), bytes_of(now.count)}}};
  return {.calls = gather_shares(share(part), output(now.first), now.share, now.count)};
}

/// By shares: all get it, in scratch memory, where their own shares lie at the same places.
TeamStep TeamPlan::reach_root(std::size_t part) const {
  if (!by_shares_) return collect(part, Collective::kGather, is_root());
  const Range now = range(part);
  return {.calls = gather_shares(share(part), is_root() ? output(now.first) : half(part), now.share, now.count)};
}

/// From the input of those that have one, to everybody's share.
TeamStep TeamPlan::spread(std::size_t part, Collective collective, bool has_input) const {
  const Range now = range(part);
  TeamStep step{.calls = {inside(collective, now.share)}};
  CallArgs& call = step.calls[0];
  call.send = has_input ? input(now.first) : nullptr;
  call.receive = share(part);
  // What lies behind the part's last element goes the same way, and to nobody.
  if (!has_input || now.first + places() * now.share <= call_.count) return step;
  step.before.push_back({half(part), input(now.first), bytes_of(now.count)});
  call.send = half(part);
  return step;
}

/// From everybody's share to the output of those that have one.
TeamStep TeamPlan::collect(std::size_t part, Collective collective, bool has_output) const {
  const Range now = range(part);
  TeamStep step{.calls = {inside(collective, now.share)}};
  CallArgs& call = step.calls[0];
  call.send = share(part);
  call.receive = has_output ? output(now.first) : nullptr;
  if (!has_output || now.count == places() * now.share) return step;
  call.receive = half(part);
  step.after.push_back({output(now.first), half(part), bytes_of(now.count)});
  return step;
}

/// Of `whole` elements at `from` each share is added up at the rank that has it. Not by shares: there are as many as the host has ranks.
std::vector<CallArgs> TeamPlan::reduce_shares(const std::byte* from, std::byte* to, std::size_t share,
                                              std::size_t whole) const {
  std::vector<CallArgs> calls;
  if (!by_shares_) {
    CallArgs& call = calls.emplace_back(inside(Collective::kReduceScatter, share));
    call.send = from;
    call.receive = to;
    return calls;
  }
  for (std::size_t at = 0, owner = 0; at < whole; at += share, ++owner) {
    CallArgs& call = calls.emplace_back(inside(Collective::kReduce, std::min(share, whole - at)));
    call.root = static_cast<int>(owner);
    call.send = from + bytes_of(at);
    call.receive = owner == place() ? to : nullptr;
  }
  return calls;
}

/// Everybody gets all shares, `whole` elements, from the ranks that have them. Not by shares: as above.
std::vector<CallArgs> TeamPlan::gather_shares(const std::byte* from, std::byte* to, std::size_t share,
                                              std::size_t whole) const {
  std::vector<CallArgs> calls;
  if (!by_shares_) {
    CallArgs& call = calls.emplace_back(inside(Collective::kAllGather, share));
    call.send = from;
    call.receive = to;
    return calls;
  }
  for (std::size_t at = 0, owner = 0; at < whole; at += share, ++owner) {
    CallArgs& call = calls.emplace_back(inside(Collective::kBroadcast, std::min(share, whole - at)));
    call.root = static_cast<int>(owner);
    call.send = owner == place() ? from : nullptr;
    call.receive = to + bytes_of(at);
  }
  return calls;
}

/// Calls visit(where it is packed, an element of the call's longer buffer, how many from there on in one piece) for all blocks.
template <class Visit>
void TeamPlan::for_each_piece(std::size_t part, Visit&& visit) const {
  const Range now = range(part);
  for (std::size_t host = 0; host < hosts(); ++host) {
    std::size_t behind = 0;  // in the blocks of the host
    for (const int rank : layout_.hosts[host]) {
      const std::size_t block = static_cast<std::size_t>(rank) * call_.count + now.first;
      for (std::size_t at = 0, count = 0; at < now.count; at += count, behind += count) {
        const std::size_t in_slice = behind % now.share;
        count = std::min(now.count - at, now.share - in_slice);
        visit(packed(part, behind / now.share, host) + bytes_of(in_slice), block + at, count);
      }
    }
  }
}

TeamStep TeamPlan::pack(std::size_t part) const {
  const std::size_t share_count = hosts() * range(part).share;
  TeamStep step{.calls = reduce_shares(half(part), share(part), share_count, shares() * share_count)};
  for_each_piece(part, [&](std::byte* place, std::size_t element, std::size_t count) {
    step.before.push_back({place, input(element), bytes_of(count)});
  });
  return step;
}

TeamStep TeamPlan::unpack(std::size_t part) const {
  const std::size_t share_count = hosts() * range(part).share;
  TeamStep step{.calls = gather_shares(share(part), half(part), share_count, shares() * share_count)};
  for_each_piece(part, [&](std::byte* place, std::size_t element, std::size_t count) {
    step.after.push_back({output(element), place, bytes_of(count)});
  });
  return step;
}

TeamStep TeamPlan::join_blocks(std::size_t part) const {
  const Range now = range(part);
  CallArgs call = inside(Collective::kAllGather, now.count);
  call.send = input(now.first);
  call.receive = own_blocks(part);
  return {.calls = {call}};
}

TeamStep TeamPlan::take_block(std::size_t part) const {
  const Range now = range(part);
  std::byte* const blocks = own_blocks(part);
  return {.calls = gather_shares(own_slice(part), blocks, now.share, shares() * now.share),
          .after = {{output(now.first), blocks + bytes_of(place() * now.count), bytes_of(now.count)}}};
}

}  // namespace tutti::comm
