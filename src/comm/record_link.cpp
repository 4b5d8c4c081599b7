#include "comm/record_link.h"

#include "executor/host_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

constexpr std::size_t kPartsMax = 32;
/// What may follow a payload in one go: the next record's head, and little that would have to be copied.
constexpr std::size_t kAheadBytes = 1024;
/// Two inputs with their lines, or one of 16 KiB with its own, come in one go.
constexpr std::size_t kStagedBytes = (std::size_t{16} << 10) + kAheadBytes;

}  // namespace

RecordLink::RecordLink(std::unique_ptr<transport::ByteStream> stream, std::span<std::byte> memory)
    : is_stream_(true), memory_(memory) {
  if (stream) connect(std::move(stream));
}

void RecordLink::connect(std::unique_ptr<transport::ByteStream> stream) {
  stream_ = std::move(stream);
  staged_.resize(kStagedBytes);
}

void RecordLink::queue(Record record, const std::byte* payload) {
  if (!takes_more_) return;
  if (!is_stream_) return store(record, payload);
  Outgoing& out = queue_.emplace_back();
  out.record = record;
  out.payload = payload;
  if (record.bytes != 0 && record.bytes <= kCopiedBytes) {
    std::memcpy(out.copied, payload, record.bytes);
    out.payload = nullptr;
  }
}

void RecordLink::lend(Record record, const std::byte* payload) {
  queue(record, payload);
  if (is_stream_ && takes_more_) queue_.back().is_lent = queue_.back().payload != nullptr;
}

/// By itself, from where it lies.
bool RecordLink::goes_lent(const Outgoing& out) const {
  return out.is_lent && out.record.bytes >= stream_->lends_from();
}

/// Into a copy that is mapped here.
void RecordLink::store(const Record& record, const std::byte* payload) const {
  if (record.bytes != 0) std::memcpy(memory_.data() + record.offset, payload, record.bytes);
  if (record.word == Record::kNoWord) return;
  executor::store_release(reinterpret_cast<std::uint64_t*>(memory_.data() + record.word), record.value);
}

void RecordLink::close() {
  stream_.reset();
  come_ = {};
  queue_.clear();
  first_ = 0;
  takes_more_ = false;
  if (state_ == State::kOpen) state_ = State::kEnded;
}

bool RecordLink::send() {
  bool moved = false;
  while (stream_ && !is_sent()) {
    iovec parts[kPartsMax];
    std::size_t count = 0;
    std::size_t total = 0;
    std::size_t skip = sent_of_it_;
    bool lent = false;
    for (std::size_t i = first_; i < queue_.size() && count + 2 <= kPartsMax && !lent; ++i) {
      Outgoing& out = queue_[i];
      const std::byte* const payload = out.payload != nullptr ? out.payload : out.copied;
      const auto add = [&](const void* data, std::size_t bytes) {
        const std::size_t skipped = std::min(skip, bytes);
        skip -= skipped;
        if (skipped == bytes) return;
        parts[count++] = {const_cast<std::byte*>(static_cast<const std::byte*>(data) + skipped), bytes - skipped};
        total += bytes - skipped;
      };
      add(&out.record, sizeof(Record));
      const bool by_itself = goes_lent(out);
      if (by_itself && count != 0) break;  // what is before it goes first
      add(payload, out.record.bytes);
      lent = by_itself;
    }
    const std::span<const iovec> some(parts, count);
    const transport::ByteStream::Moved moved_now = lent ? stream_->send_lent(some) : stream_->send(some);
    const std::size_t sent = moved_now.bytes;
    if (moved_now.state == transport::ByteStream::State::kEnded) {
      takes_more_ = false;
      queue_.clear();
      first_ = 0;
      return moved;
    }
    if (sent == 0) return moved;
    moved = true;
    advance_queue(sent);
    if (sent < total) return true;  // it is full
  }
  return moved;
}

void RecordLink::advance_queue(std::size_t sent) {
  sent_bytes_ += sent;
  sent_of_it_ += sent;
  while (first_ < queue_.size() && sent_of_it_ >= sizeof(Record) + queue_[first_].record.bytes) {
    sent_of_it_ -= sizeof(Record) + queue_[first_].record.bytes;
    ++first_;
  }
  if (first_ != queue_.size()) return;
  queue_.clear();
  first_ = 0;
}

