// ncclCommShrink: the ranks that stay meet in the parent's control segment, where no rank that is left out, dead ones included, has to
// answer, and then make a communicator of their own.
//
//   each rank that stays                       the first of them
//   its list, then word = number << 2 | here
//   wait until all that stay are here with the same list
//                                              id; word = number << 2 | offers
//   read the id  <----------------------------
//   bootstrap of the new communicator
//   word = number << 2 | over
//
// Over hosts each rank has a copy of that segment; what a rank writes goes there by the connections on which ranks watch each other.
//
// A word that a rank has left over from a shrink before is told by its number: shrinks_seen has the last one that counted.
#include "base/log.h"
#include "comm/group_jobs.h"
#include "comm/registry.h"
#include "comm/shrink_words.h"
#include "executor/backoff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

enum class ShrinkStage : std::uint64_t { kNone, kHere, kOffers, kOver };

/// A list that differs may be of an attempt that is about to fail, because a rank in it has died: it must stay for so long.
constexpr auto kAgreementGrace = std::chrono::seconds(1);

class Shrink {
 public:
  Shrink(Communicator& parent, const std::vector<int>& excluded, Communicator& child)
      : parent_(parent), control_(parent.members().control), child_(child), list_(control_.shrink_list_words()) {
    for (const int r : excluded) list_[static_cast<std::size_t>(r) / 64] |= std::uint64_t{1} << (r % 64);
    for (int r = 0; r < parent.ranks(); ++r) {
      if (!excludes(list_, r)) staying_.push_back(r);
    }
  }

  Status run() {
    begin();
    Status status = meet_and_make();
    if (!status.ok()) executor::store_release(&own().gave_up, number_);
    say(ShrinkStage::kOver);
    if (!status.ok()) return status;
    for (std::size_t i = 0; i < staying_.size(); ++i) parent_.members().shrinks_seen[staying_[i]] = numbers_[i];
    return status;
  }

 private:
  using List = std::vector<std::uint64_t>;

  /// Another rank wants to stay together with this one and with others than this one does.
  struct Disagreement {
    std::uint64_t number = 0;
    List list;
    Clock::time_point since;
  };

