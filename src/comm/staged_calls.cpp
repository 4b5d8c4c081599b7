// Calls on their way through host memory, as the thread that makes them puts them on streams.
#include "comm/device_staged.h"

#include <algorithm>

namespace tutti::comm {
namespace {

/// Calls visit(in the call's buffer, in the staging memory, bytes) for what lies in one piece.
template <class Visit>
Status for_each_piece(const StagedPart& part, std::size_t blocks, Visit&& visit) {
  const bool in_one = part.block_bytes() == part.pitch_bytes;
  const std::size_t pieces = in_one && blocks != 0 ? 1 : blocks;
  const std::size_t bytes = in_one ? blocks * part.block_bytes() : part.block_bytes();
  for (std::size_t i = 0; i < pieces; ++i) TUTTI_TRY(visit(i * part.pitch_bytes, i * part.block_bytes(), bytes));
  return {};
}

std::byte* bytes_at(const void* buffer, std::size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(buffer)) + offset;
}

}  // namespace

StagedCalls::StagedCalls(Communicator& communicator, std::shared_ptr<StagedRank> rank, std::span<const CallArgs> calls)
    : comm_(communicator),
      rank_(std::move(rank)),
      submitting_(rank_->submitting_),
      rounds_(calls, comm_.ranks(), comm_.rank(), comm_.members().control.settings().staging_bytes) {
  for (const CallArgs& call : calls) {
    if (std::ranges::find(streams_, call.stream) == streams_.end()) streams_.push_back(call.stream);
  }
}

StagedCalls::~StagedCalls() {
  if (has_begun_ && !is_done_) [[unlikely]] {
    comm_.fail(Code::kSystem, comm_.rank(), "a call broke off for want of memory");
    end();
  }
}

Status StagedCalls::check() {
  if (comm_.failed()) return comm_.failure();
  TUTTI_TRY(check_captures());
  return rank_->start();
}

void StagedCalls::begin() {
  ticket_ = comm_.take_ticket();
  has_begun_ = true;
}

Status StagedCalls::check_captures() const {
  for (const cuda::StreamHandle stream : streams_) {
    TUTTI_TRY_ASSIGN(const cuda::Capture capture, cuda::capture_of(*rank_->resources_.device, stream));
    if (capture.id == 0) continue;
    return error(Code::kInvalidUsage,
                 "a stream of the call is captured into a graph, and the data of this communicator goes through host "
                 "memory, which graphs cannot replay; make the call outside the capture");
  }
  return {};
}

Status StagedCalls::step() {
  Status status = advance();
  if (!status.ok()) {
    comm_.fail(status.error().code, comm_.rank(), status.error().message);
    end();
  }
  return status;
}

Status StagedCalls::advance() {
  if (!has_joined_) {
    has_joined_ = true;
    return join_streams();
  }
  if (!rounds_.is_done()) {
    const StagedRound round = rounds_.next();
    while (given_.size() == StagedRank::kDepth || (round.waits && !given_.empty())) TUTTI_TRY(take());
    return give(round);
  }
  if (!given_.empty()) TUTTI_TRY(take());
  if (!given_.empty()) return {};
  TUTTI_TRY(part_streams());
  is_done_ = true;
  return {};
}

/// The first stream waits for the others, and for the call before.
Status StagedCalls::join_streams() {
  StagedResources& resources = rank_->resources_;
  if (!resources.outgrown.empty() && resources.are_through()) resources.outgrown.clear();
  if (resources.is_used) TUTTI_TRY(resources.passed.hold(*resources.device, streams_[0]));
  resources.is_used = true;
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    TUTTI_TRY(resources.passed.record(streams_[i]));
    TUTTI_TRY(resources.passed.hold(*resources.device, streams_[0]));
  }
  return {};
}

Status StagedCalls::part_streams() {
  const StagedResources& resources = rank_->resources_;
  TUTTI_TRY(resources.passed.record(streams_[0]));
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    TUTTI_TRY(resources.passed.hold(*resources.device, streams_[i]));
  }
  return {};
}

Status StagedCalls::give(const StagedRound& round) {
  Given given{.number = rank_->last_number_ + 1, .parts = round.parts};
  TUTTI_TRY_ASSIGN(given.memory, rank_->place(given.number, round.bytes));
  rank_->last_number_ = given.number;
  StagedRank::Work work{.parts = round.parts, .number = given.number, .ticket = ticket_, .is_last = round.is_last};
  for (StagedPart& part : work.parts) {
    if (part.input_blocks != 0) part.args.send = given.memory + part.input_at;
    if (part.output_blocks != 0) part.args.receive = given.memory + part.output_at;
    if (part.args.scale_is_address) part.args.scale = reinterpret_cast<std::uintptr_t>(given.memory + part.scale_at);
  }
  rank_->post(std::move(work));
  ticket_.reset();
  posted_last_ = round.is_last;
  TUTTI_TRY(copy_in(given));
  TUTTI_TRY(cuda::write_word(*rank_->resources_.device, rank_->ready(), given.number, streams_[0]));
  given_.push_back(std::move(given));
  return {};
}

Status StagedCalls::copy_in(const Given& given) const {
  const cuda::Device& device = *rank_->resources_.device;
  for (const StagedPart& part : given.parts) {
    TUTTI_TRY(for_each_piece(part, part.input_blocks, [&](std::size_t from, std::size_t to, std::size_t bytes) {
      return cuda::copy_on_stream(device, given.memory + part.input_at + to, bytes_at(part.args.send, from), bytes,
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
  const cuda::Device& device = *rank_->resources_.device;
  TUTTI_TRY(cuda::wait_for_word(device, rank_->done(), given.number, streams_[0]));
  for (const StagedPart& part : given.parts) {
    TUTTI_TRY(for_each_piece(part, part.output_blocks, [&](std::size_t to, std::size_t from, std::size_t bytes) {
      return cuda::copy_on_stream(device, bytes_at(part.args.receive, to), given.memory + part.output_at + from, bytes,
                                  streams_[0]);
    }));
  }
  return {};
}

/// After a failure: the thread lets everything through, also streams that wait already.
void StagedCalls::end() {
  is_done_ = true;
  if (!posted_last_) rank_->post({.parts = {}, .number = rank_->last_number_, .ticket = ticket_, .is_last = true});
  // Once more: that it was this which failed is not the rule.
  StagedResources& resources = rank_->resources_;
  resources.is_lost = resources.is_used && !resources.passed.record(streams_[0]).ok();
}

}  // namespace tutti::comm
