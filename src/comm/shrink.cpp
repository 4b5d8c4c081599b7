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
//
// Whoever finds that lists differ says so to the ranks that wait for it, and these pass it on: each would wait for one that has given up. Those
// that come later with its list hear it as well.
#include "base/log.h"
#include "comm/group_jobs.h"
#include "comm/shrink_words.h"
#include "executor/backoff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
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
    TUTTI_TRY(begin());
    Status status;
    try {
      status = meet_and_make();
    } catch (...) {
      break_off();
      throw;
    }
    if (!status.ok()) executor::store_release(&own().gave_up, number_);
    say(ShrinkStage::kOver);
    if (objected(parent_.rank(), number_)) await_ends();
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

  /// What a rank has told its caller: that its list and that of another rank's shrink differ.
  struct Objection {
    int to = 0;
    std::uint64_t number = 0;
    List list;
    List theirs;
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

  /// For want of memory, it may be: the others are told with what there is.
  void break_off() noexcept {
    child_.set_outlook(nullptr);
    executor::store_release(&own().gave_up, number_);
    const bool leads = stage_of(own().word) == ShrinkStage::kOffers;
    try {
      say(ShrinkStage::kOver);
      if (leads) end_bootstrap(own().id);
    } catch (const std::exception&) {
      // Over hosts they find that this rank's connections end, or time is over.
    }
  }

  Status begin() {
    number_ = number_of(own().word) + 1;
    // Not said to anybody: nobody is to wait for this call.
    if (auto missed = missed_objection()) return *missed;
    numbers_.resize(staying_.size());
    disagreements_.resize(staying_.size());
    for (const int rank : staying_) words_before_.push_back(word_of(rank));
    write_list(ShrinkList::kOwn, list_);
    say(ShrinkStage::kHere);
    return {};
  }

  Status meet_and_make() {
    const auto since = Clock::now();
    TUTTI_TRY(meet(since));
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

  /// Until all that stay are here with the same list.
  Status meet(Clock::time_point since) {
    executor::Backoff backoff(true);
    for (;;) {
      for (std::size_t i = 0; i < staying_.size(); ++i) TUTTI_TRY(numbers_[i] == 0 ? look_for(i) : look_again(i));
      const auto missing = std::ranges::find(numbers_, 0u);
      if (missing == numbers_.end()) break;
      TUTTI_TRY(check(since, staying_[missing - numbers_.begin()]));
      backoff.wait();
    }
    met_ = true;
    return {};
  }

  Status look_for(std::size_t i) {
    const int rank = staying_[i];
    const std::uint64_t word = word_of(rank);
    if (auto told = falling_out(i, word)) return pass_on(rank, number_of(word), *told);
    if (is_news(rank, word) && stage_of(word) != ShrinkStage::kOver) {
      const List theirs = list_of(rank);
      // What was read belongs to the word only if that is still there.
      if (word_of(rank) == word) note_list(i, word, theirs);
    }
    const std::optional<Disagreement>& found = disagreements_[i];
    if (found && (Clock::now() - found->since > kAgreementGrace || objected(rank, found->number)))
      return differs(rank, found->number, found->list);
    return {};
  }

  /// It was here with the same list. A shrink that it has given up for what this rank was told before was not meant to meet this one.
  Status look_again(std::size_t i) {
    const int rank = staying_[i];
    if (auto told = objection_of(rank, numbers_[i]); told && !is_known(*told)) return pass_on(rank, numbers_[i], *told);
    if (!objected(rank, numbers_[i]) && number_of(word_of(rank)) == numbers_[i]) return {};
    parent_.members().shrinks_seen[rank] = numbers_[i];
    numbers_[i] = 0;
    return {};
  }

  void note_list(std::size_t i, std::uint64_t word, const List& theirs) {
    std::optional<Disagreement>& found = disagreements_[i];
    if (theirs == list_) {
      numbers_[i] = number_of(word);
      found.reset();
    } else if (excludes(theirs, parent_.rank())) {
      found.reset();
    } else if (!found || found->number != number_of(word)) {
      found = {number_of(word), theirs, Clock::now()};
    }
  }

  bool is_news(int rank, std::uint64_t word) const {
    return stage_of(word) != ShrinkStage::kNone && number_of(word) > parent_.members().shrinks_seen[rank];
  }

  /// What the rank has told its caller of that shrink, if that lists differ.
  std::optional<Objection> objection_of(int rank, std::uint64_t number) const {
    if (!objected(rank, number)) return std::nullopt;
    const std::uint64_t key = executor::load_acquire(&control_.shrink_place(rank).objected_to);
    const Objection told{rank_in(key), number_in(key), list_of(rank, ShrinkList::kObjector),
                         list_of(rank, ShrinkList::kObjectedTo)};
    return objected(rank, number) ? std::optional(told) : std::nullopt;
  }

  /// This rank's caller has been told before, or the shrink that it is about counts no more.
  bool is_known(const Objection& told) const {
    return told.number <= (told.to == parent_.rank() ? number_ - 1 : parent_.members().shrinks_seen[told.to]);
  }

  /// Since this rank's own shrink has begun, the last one of staying_[i] came to nothing, because lists differed.
  std::optional<Objection> falling_out(std::size_t i, std::uint64_t word) const {
    if (word == words_before_[i] || !is_news(staying_[i], word) || stage_of(word) != ShrinkStage::kOver)
      return std::nullopt;
    auto told = objection_of(staying_[i], number_of(word));
    return told && !is_known(*told) ? told : std::nullopt;
  }

  /// Of a call that others have made with this list, and in which they would wait for this rank.
  std::optional<Error> missed_objection() const {
    for (const int rank : staying_) {
      const std::uint64_t word = word_of(rank);
      if (!is_news(rank, word) || stage_of(word) != ShrinkStage::kOver) continue;
      const auto told = objection_of(rank, number_of(word));
      if (told && !is_known(*told) && told->list == list_) return as_told(rank, number_of(word), *told);
    }
    return std::nullopt;
  }

  /// What others hear of this rank has to be of lists that differ from its own.
  Error pass_on(int rank, std::uint64_t number, const Objection& told) const {
    if (told.list != list_) {
      ignore(told.to, told.number);
      return differs(rank, number, told.list);
    }
    object(told.to, told.number, told.theirs);
    return as_told(rank, number, told);
  }

  Error as_told(int rank, std::uint64_t number, const Objection& told) const {
    ignore(rank, number);
    ignore(told.to, told.number);
    return lists_differ(rank, told.list, told.to, told.theirs);
  }

  /// That shrink of theirs counts no more, for either side.
  Error differs(int rank, std::uint64_t number, const List& theirs) const {
    ignore(rank, number);
    object(rank, number, theirs);
    return lists_differ(parent_.rank(), list_, rank, theirs);
  }

  /// Until those that are here have heard of it, too: a next shrink of this rank is not to meet those of theirs that are about to end.
  void await_ends() const {
    std::vector<std::pair<int, std::uint64_t>> here;
    for (const int rank : staying_) {
      const std::uint64_t word = word_of(rank);
      const bool is_over = stage_of(word) == ShrinkStage::kNone || stage_of(word) == ShrinkStage::kOver;
      if (!is_over && !excludes(list_of(rank), parent_.rank())) here.emplace_back(rank, word);
    }
    const auto since = Clock::now();
    const auto is_there = [&](const auto& one) {
      return word_of(one.first) == one.second && parent_.life_of(one.first) == PeerLife::kThere;
    };
    executor::Backoff backoff(true);
    while (Clock::now() - since < kAgreementGrace && std::ranges::any_of(here, is_there)) backoff.wait();
  }

  void ignore(int rank, std::uint64_t number) const {
    std::uint64_t& seen = parent_.members().shrinks_seen[rank];
    seen = std::max(seen, number);
  }

  /// Whoever reads it looks at `objected` before and afterwards.
  void object(int to, std::uint64_t number, const List& theirs) const {
    executor::store_release(&own().objected, 0);
    write_list(ShrinkList::kObjector, list_);
    write_list(ShrinkList::kObjectedTo, theirs);
    executor::store_release(&own().objected_to, key_of(to, number));
    executor::store_release(&own().objected, number_);
  }

  void write_list(ShrinkList which, const List& list) const {
    for (std::size_t i = 0; i < list.size(); ++i) {
      executor::store_release(control_.shrink_list(parent_.rank(), which) + i, list[i]);
    }
  }

  /// The rank has told its caller that the lists differ.
  bool objected(int rank, std::uint64_t number) const {
    return executor::load_acquire(&control_.shrink_place(rank).objected) == number;
  }

  List list_of(int rank, ShrinkList which = ShrinkList::kOwn) const {
    List list(list_.size());
    for (std::size_t i = 0; i < list.size(); ++i)
      list[i] = executor::load_acquire(control_.shrink_list(rank, which) + i);
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
  static int rank_in(std::uint64_t key) { return static_cast<int>(key >> 32); }
  static std::uint32_t number_in(std::uint64_t key) { return static_cast<std::uint32_t>(key); }

  Error lists_differ(int one, const List& ones, int other, const List& others) const {
    return error(
        Code::kInvalidUsage,
        fmt::format("rank {} leaves out {} and rank {} leaves out {}; pass the same ranks on every rank that stays",
                    one, text_of(ones), other, text_of(others)));
  }

  Status check(Clock::time_point since, int waiting_for) const {
    if (auto why = obstacle()) return *why;
    const double limit = control_.settings().timeout_s;
    if (limit <= 0 || std::chrono::duration<double>(Clock::now() - since).count() <= limit) return {};
    const std::uint64_t word = word_of(waiting_for);
    const std::string last = is_news(waiting_for, word)
                                 ? fmt::format("; its last ncclCommShrink leaves out {}", text_of(list_of(waiting_for)))
                                 : "";
    return error(Code::kRemote, fmt::format("rank {} waited {} s for rank {} (TUTTI_TIMEOUT_S), which has not made the "
                                            "call, or not with the same ranks to leave out ({}){}",
                                            parent_.rank(), limit, waiting_for, text_of(list_), last));
  }

  /// Why the new communicator cannot come to be any more.
  std::optional<Error> obstacle() const {
    if (child_.is_cancelled()) return child_.why_stopped();
    if (parent_.is_cancelled()) return error(Code::kInvalidUsage, "ncclCommShrink was ended by ncclCommAbort");
    for (std::size_t i = 0; i < staying_.size(); ++i) {
      const int rank = staying_[i];
      if (rank == parent_.rank()) continue;
      // In this order: whoever leaves or ends with the new communicator made has said so before.
      const PeerLife life = parent_.life_of(rank);
      const std::uint64_t word = word_of(rank);
      const ShrinkPlace& place = control_.shrink_place(rank);
      if (executor::load_acquire(&place.objected_to) == key_of(parent_.rank(), number_)) {
        const std::uint64_t theirs = executor::load_acquire(&place.objected);
        if (const auto told = objection_of(rank, theirs)) return differs(rank, theirs, told->list);
      }
      if (numbers_[i] != 0 && executor::load_acquire(&place.gave_up) == numbers_[i]) {
        if (auto told = objection_of(rank, numbers_[i])) {
          if (!met_) continue;  // look_again() finds it
          return pass_on(rank, numbers_[i], *told);
        }
        // Its reason may be one that this rank has not noticed yet.
        const std::uint64_t gone = executor::load_acquire(&place.gone);
        if (gone >> 32 == (numbers_[i] & 0xffffffff))
          return is_gone(static_cast<int>((gone & 0xffffffff) / kPeerLives),
                         static_cast<PeerLife>((gone & 0xffffffff) % kPeerLives));
        return error(Code::kRemote, fmt::format("rank {} gave up; its own error says why", rank));
      }
      if (numbers_[i] != 0 && (number_of(word) != numbers_[i] || stage_of(word) == ShrinkStage::kOver)) continue;
      if (auto told = numbers_[i] == 0 ? falling_out(i, word) : std::nullopt)
        return pass_on(rank, number_of(word), *told);
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
  List list_;                                ///< the ranks left out, a bit each
  std::vector<int> staying_;                 ///< the others, in order
  std::vector<std::uint64_t> numbers_;       ///< of their shrinks that this one is; 0: not here yet
  std::vector<std::uint64_t> words_before_;  ///< what they had said before this one began
  std::vector<std::optional<Disagreement>> disagreements_;
  std::uint64_t number_ = 0;  ///< of this rank's
  bool met_ = false;          ///< all that stay are here
};

/// Meanwhile a revocation of the parent does not wait for its turns: this one waits for other ranks.
class HasTurn {
 public:
  explicit HasTurn(Communicator& parent) : parent_(parent) { parent_.set_shrinking(true); }
  ~HasTurn() { parent_.set_shrinking(false); }
  HasTurn(const HasTurn&) = delete;
  HasTurn& operator=(const HasTurn&) = delete;

 private:
  Communicator& parent_;
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
      parent.fail(Code::kRemote, parent.rank(), why_ended(parent, child, "ncclCommShrink"));
    }
    backoff.wait();
  }
  Status status;
  {
    const HasTurn has_turn(parent);
    status = Shrink(parent, excluded, child).run();
  }
  turn.end();
  return status;
}

}  // namespace

Status shrink(Communicator& parent, std::span<const int> excluded, bool abort, Handle* child, const Options* options) {
  *child = nullptr;
  if (!parent.is_initialised()) return parent.not_ready();
  if (parent.is_finalized()) return finalized();
  auto communicator = std::make_shared<Communicator>(child_options(parent, options));
  Communicator* raw = communicator.get();
  const auto turn = std::make_shared<ParentTurn>(parent);
  const auto work = [keep = parent.shared_from_this(), turn, raw, abort,
                     list = std::vector<int>(excluded.begin(), excluded.end())] {
    Status status = run_shrink(*keep, *turn, list, abort, *raw);
    if (!status.ok()) raw->fail_initialisation(status.error());
    turn->finish();
  };
  return schedule({std::move(communicator), work, parent.options().blocking, parent.shared_from_this(), turn}, child);
}

}  // namespace tutti::comm
