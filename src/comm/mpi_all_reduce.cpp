#include "comm/mpi_all_reduce.h"

#include "base/round_up.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace tutti::comm {
namespace {

using std::chrono::steady_clock;
using transport::MpiDirection;
using transport::MpiUse;

/// Open MPI sends so much over TCP without asking first, and copies it, in pieces that stay in the caches: longer ones take up to twice as long
/// in all.
constexpr std::size_t kPieceBytes = std::size_t{60} << 10;
/// Of two ranks a share up to there is one message, which neither side copies.
constexpr std::size_t kWholeBytes = std::size_t{512} << 10;
/// Shares begin at multiples of so many elements.
constexpr std::size_t kShareElements = 64;
/// For what MPI has begun with when a call fails.
constexpr std::chrono::milliseconds kLetGoTime{100};

bool is_none(const std::unique_ptr<transport::MpiMessage>& message) { return message == nullptr; }

}  // namespace

MpiAllReduce::MpiAllReduce(std::shared_ptr<transport::MpiNetwork> mpi, int ranks, int rank)
    : mpi_(std::move(mpi)), ranks_(ranks), rank_(rank) {
  sources_.resize(static_cast<std::size_t>(ranks));
  for (Piece& one : under_way_) {
    for (Messages* all : {&one.shares_in, &one.shares_out, &one.sums_in, &one.sums_out})
      all->resize(static_cast<std::size_t>(ranks));
  }
}

MpiAllReduce::~MpiAllReduce() { give_up(false); }

void MpiAllReduce::begin(const Call& call) {
  call_ = call;
  const auto ranks = static_cast<std::size_t>(ranks_);
  share_ = round_up((call.count + ranks - 1) / ranks, kShareElements);
  const bool is_whole = ranks_ == 2 && share_ * call.element_bytes <= kWholeBytes;
  length_ = is_whole ? share_ : std::min(share_, kPieceBytes / call.element_bytes);
  pieces_ = (share_ + length_ - 1) / length_;
  place_lines_ = (length_ * call.element_bytes + sizeof(Line) - 1) / sizeof(Line);
  const std::size_t lines = 2 * (ranks - 1) * place_lines_;
  for (std::size_t number = 0; number < std::min(pieces_, kPieces); ++number)
    if (!piece(number).memory || piece(number).lines < lines) {
      piece(number).memory = std::make_unique_for_overwrite<Line[]>(lines);
      piece(number).lines = lines;
    }
  first_ = next_ = sent_bytes_ = 0;
  problem_.clear();
}

MpiAllReduce::Range MpiAllReduce::range(int share, std::size_t piece) const {
  const std::size_t begin = static_cast<std::size_t>(share) * share_ + piece * length_;
  const std::size_t end = std::min(begin + length_, (static_cast<std::size_t>(share) + 1) * share_);
  const std::size_t first = std::min(begin, call_.count);
  return {first, std::min(end, call_.count) - first};
}

std::byte* MpiAllReduce::input(const Range& range) const {
  return static_cast<std::byte*>(const_cast<void*>(call_.input)) + range.first * call_.element_bytes;
}

std::byte* MpiAllReduce::output(const Range& range) const {
  return static_cast<std::byte*>(call_.output) + range.first * call_.element_bytes;
}

std::byte* MpiAllReduce::place(const Piece& piece, int peer, bool of_sum) const {
  const int others = ranks_ - 1;
  const int index = (peer < rank_ ? peer : peer - 1) + (of_sum ? others : 0);
  return piece.memory[static_cast<std::size_t>(index) * place_lines_].bytes;
}

MpiAllReduce::Message MpiAllReduce::post(int peer, MpiDirection direction, std::byte* data, const Range& range,
                                         MpiUse use) {
  if (range.count == 0) return nullptr;
  const std::size_t bytes = range.count * call_.element_bytes;
  if (direction == MpiDirection::kSend) sent_bytes_ += bytes;
  return mpi_->message(peer, direction, data, bytes, use);
}

/// Receives first: what comes finds its place.
void MpiAllReduce::begin_piece(Piece& piece) {
  piece.is_summed = false;
  const Range own = range(rank_, piece.number);
  for (int step = 1; step < ranks_; ++step) {
    const int from = (rank_ + ranks_ - step) % ranks_;
    piece.shares_in[from] = post(from, MpiDirection::kReceive, place(piece, from, false), own, MpiUse::kShares);
    const Range theirs = range(from, piece.number);
    piece.sums_in[from] = post(from, MpiDirection::kReceive, place(piece, from, true), theirs, MpiUse::kSums);
  }
  for (int step = 1; step < ranks_; ++step) {
    const int to = (rank_ + step) % ranks_;
    const Range theirs = range(to, piece.number);
    piece.shares_out[to] = post(to, MpiDirection::kSend, input(theirs), theirs, MpiUse::kShares);
  }
}

bool MpiAllReduce::is_over(Message& message) {
  if (!message) return true;
  const transport::MpiMessage::State state = message->look();
  if (state == transport::MpiMessage::State::kDone) message.reset();
  if (state == transport::MpiMessage::State::kFailed) problem_ = message->problem();
  return !message;
}