/// Until nothing more has come, or a long record with a word has: whoever waits for it may know where the next one belongs, and what has come of
/// that stays as it is until then. One without a word is told of at once as well (arrived_), but what follows it has its place already.
bool RecordLink::receive() {
  bool moved = has_staged();
  if (moved && take()) return true;
  while (stream_ && state_ == State::kOpen) {
    look_again();
    iovec parts[2];
    std::size_t count = 0;
    const std::size_t missing = in_payload_ ? current_.bytes - done_ : 0;
    const std::size_t in_place = missing >= kInPlaceBytes ? missing : 0;
    if (in_place != 0) parts[count++] = {payload_ + done_, in_place};
    const std::size_t ahead = in_place != 0 ? kAheadBytes : staged_.size();
    parts[count++] = {staged_.data(), ahead};
    const auto [got, state, kept] = stream_->receive({parts, count});
    if (state == transport::ByteStream::State::kEnded) state_ = State::kEnded;
    if (got == 0) return moved;
    moved = true;
    const std::size_t placed = kept.empty() ? std::min(got, in_place) : 0;
    done_ += placed;
    come_ = kept.empty() ? std::span<const std::byte>(staged_).first(got - placed) : kept;
    if (take() || (kept.empty() && got < in_place + ahead)) return true;
  }
  return moved;
}

/// Carries out what has come, up to the end of a long record with a word; true if that has come.
bool RecordLink::take() {
  for (;;) {
    if (in_payload_) {
      const std::span<const std::byte> now = next(current_.bytes - done_);
      if (!now.empty()) std::memcpy(payload_ + done_, now.data(), now.size());
      done_ += now.size();
      if (done_ != current_.bytes) return false;
      finish_record();
      if (current_.bytes >= kInPlaceBytes && current_.word != Record::kNoWord) return true;
    }
    if (!begin_record()) return false;
  }
}

/// Of what has come, up to so many bytes.
std::span<const std::byte> RecordLink::next(std::size_t most) {
  const std::span<const std::byte> taken = come_.first(std::min(most, come_.size()));
  come_ = come_.subspan(taken.size());
  return taken;
}

bool RecordLink::begin_record() {
  if (state_ == State::kBroken) return false;
  const std::span<const std::byte> head = next(sizeof(Record) - headed_);
  if (!head.empty()) std::memcpy(reinterpret_cast<std::byte*>(&current_) + headed_, head.data(), head.size());
  headed_ += head.size();
  if (headed_ != sizeof(Record)) return false;
  headed_ = 0;
  const std::size_t size = memory_.size();
  const bool placed_here = current_.offset == Record::kReceiversPlace;
  const bool bytes_fit = current_.bytes <= size && (placed_here || current_.offset <= size - current_.bytes);
  const bool word_fits = current_.word == Record::kNoWord ||
                         (current_.word <= size - sizeof(std::uint64_t) && current_.word % sizeof(std::uint64_t) == 0);
  if (current_.magic != Record::kMagic || !bytes_fit || !word_fits) {
    break_off(fmt::format("bytes that are no record ({:#010x}, {} bytes for {})", current_.magic, current_.bytes,
                          current_.offset));
    return false;
  }
  done_ = 0;
  if (stale_ && stale_(current_)) return drop_record();
  const bool asks = place_ && (placed_here || current_.bytes >= kInPlaceBytes);
  std::byte* const place = asks ? place_(current_) : nullptr;
  if (placed_here && place == nullptr) {
    break_off(fmt::format("{} bytes for which there is no place", current_.bytes));
    return false;
  }
  payload_ = place != nullptr ? place : memory_.data() + current_.offset;
  in_payload_ = true;
  return true;
}

/// At a record of which some has come before: others' records may have come since.
void RecordLink::look_again() {
  const bool is_dropped = payload_ == dropped_.data();
  if (in_payload_ && !is_dropped && stale_ && stale_(current_)) drop_record();
}

bool RecordLink::drop_record() {
  dropped_.resize(current_.bytes);
  payload_ = dropped_.data();
  current_.word = Record::kNoWord;
  in_payload_ = true;
  return true;
}

void RecordLink::finish_record() {
  in_payload_ = false;
  if (current_.offset == Record::kReceiversPlace && arrived_) arrived_(current_);
  if (current_.word == Record::kNoWord) return;
  executor::store_release(reinterpret_cast<std::uint64_t*>(memory_.data() + current_.word), current_.value);
}

void RecordLink::break_off(std::string why) {
  state_ = State::kBroken;
  complaint_ = std::move(why);
}

}  // namespace tutti::comm