  static bool excludes(const List& list, int rank) {
    return (list[static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1) != 0;
  }
  ShrinkPlace& own() const { return control_.shrink_place(parent_.rank()); }
  static std::uint64_t number_of(std::uint64_t word) { return word >> 2; }
  static ShrinkStage stage_of(std::uint64_t word) { return static_cast<ShrinkStage>(word & 3); }
  std::uint64_t word_of(int rank) const { return executor::load_acquire(&control_.shrink_place(rank).word); }
  void say(ShrinkStage stage) const {
    executor::store_release(&own().word, number_ << 2 | static_cast<std::uint64_t>(stage));
    if (parent_.members().peer_watch) parent_.members().peer_watch->say(encode_shrink_words(control_, parent_.rank()));
  }

  void begin() {
    number_ = number_of(own().word) + 1;
    numbers_.resize(staying_.size());
    for (std::size_t i = 0; i < list_.size(); ++i) {
      executor::store_release(control_.shrink_list(parent_.rank()) + i, list_[i]);
    }
    say(ShrinkStage::kHere);
  }

  Status meet_and_make() {
    const auto since = Clock::now();
    for (std::size_t i = 0; i < staying_.size(); ++i) TUTTI_TRY(wait_for(i, since));
    const int rank = static_cast<int>(std::ranges::find(staying_, parent_.rank()) - staying_.begin());
    child_.set_place(static_cast<int>(staying_.size()), rank);
    child_.set_outlook([this] { return obstacle(); }, numbering());
    Status status = staying_.size() == 1 ? child_.initialise({}) : rank == 0 ? lead() : follow(since);
    child_.set_outlook(nullptr);
    return status;
  }

  std::string numbering() const {
    return fmt::format(" (by the new communicator's numbers: its ranks, from 0 on, are the parent's {})",
                       fmt::join(staying_, ", "));
  }

  Status lead() {
    TUTTI_TRY_ASSIGN(const UniqueId id, make_unique_id());
    own().id = id;
    say(ShrinkStage::kOffers);
    Status status = child_.initialise({id});
    // Ranks that never joined would keep the bootstrap waiting for them.
    if (!status.ok()) end_bootstrap(id);
    return status;
  }

  Status follow(Clock::time_point since) {
    const int first = staying_[0];
    executor::Backoff backoff(true);
    while (word_of(first) != (numbers_[0] << 2 | static_cast<std::uint64_t>(ShrinkStage::kOffers))) {
      TUTTI_TRY(check(since, first));
      backoff.wait();
    }
    return child_.initialise({control_.shrink_place(first).id});
  }

  /// Until staying_[i] is here with the same list.
  Status wait_for(std::size_t i, Clock::time_point since) {
    const int rank = staying_[i];
    executor::Backoff backoff(true);
    std::optional<Disagreement> disagreement;
    for (;;) {
      const std::uint64_t word = word_of(rank);
      const bool here = stage_of(word) == ShrinkStage::kHere || stage_of(word) == ShrinkStage::kOffers;
      if (here && number_of(word) > parent_.members().shrinks_seen[rank]) {
        const List theirs = list_of(rank);
        // What was read belongs to the word only if that is still there.
        if (word_of(rank) == word) {
          if (theirs == list_) {
            numbers_[i] = number_of(word);
            return {};
          }
          if (excludes(theirs, parent_.rank()))
            disagreement.reset();
          else if (!disagreement || disagreement->number != number_of(word))
            disagreement = {number_of(word), theirs, Clock::now()};
        }
      }
      if (disagreement && (Clock::now() - disagreement->since > kAgreementGrace || objected(rank, *disagreement)))
        return differs(rank, disagreement->number, disagreement->list);
      TUTTI_TRY(check(since, rank));
      backoff.wait();
    }
  }

  /// The rank has told its caller that the lists differ.
  bool objected(int rank, const Disagreement& disagreement) const {
    return executor::load_acquire(&control_.shrink_place(rank).objected) == disagreement.number;
  }

  List list_of(int rank) const {
    List list(list_.size());
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = executor::load_acquire(control_.shrink_list(rank) + i);
    return list;
  }

  std::string text_of(const List& list) const {
    std::vector<int> ranks;
    for (int r = 0; r < parent_.ranks(); ++r) {
      if (excludes(list, r)) ranks.push_back(r);
    }
    return fmt::format("{}", fmt::join(ranks, ", "));
  }

  static std::uint64_t key_of(int rank, std::uint64_t number) {
    return static_cast<std::uint64_t>(rank) << 32 | (number & 0xffffffff);
  }

  /// That shrink of theirs counts no more, for either side.
  Error differs(int rank, std::uint64_t number, const List& theirs) const {
    std::uint64_t& seen = parent_.members().shrinks_seen[rank];
    seen = std::max(seen, number);
    executor::store_release(&own().objected_to, key_of(rank, number));
    executor::store_release(&own().objected, number_);
    return error(Code::kInvalidUsage,
                 fmt::format("rank {} leaves out {} and rank {} leaves out {}; pass the same ranks on "
                             "every rank that stays",
                             parent_.rank(), text_of(list_), rank, text_of(theirs)));
  }

  Status check(Clock::time_point since, int waiting_for) const {
    if (auto why = obstacle()) return *why;
    const double limit = control_.settings().timeout_s;
    if (limit <= 0 || std::chrono::duration<double>(Clock::now() - since).count() <= limit) return {};
    return error(Code::kRemote, fmt::format("rank {} waited {} s for rank {} (TUTTI_TIMEOUT_S), which has not made the "
                                            "call",
                                            parent_.rank(), limit, waiting_for));
  }

  /// Why the new communicator cannot come to be any more.
  std::optional<Error> obstacle() const {
    if (child_.is_cancelled() || parent_.is_cancelled())
      return error(Code::kInvalidUsage, "ncclCommShrink was ended by ncclCommAbort");
    for (std::size_t i = 0; i < staying_.size(); ++i) {
      const int rank = staying_[i];
      if (rank == parent_.rank()) continue;
      // In this order: whoever leaves or ends with the new communicator made has said so before.
      const PeerLife life = parent_.life_of(rank);
      const std::uint64_t word = word_of(rank);
      const ShrinkPlace& place = control_.shrink_place(rank);
      if (executor::load_acquire(&place.objected_to) == key_of(parent_.rank(), number_))
        return differs(rank, executor::load_acquire(&place.objected), list_of(rank));
      if (numbers_[i] != 0 && executor::load_acquire(&place.gave_up) == numbers_[i]) {
        // Its reason may be one that this rank has not noticed yet.
        const std::uint64_t gone = executor::load_acquire(&place.gone);
        if (gone >> 32 == (numbers_[i] & 0xffffffff))
          return is_gone(static_cast<int>((gone & 0xffffffff) / kPeerLives),
                         static_cast<PeerLife>((gone & 0xffffffff) % kPeerLives));
        return error(Code::kRemote, fmt::format("rank {} gave up; its own error says why", rank));
      }
      if (numbers_[i] != 0 && (number_of(word) != numbers_[i] || stage_of(word) == ShrinkStage::kOver)) continue;
      if (life != PeerLife::kThere) return is_gone(rank, life);
    }
    return std::nullopt;
  }

  Error is_gone(int rank, PeerLife life) const {
    executor::store_release(&own().gone, number_ << 32 | (kPeerLives * static_cast<std::uint64_t>(rank) +
                                                          static_cast<std::uint64_t>(life)));
    const char* what = life == PeerLife::kLeft        ? "has left the communicator"
                       : life == PeerLife::kSilent    ? "does not answer"
                       : life == PeerLife::kUnreached ? "cannot be reached"
                                                      : "has ended";
    return error(Code::kRemote,
                 fmt::format("rank {} {}, and is not among the ranks to leave out ({})", rank, what, text_of(list_)));
  }

  Communicator& parent_;
  Control& control_;
  Communicator& child_;
  List list_;                           ///< the ranks left out, a bit each
  std::vector<int> staying_;            ///< the others, in order
  std::vector<std::uint64_t> numbers_;  ///< of their shrinks that this one is; 0: not here yet
  std::uint64_t number_ = 0;            ///< of this rank's
};

/// After the calls that this rank has made before.
Status run_shrink(Communicator& parent, ParentTurn& turn, const std::vector<int>& excluded, bool abort,
                  Communicator& child) {
  if (abort && !parent.failed()) {
    parent.fail(Code::kRemote, parent.rank(),
                fmt::format("rank {} called ncclCommShrink with NCCL_SHRINK_ABORT", parent.rank()));
  }
  executor::Backoff backoff(true);
  while (!turn.has_come()) {
    // Calls that wait for a rank in vain would keep an abort waiting.
    if (child.is_cancelled() && !parent.failed()) {
      parent.fail(Code::kRemote, parent.rank(),
                  fmt::format("rank {} aborted the communicator that ncclCommShrink was making", parent.rank()));
    }
    backoff.wait();
  }
  Status status = Shrink(parent, excluded, child).run();
  turn.end();
  return status;
}

}  // namespace

Status shrink(Communicator& parent, std::span<const int> excluded, bool abort, Handle* child, const Options* options) {
  *child = nullptr;
  if (!parent.is_initialised())
    return error(Code::kInvalidUsage, "ncclCommShrink of a communicator that is still initialising or has failed to");
  if (parent.is_finalized()) return finalized();
  auto communicator = std::make_shared<Communicator>(child_options(parent, options));
  *child = add(communicator);
  if (!*child) return error(Code::kSystem, "too many communicators are open (16384); destroy some");
  Communicator* raw = communicator.get();
  const auto turn = std::make_shared<ParentTurn>(parent);
  return schedule(
      std::move(communicator), child,
      [keep = parent.shared_from_this(), turn, raw, abort, list = std::vector<int>(excluded.begin(), excluded.end())] {
        Status status = run_shrink(*keep, *turn, list, abort, *raw);
        if (!status.ok()) raw->fail_initialisation(status.error());
      },
      turn);
}

}  // namespace tutti::comm
