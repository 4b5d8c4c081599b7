#include "comm/staged_rounds.h"

#include "comm/call.h"
#include "comm/device_messages.h"

#include <algorithm>

namespace tutti::comm {
namespace {

constexpr std::size_t kLine = 256;  ///< parts begin at multiples of it

std::size_t round_up(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

bool has_block_per_rank(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter: return true;
    default: return false;
  }
}

struct Blocks {
  std::size_t input = 0;
  std::size_t output = 0;
};

/// Of a rank's own buffers. What it sends to itself goes from one call's to another's.
Blocks blocks_of(const CallArgs& args, int ranks, int rank) {
  if (args.collective == Collective::kSend) return {1, 0};
  if (args.collective == Collective::kReceive) return {0, 1};
  const schedule::Request request{args.collective, ranks, args.root, 0};
  return {schedule::input_blocks(request, rank), schedule::output_blocks(request, rank)};
}

const std::byte* at(const void* buffer, std::size_t bytes) { return static_cast<const std::byte*>(buffer) + bytes; }

}  // namespace

std::size_t elements_per_part(const CallArgs& args, int ranks, std::size_t part_bytes) {
  const std::size_t blocks = has_block_per_rank(args.collective) ? static_cast<std::size_t>(ranks) : 1;
  const std::size_t fit = part_bytes / (blocks * size_of(args.type));
  // Whole lines, so that copies of all parts but the last begin and end at one.
  return fit >= kLine ? fit / kLine * kLine : std::max<std::size_t>(fit, 1);
}

StagedRounds::StagedRounds(std::span<const CallArgs> calls, int ranks, int rank, std::size_t part_bytes,
                           std::size_t round_calls)
    : ranks_(ranks), rank_(rank), part_bytes_(part_bytes), round_calls_(round_calls) {
  for (const CallArgs& call : calls) {
    (is_point_to_point(call) ? sequence_of(call) : collectives_).calls.push_back(call);
  }
}

StagedRounds::Sequence& StagedRounds::sequence_of(const CallArgs& call) {
  for (Sequence& known : sequences_) {
    if (known.calls[0].root == call.root && known.calls[0].collective == call.collective) return known;
  }
  return sequences_.emplace_back();
}

bool StagedRounds::is_done() const {
  return collectives_.is_done() && std::ranges::all_of(sequences_, &Sequence::is_done);
}

/// An all-to-all that is in place would get blocks where others have not been sent yet.
bool StagedRounds::stays(const CallArgs& call) const {
  if (is_point_to_point(call)) return !in_place_.empty() && in_place_[static_cast<std::size_t>(call.root)];
  const bool overwrites = call.collective == Collective::kAllToAll && call.send == call.receive;
  return copies_in_place_ && goes_by_messages(call.collective) && !overwrites;
}

StagedPart StagedRounds::next_part(const Sequence& from) const {
  const CallArgs& call = from.calls[from.call];
  const std::size_t most = elements_per_part(call, ranks_, part_bytes_);
  const Blocks blocks = blocks_of(call, ranks_, rank_);
  const std::size_t skipped_bytes = from.element * size_of(call.type);
  StagedPart part;
  part.args = call;
  part.args.identity = 0;  // parts differ in more than their buffers
  part.args.count = std::min(most, call.count - from.element);
  part.args.whole_count = call.count > most ? call.count : call.whole_count;
  part.args.send = blocks.input != 0 ? at(call.send, skipped_bytes) : nullptr;
  part.args.receive = blocks.output != 0 ? const_cast<std::byte*>(at(call.receive, skipped_bytes)) : nullptr;
  part.input_blocks = blocks.input;
  part.output_blocks = blocks.output;
  part.pitch_bytes = call.count * size_of(call.type);
  part.is_in_place = stays(call);
  if (part.is_in_place) part.args.gpu_pitch = part.pitch_bytes;
  return part;
}

void StagedRounds::add_part(StagedRound& round, Sequence& from) const {
  StagedPart part = next_part(from);
  from.element += part.args.count;
  if (from.element == from.calls[from.call].count) {
    ++from.call;
    from.element = 0;
  }
  const auto place = [&](std::size_t bytes) {
    const std::size_t begin = round.bytes;
    round.bytes += round_up(bytes);
    return begin;
  };
  if (!part.is_in_place) {
    part.input_at = place(part.input_blocks * part.block_bytes());
    part.output_at = place(part.output_blocks * part.block_bytes());
  }
  if (part.args.scale_is_address) part.scale_at = place(sizeof(part.args.scale));
  round.parts.push_back(std::move(part));
}

bool StagedRounds::reads_earlier_output(const CallArgs& call) const {
  const std::size_t input_bytes = shape_of(call, ranks_, rank_).input_bytes;
  for (std::size_t i = written_; i < collectives_.call; ++i) {
    const CallArgs& earlier = collectives_.calls[i];
    const std::size_t output_bytes = shape_of(earlier, ranks_, rank_).output_bytes;
    if (input_bytes == 0 || output_bytes == 0) continue;
    if (at(call.send, 0) < at(earlier.receive, output_bytes) && at(earlier.receive, 0) < at(call.send, input_bytes)) {
      return true;
    }
  }
  return false;
}

void StagedRounds::add_collectives(StagedRound& round) {
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  for (std::size_t taken = 0; !collectives_.is_done() && taken < round_calls_; ++taken) {
    const CallArgs& call = collectives_.calls[collectives_.call];
    if (collectives_.element == 0 && reads_earlier_output(call)) {
      if (taken != 0) return;
      round.waits = true;
      written_ = collectives_.call;
    }
    const StagedPart part = next_part(collectives_);
    input_bytes += part.input_blocks * part.block_bytes();
    output_bytes += part.output_blocks * part.block_bytes();
    if (taken != 0 && std::max(input_bytes, output_bytes) > part_bytes_) return;
    add_part(round, collectives_);
  }
}

StagedRound StagedRounds::next() {
  StagedRound round;
  add_collectives(round);
  for (Sequence& sequence : sequences_) {
    if (!sequence.is_done()) add_part(round, sequence);
  }
  round.is_last = is_done();
  return round;
}

}  // namespace tutti::comm
