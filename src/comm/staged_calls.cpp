#include "comm/staged_calls.h"

#include "comm/call.h"
#include "comm/device_messages.h"
#include "comm/device_rank.h"
#include "comm/shot_kernels.h"
#include "comm/two_shot.h"

#include <algorithm>

namespace tutti::comm {
namespace {

/// Calls visit(in the call's buffer, in the staging memory, bytes) for what lies in one piece.
template <class Visit>
Status for_each_piece(const StagedBlocks& blocks, Visit&& visit) {
  const bool in_one = blocks.bytes == blocks.pitch;
  const std::size_t pieces = in_one && blocks.count != 0 ? 1 : blocks.count;
  const std::size_t bytes = in_one ? blocks.all_bytes() : blocks.bytes;
  for (std::size_t i = 0; i < pieces; ++i) TUTTI_TRY(visit(i * blocks.pitch, i * blocks.bytes, bytes));
  return {};
}

std::byte* bytes_at(const void* buffer, std::size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(buffer)) + offset;
}

/// Those that go by shots are the first one of them so far. Where calls are paired: all, or none.
std::vector<CallArgs> with_shots(Communicator& communicator, std::span<const CallArgs> calls, const StagedWays& ways) {
  std::vector<CallArgs> all(calls.begin(), calls.end());
  for (CallArgs& call : all) {
    if (goes_by_shots(communicator, ways.pairs_calls ? calls.front() : call)) call.shot = Shot::kFirst;
  }
  return all;
}

}  // namespace

StagedCalls::StagedCalls(Communicator& communicator, std::shared_ptr<StagedRank> rank,
                         std::unique_lock<std::mutex> submitting, std::span<const CallArgs> calls)
    : StagedCalls(communicator, std::move(rank), std::move(submitting), calls,
                  {.part_bytes = communicator.members().control.settings().staging_bytes}) {}

StagedCalls::StagedCalls(Communicator& communicator, std::shared_ptr<StagedRank> rank,
                         std::unique_lock<std::mutex> submitting, std::span<const CallArgs> calls,
                         const StagedWays& ways)
    : comm_(communicator),
      rank_(std::move(rank)),
      submitting_(std::move(submitting)),
      binds_(ways.binds),
      others_memory_(ways.memory),
      rounds_(with_shots(comm_, calls, ways), comm_.ranks(), comm_.rank(), ways.part_bytes, ways.round_calls) {
  if (ways.pairs_calls) rounds_.pair_calls();
  for (const CallArgs& call : calls) {
    if (std::ranges::find(streams_, call.stream) == streams_.end()) streams_.push_back(call.stream);
  }
}

StagedCalls::~StagedCalls() {
  if (!has_joined_ || is_done_) return;
  if (!captured_) comm_.fail(Code::kSystem, comm_.rank(), "a call broke off for want of memory");
  end();
}

Status StagedCalls::check() {
  if (comm_.failed()) return comm_.failure();
  TUTTI_TRY_ASSIGN(const cuda::Capture capture, find_capture());
  capture_ = capture.id;
  if (capture_ != 0) {
    TUTTI_TRY_ASSIGN(captured_, rank_->capture(capture));
  } else if (comm_.members().mpi_sends.are_on) {
    TUTTI_TRY_ASSIGN(auto peers, peers_in_place(comm_.members(), rank_->resources().device(), streams_));
    rounds_.leave_in_place(std::move(peers), comm_.members().mpi_sends.copy_too && !has_set_schedule());
  }
  if (rounds_.scratch_bytes() != 0) {
    TUTTI_TRY_ASSIGN(std::byte* const scratch, resources().scratch(rounds_.scratch_bytes()));
    rounds_.put_scratch(scratch);
  }
  return rank_->start();
}

/// Some of the calls run it, on the host.
bool StagedCalls::has_set_schedule() const {
  return std::ranges::any_of(rounds_.collectives(), [&](const CallArgs& call) {
    return comm_.members().plans.schedule_for(shape_of(call, comm_.ranks(), comm_.rank()).request) != nullptr;
  });
}

Result<cuda::Capture> StagedCalls::find_capture() const {
  const cuda::Device& device = rank_->resources().device();
  TUTTI_TRY_ASSIGN(const cuda::Capture first, cuda::capture_of(device, streams_[0]));
  for (const cuda::StreamHandle stream : streams_) {
    TUTTI_TRY_ASSIGN(const cuda::Capture capture, cuda::capture_of(device, stream));
    if (capture.id == first.id) continue;
    return error(Code::kInvalidUsage,
                 "the streams of one group's calls are captured into different graphs, or some of them are not "
                 "captured; capture them all into one (fork them from one stream by events)");
  }
  return first;
}

Status StagedCalls::step() { return guard(advance()); }
Status StagedCalls::begin() { return guard(join()); }
Status StagedCalls::finish() { return guard(part()); }

Status StagedCalls::guard(Status status) {
  if (!status.ok()) break_off(status.error());
  return status;
}

void StagedCalls::break_off(const Error& why) {
  if (!captured_) comm_.fail(why.code, comm_.rank(), why.message);
  if (has_joined_ && !is_done_) end();
}

Status StagedCalls::join() {
  has_joined_ = true;
  // First of all: whatever fails after it, end() records behind the call before (S5).
  TUTTI_TRY(rank_->order().follow(streams_[0], capture_));
  TUTTI_TRY(note());
  return resources().join(streams_);
}

Status StagedCalls::part() {
  TUTTI_TRY(rank_->order().end(streams_[0], capture_));
  TUTTI_TRY(resources().part(streams_));
  is_done_ = true;
  return {};
}

