#include "comm/two_shot.h"

#include "base/round_up.h"
#include "comm/call.h"
#include "cuda/kernel_abi.h"

#include <algorithm>

namespace tutti::comm {
namespace {

constexpr std::size_t kLine = 256;

bool has_shots(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || collective == Collective::kBroadcast;
}

std::byte* at(const void* buffer, std::size_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(buffer)) + bytes;
}
std::byte* in_slot(const void* scratch, const Shares& shares, int rank) {
  return at(scratch, static_cast<std::size_t>(rank) * shares.slot_bytes());
}

StagedBlocks in_one(std::size_t bytes) { return {.count = bytes != 0 ? 1u : 0u, .bytes = bytes, .pitch = bytes}; }

std::size_t input_bytes(const CallArgs& part, int ranks) {
  const auto blocks = part.collective == Collective::kReduceScatter ? static_cast<std::size_t>(ranks) : 1;
  return blocks * part.count * size_of(part.type);
}

/// Without buffers.
StagedPart shot_of(const CallArgs& call, const ShotRange& range, Shot shot) {
  StagedPart part;
  part.args = call;
  part.args.shot = shot;
  part.args.identity = 0;
  part.args.count = range.count;
  part.args.whole_count = call.count > range.count ? call.count : call.whole_count;
  part.args.send = part.args.receive = nullptr;
  part.args.scale = 0;
  part.args.scale_is_address = false;
  part.pitch_bytes = range.count * size_of(call.type);
  return part;
}

/// Where a rank puts the sum of its share.
std::byte* place_of_sum(const CallArgs& call, const ShotRange& range, const ShotPlace& place, const Shares& shares,
                        std::byte* scratch) {
  if (call.collective == Collective::kReduce && place.rank != call.root) return in_slot(scratch, shares, place.rank);
  return at(call.receive, range.first * size_of(call.type) + shares.begin(place.rank));
}

StagedPart first_of_broadcast(const CallArgs& call, const ShotRange& range, const ShotPlace& place) {
  StagedPart part = shot_of(call, range, Shot::kFirst);
  const Shares shares(part.args, place.ranks);
  const std::size_t skipped_bytes = range.first * size_of(call.type);
  if (place.rank != call.root) {
    part.args.receive = at(call.receive, skipped_bytes + shares.begin(place.rank));
    part.output = in_one(shares.bytes(place.rank));
    return part;
  }
  part.args.send = at(call.send, skipped_bytes);
  part.input = in_one(input_bytes(part.args, place.ranks));
  if (call.send == call.receive) return part;
  part.shot.own = at(call.send, skipped_bytes);
  part.shot.result = at(call.receive, skipped_bytes);
  part.shot.count = part.input.bytes;
  return part;
}

/// What is sent is the input times its factor, in scratch memory.
void scale(StagedPart& part, const CallArgs& call, std::byte* scaled) {
  part.shot.unscaled = static_cast<const std::byte*>(part.args.send);
  part.shot.blocks = part.input;
  part.shot.factor = call.scale;
  part.shot.factor_is_address = call.scale_is_address;
  part.args.send = scaled;
  part.input.pitch = part.pitch_bytes = part.input.bytes;
}

}  // namespace

bool goes_by_shots(Communicator& communicator, const CallArgs& args) {
  const Membership& members = communicator.members();
  if (!members.mpi_sends.copy_too || !has_shots(args.collective)) return false;
  if (input_bytes(args, communicator.ranks()) < kLeastShotBytes) return false;
  if (communicator.ranks() > static_cast<int>(cuda::kRanksMax) && reduces(args.collective)) return false;
  const planner::Rules& rules = members.plans.rules();
  if (rules.reproducible || !rules.text.empty()) return false;
  if (planner::uses_wide_wire(rules, args.collective, args.type, args.op)) return false;
  return members.plans.schedule_for(shape_of(args, communicator.ranks(), communicator.rank()).request) == nullptr;
}

int shots_of(const CallArgs& args, int ranks) {
  if (args.collective == Collective::kReduceScatter) return 1;
  return args.collective == Collective::kBroadcast && ranks == 2 ? 1 : 2;
}

Shares::Shares(const CallArgs& part, int ranks) : part_(part) {
  const auto sharers = static_cast<std::size_t>(part.collective == Collective::kBroadcast ? ranks - 1 : ranks);
  each_ = part.collective == Collective::kReduceScatter ? part.count : (part.count + sharers - 1) / sharers;
}

int Shares::index(int rank) const {
  if (part_.collective != Collective::kBroadcast) return rank;
  if (rank == part_.root) return -1;
  return rank > part_.root ? rank - 1 : rank;
}

std::size_t Shares::begin(int rank) const {
  const int own = index(rank);
  if (own < 0 || part_.collective == Collective::kReduceScatter) return 0;
  return std::min(part_.count, static_cast<std::size_t>(own) * each_) * size_of(part_.type);
}

