// RecordLink: one rank's records to another, which has a copy of the same memory. A record is some bytes for a place in the copy and
// then, if there is one, a word, which is stored last (release): whoever finds the word finds the bytes, as in shared memory. Without a
// word the value is a mark for who receives it.
//
//   record := magic u32 | bytes u32 | offset u64 | word's offset u64 | word's value u64 | `bytes` bytes     all little-endian
#pragma once

#include "transport/byte_stream.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

struct Record {
  static constexpr std::uint32_t kMagic = 0x33525454;  // "TTR3"
  static constexpr std::uint64_t kNoWord = ~std::uint64_t{0};
  static constexpr std::uint64_t kReceiversPlace = ~std::uint64_t{0};  ///< for `offset`: where the receiver says

  std::uint32_t magic = kMagic;
  std::uint32_t bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t word = kNoWord;
  std::uint64_t value = 0;  ///< of the word
};
static_assert(sizeof(Record) == 32);

class RecordLink {
 public:
  enum class State { kOpen, kEnded, kBroken };

  /// `memory`: this rank's copy, in which the other's records are carried out. `stream`: nullptr: connect() brings it, and until then
  /// records wait.
  RecordLink(std::unique_ptr<transport::ByteStream> stream, std::span<std::byte> memory);
  /// To a rank of this host, whose copy is mapped here: records are carried out there at once, and nothing comes by this link.
  explicit RecordLink(std::span<std::byte> copy) : memory_(copy) {}

  void connect(std::unique_ptr<transport::ByteStream> stream);

  /// Asked once for each record of kInPlaceBytes or more that comes, and for each without an offset: where its payload goes; nullptr:
  /// where the record says, and one that says nothing breaks the link off.
  void set_place(std::function<std::byte*(const Record&)> place) { place_ = std::move(place); }

  /// Told of each record without an offset when its payload is in its place.
  void set_arrived(std::function<void(const Record&)> arrived) { arrived_ = std::move(arrived); }

  /// Asked for each record that comes, and before more of it is taken: true if it is to be dropped, or what is missing of it.
  void set_stale(std::function<bool(const Record&)> stale) { stale_ = std::move(stale); }

  /// `payload` stays as it is until it is sent; up to kCopiedBytes are copied.
  void queue(Record record, const std::byte* payload);
  /// The same; `payload` stays as it is until is_released().
  void lend(Record record, const std::byte* payload);
  /// Sends what is taken; true if that was something.
  bool send();
  /// Nothing waits to be taken. True of a stream that takes no more: whether that is right is seen on the other way.
  bool is_sent() const { return first_ == queue_.size(); }
  /// After is_sent(): nobody reads what was lent any more.
  bool is_released() const { return !stream_ || stream_->is_released(); }
  /// Nothing will be queued any more; to be called when all is sent.
  void finish() {
    if (stream_) stream_->finish();
  }
  /// After finish(). Where the other side has ended it has no need of more.
  bool has_arrived() const { return state_ != State::kOpen || !takes_more_ || !stream_ || stream_->has_arrived(); }
  /// ByteStream's, of the stream if there is one.
  void settle_pacing(bool one_system) {
    if (stream_) stream_->settle_pacing(one_system);
  }
  /// Gives the stream up, whatever is under way.
  void close();

  /// Carries out what has come, up to the end of a long record with a word; true if that was something.
  bool receive();
  /// Something has come that no receive() has begun with, as the record before was long: no descriptor shows it.
  bool has_staged() const { return state_ != State::kBroken && !come_.empty(); }

  State state() const { return state_; }
  /// After kBroken: what came that is no record.
  const std::string& complaint() const { return complaint_; }
  /// Something can come by it.
  bool is_stream() const { return is_stream_; }
  /// Not connected yet.
  bool waits_for_stream() const { return is_stream_ && !stream_ && takes_more_; }
  int descriptor() const { return stream_ ? stream_->descriptor() : -1; }
  int output_descriptor() const { return stream_ ? stream_->output_descriptor() : -1; }
  std::uint64_t sent_bytes() const { return sent_bytes_; }

  static constexpr std::size_t kCopiedBytes = 64;
  /// Payloads of which so much is missing are received without a copy: longer ones than what travels beside lines, for which another system
  /// call would take longer.
  static constexpr std::size_t kInPlaceBytes = (std::size_t{8} << 10) + 64;

 private:
  struct Outgoing {
    Record record;
    const std::byte* payload;
    std::byte copied[kCopiedBytes];
    bool is_lent = false;
  };

  void store(const Record& record, const std::byte* payload) const;
  bool goes_lent(const Outgoing& out) const;
  void advance_queue(std::size_t sent);
  bool take();
  std::span<const std::byte> next(std::size_t most);
  bool begin_record();
  void look_again();
  bool drop_record();
  void finish_record();
  void break_off(std::string why);

  std::unique_ptr<transport::ByteStream> stream_;
  bool is_stream_ = false;
  std::span<std::byte> memory_;
  State state_ = State::kOpen;  ///< of what comes
  bool takes_more_ = true;
  std::string complaint_;

  std::vector<Outgoing> queue_;
  std::size_t first_ = 0;  ///< of the queue, not wholly sent
  std::size_t sent_of_it_ = 0;
  std::uint64_t sent_bytes_ = 0;

  std::vector<std::byte> staged_;    ///< what streams fill that keep nothing of what comes
  std::span<const std::byte> come_;  ///< received and not looked at
  Record current_;
  std::size_t headed_ = 0;  ///< bytes of the record's head, as long as it is not whole
  std::function<std::byte*(const Record&)> place_;
  std::function<void(const Record&)> arrived_;
  std::function<bool(const Record&)> stale_;
  std::vector<std::byte> dropped_;  ///< where the payload of such a record goes
  std::byte* payload_ = nullptr;    ///< of the current record
  bool in_payload_ = false;
  std::size_t done_ = 0;  ///< of the payload
};

}  // namespace tutti::comm