Status StagedCalls::advance() {
  if (!has_joined_) return join();
  if (!rounds_.is_done()) {
    // Whoever aborts waits for this thread.
    if (!captured_ && comm_.failed()) return comm_.failure();
    const StagedRound round = rounds_.next();
    while (given_.size() == StagedResources::kDepth || (round.waits && !given_.empty())) TUTTI_TRY(take());
    return give(round);
  }
  if (!given_.empty()) TUTTI_TRY(take());
  return given_.empty() ? part() : Status();
}

Status StagedCalls::note() const {
  if (captured_ && !rounds_.collectives().empty()) comm_.device()->note_capture();
  if (captured_) return {};
  for (const CallArgs& call : rounds_.collectives()) TUTTI_TRY(comm_.device()->note(call, DeviceWatch::Way::kHost));
  return {};
}

Status StagedCalls::give(const StagedRound& round) {
  Given given{.number = 0, .parts = round.parts, .memory = nullptr};
  TUTTI_TRY_ASSIGN(given.memory, resources().place(round.bytes));
  given.number = resources().last_number();
  std::vector<StagedPart> placed = round.parts;
  for (StagedPart& part : placed) {
    if (part.is_in_place) continue;
    if (part.input.count != 0) part.args.send = given.memory + part.input.at;
    if (part.output.count != 0) part.args.receive = given.memory + part.output.at;
    if (part.args.scale_is_address) part.args.scale = reinterpret_cast<std::uintptr_t>(given.memory + part.scale_at);
  }
  if (captured_) {
    captured_->rounds.push_back(
        {captured_.get(), std::move(placed), memory_of_round(), given.number, round.is_last, binds_});
  } else {
    if (last_.empty()) last_.emplace_back();
    std::list<StagedRank::Work> one;
    one.push_back({.parts = std::move(placed),
                   .memory = memory_of_round(),
                   .number = given.number,
                   .done = resources().done(),
                   .is_first = posted_ == Posted::kNothing,
                   .is_last = round.is_last,
                   .binds = binds_});
    rank_->post(std::move(one));
    posted_ = round.is_last ? Posted::kAll : Posted::kSome;
  }
  TUTTI_TRY(copy_in(given));
  TUTTI_TRY(hand_over(given.number));
  given_.push_back(std::move(given));
  return {};
}

std::vector<std::weak_ptr<void>> StagedCalls::memory_of_round() const {
  return {resources().memory(), resources().scratch_memory(), others_memory_};
}

Status StagedCalls::hand_over(std::uint32_t number) const {
  const StagedResources& with = resources();
  if (captured_) return cuda::call_host(with.device(), CapturedCalls::replay, &captured_->rounds.back(), streams_[0]);
  return cuda::write_word(with.device(), with.ready(), number, streams_[0]);
}

Status StagedCalls::copy_in(const Given& given) const {
  const cuda::Device& device = resources().device();
  for (const StagedPart& part : given.parts) {
    TUTTI_TRY(scale_for_shot(device, part, streams_[0]));
    if (part.is_in_place) continue;
    TUTTI_TRY(for_each_piece(part.input, [&](std::size_t from, std::size_t to, std::size_t bytes) {
      return cuda::copy_on_stream(device, given.memory + part.input.at + to, bytes_at(part.args.send, from), bytes,
                                  streams_[0]);
    }));
    if (!part.args.scale_is_address) continue;
    TUTTI_TRY(cuda::copy_on_stream(device, given.memory + part.scale_at, reinterpret_cast<const void*>(part.args.scale),
                                   size_of(part.args.type), streams_[0]));
  }
  return {};
}

Status StagedCalls::take() {
  const Given given = std::move(given_.front());
  given_.pop_front();
  const cuda::Device& device = resources().device();
  const auto is_message = [](const StagedPart& part) { return part.is_in_place && part.output.count != 0; };
  const bool flushes = comm_.members().mpi_sends.flush && std::ranges::any_of(given.parts, is_message);
  TUTTI_TRY(cuda::wait_for_word(device, resources().done(), given.number, streams_[0], flushes));
  for (const StagedPart& part : given.parts) {
    TUTTI_TRY(part.is_in_place ? copy_own_block(part.args) : copy_out(given, part));
    TUTTI_TRY(add_up_shot(device, part, comm_.ranks(), comm_.rank(), streams_[0]));
  }
  return {};
}

Status StagedCalls::copy_out(const Given& given, const StagedPart& part) const {
  return for_each_piece(part.output, [&](std::size_t to, std::size_t from, std::size_t bytes) {
    // Others' kernels have the GPU by turns.
    const auto copy = rank_->shares_gpu() ? cuda::copy_by_engine : cuda::copy_on_stream;
    return copy(resources().device(), bytes_at(part.args.receive, to), given.memory + part.output.at + from, bytes,
                streams_[0]);
  });
}

/// What a rank sends to itself in a collective that goes by messages.
Status StagedCalls::copy_own_block(const CallArgs& args) const {
  if (is_point_to_point(args)) return {};
  const MessageBlocks own = message_blocks(args, comm_.ranks(), comm_.rank(), comm_.rank());
  if (own.sent == nullptr || own.received == nullptr || own.sent == own.received) return {};
  return cuda::copy_on_stream(resources().device(), own.received, own.sent, own.sent_bytes, streams_[0]);
}

/// After a failure: the thread lets everything through, also streams that wait already.
void StagedCalls::end() {
  is_done_ = true;
  if (captured_) return rank_->forget_capture();
  if (posted_ == Posted::kSome) {
    last_.front() = {.parts = {}, .number = resources().last_number(), .done = resources().done(), .is_last = true};
    rank_->post(std::move(last_));
  }
  resources().give_up(streams_[0]);
}

}  // namespace tutti::comm