std::size_t Shares::bytes(int rank) const {
  const int own = index(rank);
  if (own < 0) return 0;
  if (part_.collective == Collective::kReduceScatter) return each_ * size_of(part_.type);
  return std::min(part_.count, (static_cast<std::size_t>(own) + 1) * each_) * size_of(part_.type) - begin(rank);
}

std::size_t Shares::slot_bytes() const { return round_up(each_ * size_of(part_.type), kLine); }

std::size_t scratch_of_shot(const CallArgs& call, std::size_t count, int ranks) {
  if (!reduces(call.collective)) return 0;
  CallArgs part = call;
  part.count = count;
  const std::size_t slots = static_cast<std::size_t>(ranks) * Shares(part, ranks).slot_bytes();
  return slots + (call.scaled ? round_up(input_bytes(part, ranks), kLine) : 0);
}

StagedPart first_shot(const CallArgs& call, const ShotRange& range, const ShotPlace& place, std::byte* scratch) {
  if (call.collective == Collective::kBroadcast) return first_of_broadcast(call, range, place);
  StagedPart part = shot_of(call, range, Shot::kFirst);
  const Shares shares(part.args, place.ranks);
  const std::size_t element = size_of(call.type);
  const std::size_t slots_bytes = static_cast<std::size_t>(place.ranks) * shares.slot_bytes();
  part.args.send = at(call.send, range.first * element);
  part.args.receive = scratch;
  part.input = in_one(range.count * element);
  part.output = in_one(slots_bytes);
  const bool by_blocks = call.collective == Collective::kReduceScatter;
  if (by_blocks) {
    part.pitch_bytes = part.input.pitch = call.count * element;
    part.input.count = static_cast<std::size_t>(place.ranks);
  }
  if (call.scaled) scale(part, call, scratch + slots_bytes);
  const std::size_t own =
      by_blocks ? static_cast<std::size_t>(place.rank) * part.pitch_bytes : shares.begin(place.rank);
  part.shot.own = at(part.args.send, own);
  part.shot.result = place_of_sum(call, range, place, shares, scratch);
  part.shot.count = shares.bytes(place.rank) / element;
  return part;
}

StagedPart second_shot(const CallArgs& call, const ShotRange& range, const ShotPlace& place, std::byte* scratch) {
  StagedPart part = shot_of(call, range, Shot::kSecond);
  const bool is_root = is_rooted(call.collective) && place.rank == call.root;
  if (is_root && call.collective == Collective::kBroadcast) return part;
  const Shares shares(part.args, place.ranks);
  part.args.send = place_of_sum(call, range, place, shares, scratch);
  part.input = in_one(shares.bytes(place.rank));
  if (call.collective == Collective::kReduce && !is_root) return part;
  part.args.receive = at(call.receive, range.first * size_of(call.type));
  part.output = in_one(range.count * size_of(call.type));
  return part;
}

MessageBlocks blocks_of_shot(const CallArgs& args, const ShotPlace& place, int peer) {
  const Shares shares(args, place.ranks);
  const bool is_first = args.shot == Shot::kFirst;
  const bool broadcasts = args.collective == Collective::kBroadcast;
  const bool is_root = place.rank == args.root;
  const bool is_roots = peer == args.root;
  MessageBlocks blocks;
  const auto send = [&](std::size_t from, std::size_t bytes) {
    blocks.sent_bytes = bytes;
    if (bytes != 0) blocks.sent = at(args.send, from);
  };
  const auto receive = [&](std::size_t to, std::size_t bytes) {
    blocks.received_bytes = bytes;
    if (bytes != 0) blocks.received = at(args.receive, to);
  };
  if (is_first && broadcasts) {
    if (is_root) send(shares.begin(peer), shares.bytes(peer));
    if (!is_root && is_roots) receive(0, shares.bytes(place.rank));
  } else if (is_first) {
    if (peer == place.rank) return blocks;  // the kernel takes it from the input
    const std::size_t pitch = args.gpu_pitch != 0 ? args.gpu_pitch : args.count * size_of(args.type);
    const bool by_blocks = args.collective == Collective::kReduceScatter;
    send(by_blocks ? static_cast<std::size_t>(peer) * pitch : shares.begin(peer), shares.bytes(peer));
    receive(static_cast<std::size_t>(peer) * shares.slot_bytes(), shares.bytes(place.rank));
  } else if (broadcasts) {
    if (is_root || is_roots) return blocks;
    send(0, shares.bytes(place.rank));
    receive(shares.begin(peer), shares.bytes(peer));
  } else {
    const bool has_root = args.collective == Collective::kReduce;
    if (!has_root || is_roots) send(0, shares.bytes(place.rank));
    if (!has_root || is_root) receive(shares.begin(peer), shares.bytes(peer));
  }
  return blocks;
}

}  // namespace tutti::comm
