#include "comm/staged_rounds.h"

#include "base/round_up.h"
#include "comm/call.h"
#include "comm/device_messages.h"
#include "comm/two_shot.h"

#include <algorithm>

namespace tutti::comm {
namespace {

constexpr std::size_t kLine = 256;  ///< parts begin at multiples of it

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
    if (call.shot == Shot::kNone) continue;
    const std::size_t count = std::min(call.count, elements_per_part(call, ranks, part_bytes));
    half_bytes_ = std::max(half_bytes_, scratch_of_shot(call, count, ranks));
  }
  if (!sequences_.empty()) round_calls_ = 1;
}

StagedRounds::Sequence& StagedRounds::sequence_of(const CallArgs& call) {
  for (Sequence& known : sequences_) {
    if (known.calls[0].root == call.root && known.calls[0].collective == call.collective) return known;
  }
  return sequences_.emplace_back();
}

bool StagedRounds::is_done() const {
  return collectives_.is_done() && seconds_.empty() && std::ranges::all_of(sequences_, &Sequence::is_done);
}

/// An all-to-all that is in place would get blocks where others have not been sent yet.
bool StagedRounds::stays(const CallArgs& call) const {
  if (is_point_to_point(call)) return !in_place_.empty() && in_place_[static_cast<std::size_t>(call.root)];
  const bool overwrites = call.collective == Collective::kAllToAll && call.send == call.receive;
  return copies_in_place_ && (call.shot != Shot::kNone || (goes_by_messages(call.collective) && !overwrites));
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
  part.pitch_bytes = call.count * size_of(call.type);
  const std::size_t bytes = part.args.count * size_of(call.type);
  part.input = {.count = blocks.input, .bytes = bytes, .pitch = part.pitch_bytes};
  part.output = {.count = blocks.output, .bytes = bytes, .pitch = part.pitch_bytes};
  return part;
}

void StagedRounds::pass(Sequence& sequence, std::size_t elements) const {
  sequence.element += elements;
  if (sequence.element != sequence.calls[sequence.call].count) return;
  ++sequence.call;
  sequence.element = 0;
}

void StagedRounds::place(StagedRound& round, StagedPart part) const {
  const auto place = [&](std::size_t bytes) {
    const std::size_t begin = round.bytes;
    round.bytes += round_up(bytes, kLine);
    return begin;
  };
  part.is_in_place = stays(part.args);
  if (part.is_in_place) {
    part.args.gpu_pitch = part.pitch_bytes;
  } else {
    part.input.at = place(part.input.all_bytes());
    part.output.at = place(part.output.all_bytes());
  }
  if (part.args.scale_is_address) part.scale_at = place(sizeof(part.args.scale));
  round.parts.push_back(std::move(part));
}

void StagedRounds::add_part(StagedRound& round, Sequence& from) const {
  StagedPart part = next_part(from);
  pass(from, part.args.count);
  place(round, std::move(part));
}

bool StagedRounds::has_second_shots() const {
  return !collectives_.calls.empty() && collectives_.calls[0].shot != Shot::kNone &&
         shots_of(collectives_.calls[0], ranks_) == 2;
}

/// Whether second shots come next.
bool StagedRounds::is_pair_over() {
  if (seconds_.empty()) return false;
  const bool goes_on = !collectives_.is_done() && (pairs_calls_ || collectives_.element != 0);
  if (has_pair_) return true;
  has_pair_ = seconds_.size() == 2 || !goes_on;
  is_alone_ = seconds_.size() == 1;
  return has_pair_;
}

void StagedRounds::add_first_shot(StagedRound& round) {
  const CallArgs& call = collectives_.calls[collectives_.call];
  const ShotRange range{collectives_.element,
                        std::min(call.count - collectives_.element, elements_per_part(call, ranks_, part_bytes_))};
  std::byte* const scratch = scratch_ != nullptr ? scratch_ + first_shots_ % 2 * half_bytes_ : nullptr;
  ++first_shots_;
  if (shots_of(call, ranks_) == 2) seconds_.push_back({collectives_.call, range.first, range.count, scratch});
  place(round, first_shot(call, range, {ranks_, rank_}, scratch));
  pass(collectives_, range.count);
}

void StagedRounds::add_second_shot(StagedRound& round) {
  const Second next = seconds_.front();
  // One that is alone follows its first one at once.
  round.waits = is_alone_;
  seconds_.pop_front();
  has_pair_ = !seconds_.empty();
  place(round, second_shot(collectives_.calls[next.call], {next.element, next.count}, {ranks_, rank_}, next.scratch));
}

bool StagedRounds::needs_earlier_outputs(const CallArgs& call) const {
  struct Buffer {
    const void* begin = nullptr;
    std::size_t bytes = 0;
  };
  const auto overlap = [](const Buffer& a, const Buffer& b) {
    return a.bytes != 0 && b.bytes != 0 && at(a.begin, 0) < at(b.begin, b.bytes) &&
           at(b.begin, 0) < at(a.begin, a.bytes);
  };
  const auto input_of = [&](const CallArgs& of) { return Buffer{of.send, shape_of(of, ranks_, rank_).input_bytes}; };
  const auto output_of = [&](const CallArgs& of) {
    return Buffer{of.receive, shape_of(of, ranks_, rank_).output_bytes};
  };
  const Buffer input = input_of(call);
  const Buffer output = output_of(call);
  const bool is_written_by_mpi = stays(call);
  for (std::size_t i = written_; i < collectives_.call; ++i) {
    const CallArgs& earlier = collectives_.calls[i];
    const Buffer written = output_of(earlier);
    if (overlap(input, written)) return true;
    if (is_written_by_mpi && (overlap(output, written) || overlap(output, input_of(earlier)))) return true;
  }
  return false;
}

void StagedRounds::add_collectives(StagedRound& round) {
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  if (is_pair_over()) return add_second_shot(round);
  for (std::size_t taken = 0; !collectives_.is_done() && taken < round_calls_; ++taken) {
    const CallArgs& call = collectives_.calls[collectives_.call];
    if (collectives_.element == 0 && needs_earlier_outputs(call)) {
      if (taken != 0) return;
      round.waits = true;
      written_ = collectives_.call;
    }
    if (call.shot != Shot::kNone) {
      if (taken == 0) add_first_shot(round);
      return;
    }
    const StagedPart part = next_part(collectives_);
    input_bytes += part.input.all_bytes();
    output_bytes += part.output.all_bytes();
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