/// Looks no further than the first that is not.
bool MpiAllReduce::are_over(Messages& messages, bool* moved) {
  for (Message& message : messages) {
    const bool is_one = message != nullptr;
    if (!is_over(message)) return false;
    *moved |= is_one;
  }
  return true;
}

void MpiAllReduce::add_up(Piece& piece, executor::HostMachine& machine) {
  const Range own = range(rank_, piece.number);
  for (int rank = 0; rank < ranks_; ++rank)
    sources_[static_cast<std::size_t>(rank)] = rank == rank_ ? input(own) : place(piece, rank, false);
  void* sum = output(own);
  if (own.count != 0) machine.reduce({sources_.data(), ranks_, &sum, 1, own.count, nullptr, call_.divisor});
  for (int step = 1; step < ranks_; ++step) {
    const int to = (rank_ + step) % ranks_;
    piece.sums_out[to] = post(to, MpiDirection::kSend, output(own), own, MpiUse::kSums);
  }
  piece.is_summed = true;
}

bool MpiAllReduce::take_sums(Piece& piece, executor::HostMachine& machine) {
  const bool in_place = call_.input == call_.output;
  bool moved = false;
  for (int step = 1; step < ranks_; ++step) {
    const int from = (rank_ + step) % ranks_;
    Message& sum = piece.sums_in[from];
    if (!sum) continue;
    if ((in_place && !is_over(piece.shares_out[from])) || !is_over(sum)) return moved;
    const Range theirs = range(from, piece.number);
    machine.load_bytes(output(theirs), place(piece, from, true), theirs.count * call_.element_bytes);
    moved = true;
  }
  return moved;
}

/// Each question to MPI is a system call or more: of each kind there is one at most that is not answered.
bool MpiAllReduce::advance(executor::HostMachine& machine) {
  bool moved = false;
  while (next_ != pieces_ && next_ != first_ + kPieces) {
    Piece& begun = piece(next_);
    begun.number = next_++;
    begin_piece(begun);
    moved = true;
  }
  std::size_t number = first_;
  while (number != next_ && piece(number).is_summed) ++number;
  for (; number != next_ && are_over(piece(number).shares_in, &moved); ++number) {
    add_up(piece(number), machine);
    moved = true;
  }
  const auto has_sums = [](const Piece& of) { return std::ranges::all_of(of.sums_in, is_none); };
  for (number = first_; number != next_; ++number) {
    moved |= take_sums(piece(number), machine);
    if (!has_sums(piece(number))) break;
  }
  for (; first_ != next_ && piece(first_).is_summed && has_sums(piece(first_)); ++first_)
    if (!are_over(piece(first_).shares_out, &moved) || !are_over(piece(first_).sums_out, &moved)) break;
  // A share that MPI has refused to send is why no sum comes.
  if (!moved && first_ != next_) (void)are_over(piece(first_).shares_out, &moved);
  return moved;
}

int MpiAllReduce::waiting_for() const {
  if (first_ == next_) return -1;
  const Piece& first = under_way_[first_ % kPieces];
  for (const Messages* all : {&first.shares_in, &first.sums_in, &first.shares_out, &first.sums_out}) {
    // Sums are asked for from the next rank on, as take_sums() takes them.
    for (int step = 0; step < ranks_; ++step) {
      const int rank = (rank_ + step) % ranks_;
      const int peer = all == &first.sums_in ? rank : step;
      if ((*all)[static_cast<std::size_t>(peer)]) return peer;
    }
  }
  return -1;
}

template <class Visit>
void MpiAllReduce::visit_under_way(const Visit& visit) {
  for (std::size_t number = first_; number != next_; ++number) {
    Piece& one = piece(number);
    for (Messages* all : {&one.shares_in, &one.sums_in, &one.shares_out, &one.sums_out}) {
      const bool is_received = all == &one.shares_in || all == &one.sums_in;
      for (Message& message : *all)
        if (message) visit(one, message, is_received);
    }
  }
}

/// MPI may still write there, whenever it is.
void MpiAllReduce::keep(std::unique_ptr<Line[]> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<Line[]>>;
  const std::lock_guard lock(mutex);
  if (memory) kept.push_back(std::move(memory));
}

/// First nothing more may come, so that what others have not begun to send they leave alone.
bool MpiAllReduce::give_up(bool may_ask) {
  bool waits = may_ask && first_ != next_;
  if (waits) visit_under_way([](Piece&, Message& message, bool) { message->cancel(); });
  for (const auto until = steady_clock::now() + kLetGoTime; waits && steady_clock::now() < until;) {
    waits = false;
    visit_under_way([&](Piece&, Message& message, bool) {
      if (message->look() != transport::MpiMessage::State::kUnderWay) return message.reset();
      waits = true;
    });
    if (waits) std::this_thread::yield();
  }
  bool is_left = false;
  visit_under_way([&](Piece& of, Message& message, bool is_received) {
    if (is_received) keep(std::move(of.memory));
    is_left |= !is_received;
    message.reset();
  });
  first_ = next_ = pieces_ = 0;
  return is_left;
}

}  // namespace tutti::comm
