// How announce lines cross between hosts. Of two hosts one rank each carries for all: the lines of a call that all ranks wait for go as
// one message once all of the host's are there, and the ranks of the other host take them from the copy of the one that gets them. Between
// which hosts, and with which other hosts' lines, line_routes.h says.
// Among few ranks, lines of one-way calls, which a rank may be through with before others have come to it, go from rank to rank. So does the
// line of a rank that has waited for long: whatever keeps the carriers away, others learn that this rank is there. Among many, where that
// would connect all with all, there are no one-way calls; a carrier that has waited for long sends what it has, so that who waits for a line
// knows whether its rank or one on its way is not there.
#include "base/assert.h"
#include "comm/bridge.h"
#include "comm/call.h"
#include "executor/host_machine.h"

#include <cstring>
#include <span>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Who has waited for so long sends its line by itself.
constexpr auto kPatient = std::chrono::microseconds(1000);
constexpr std::uint32_t kLooksPerClock = 64;

/// What lies in and beside the announce line of a call.
struct Extent {
  std::size_t in_line = 0;
  std::size_t beside = 0;
};

CallArgs args_of(const Signature& signature) {
  CallArgs args;
  args.collective = signature.collective;
  args.count = signature.count;
  args.type = signature.type;
  args.op = signature.op;
  args.root = signature.root;
  args.scaled = signature.scaled != 0;
  args.shot = signature.shot;
  return args;
}

Carriage carriage_of(const Membership& members, const Signature& signature) {
  return signature.schedule == 0 ? carriage_of(members, args_of(signature)) : Carriage::kNone;
}

/// Whether `reader` needs what the line of `rank` has in it, and beside it.
bool reads_one_way(const Membership& members, const Signature& signature, int rank, int reader) {
  const auto number = [](int of) { return static_cast<std::uint32_t>(of); };
  const auto ranks = number(members.control.ranks());
  return protocol::lines_read_one_way(signature.collective, number(reader), number(signature.root), ranks)
      .has(number(rank));
}

/// Of the line of `rank`, which goes to `reader`.
Extent extent_of(const Membership& members, const Signature& signature, const protocol::AnnounceLine& line, int rank,
                 int reader) {
  const std::size_t input_bytes = shape_of(args_of(signature), members.control.ranks(), rank).input_bytes;
  const Carriage carriage = carriage_of(members, signature);
  if (signature.one_way != 0 && !reads_one_way(members, signature, rank, reader)) return {0, 0};
  if (carriage == Carriage::kInLines) return {input_bytes, 0};
  if (needs_no_references(carriage)) return {0, 0};
  if (signature.one_way != 0) return {0, input_bytes};
  const bool carried = carriage == Carriage::kBesideLines && (line.buffers.flags & protocol::kCarried) != 0;
  return {sizeof(protocol::BufferReferences), carried ? input_bytes : 0};
}

std::uint32_t number_of(const protocol::AnnounceLine& line) {
  return protocol::sequence_of(executor::load_acquire(&line.word));
}

}  // namespace

Bridge::LineWays Bridge::ways_by(LineRoutes routes) {
  TUTTI_ASSERT(announced_ == 0);
  const int host = host_of_[rank_];
  const auto carrier_with = [&](int other_host) -> Remote* {
    if (other_host == LineRoutes::kNone || carrier(hosts_, host, other_host) != rank_) return nullptr;
    return &*std::ranges::find(remotes_, carrier(hosts_, other_host, host), &Remote::peer);
  };
  LineWays ways{routes, {}, {}};
  ways.rounds.resize(static_cast<std::size_t>(routes.rounds()));
  for (int round = 0; round < routes.rounds(); ++round) {
    Round& made = ways.rounds[static_cast<std::size_t>(round)];
    const int to = routes.to(host, round);
    made.to = carrier_with(to);
    made.from = carrier_with(routes.from(host, round));
    for (int rank = 0; rank < control_.ranks(); ++rank) {
      const int of = host_of_[rank];
      if (to != LineRoutes::kNone && of != to && routes.round_of(to, of) == round) made.sent.push_back(rank);
      if (of != host && routes.round_of(host, of) == round) made.brought.push_back(rank);
    }
    made.early.resize(made.sent.size());
    made.phases.resize(made.sent.size(), RankPhase::kAbsent);
    for (const int rank : made.brought)
      if (const int takes = taker_of(rank, routes); takes != rank_) ways.sources.push_back({rank, *copies_[takes]});
  }
  return ways;
}

/// Of this rank's call of that number.
Bridge::LineWays& Bridge::ways_of(std::uint32_t number) {
  if (!rail_ways_) return usual_;
  return goes_by_rails(rank_, number) ? *rail_ways_ : usual_;
}

bool Bridge::goes_by_rails(int rank, std::uint32_t number) const {
  return carriage_of(*members_, control_.signatures().of(rank, number)) == Carriage::kByRails;
}

/// In whose copy the lines of a rank of another host arrive.
int Bridge::taker_of(int rank, const LineRoutes& routes) const {
  const int host = host_of_[rank_];
  return carrier(hosts_, host, routes.from(host, routes.round_of(host, host_of_[rank])));
}

bool Bridge::has_line(int rank, std::uint32_t number) const {
  return number_of(members_->announcer.board().line(static_cast<std::uint32_t>(rank), number)) == number;
}

bool Bridge::has_lines(const std::vector<int>& ranks, std::uint32_t number) const {
  return std::ranges::all_of(ranks, [&](int rank) { return has_line(rank, number); });
}

bool Bridge::has_line(const Control& copy, int rank, std::uint32_t number) {
  return number_of(copy.board().line(static_cast<std::uint32_t>(rank), number)) == number;
}

bool Bridge::crosses_once(int rank, std::uint32_t number) const {
  return control_.signatures().of(rank, number).one_way == 0;
}

/// What belongs to a line, before it.
void Bridge::queue_part(Remote& remote, const void* payload, std::size_t bytes, std::uint64_t mark) {
  Record record;
  record.bytes = static_cast<std::uint32_t>(bytes);
  record.offset = offset_of(payload);
  record.value = mark;
  remote.link->queue(record, static_cast<const std::byte*>(payload));
}

/// By the lines that are here.
bool Bridge::knows_that_calls_differ(std::uint32_t number) const {
  const protocol::AnnounceBoard& board = members_->announcer.board();
  const auto word_of = [&](int rank) {
    return executor::load_acquire(&board.line(static_cast<std::uint32_t>(rank), number).word);
  };
  const std::uint64_t own = word_of(rank_);
  for (int rank = 0; rank < control_.ranks(); ++rank) {
    const std::uint64_t word = word_of(rank);
    if (protocol::sequence_of(word) == number && word != own) return true;
  }
  return false;
}

/// What goes before a round's lines: the inputs of those whose lines go, or a sum. False: it is not all here yet, or not added up. Where calls
/// differ, as all will find by their lines, nobody needs it.
bool Bridge::carry_inputs(Round& round, std::uint32_t number) {
  const Signature& signature = control_.signatures().of(rank_, number);
  const Carriage carriage = carriage_of(*members_, signature);
  if (!goes_from_buffers(carriage) || knows_that_calls_differ(number)) return true;
  const bool is_sum = carriage == Carriage::kAtHub && rank_ == hub();
  const LentInput& lent = carriage == Carriage::kAddedUp ? round.lent : usual_.rounds.front().lent;
  Record record;
  record.bytes = static_cast<std::uint32_t>(shape_of(args_of(signature), control_.ranks(), rank_).input_bytes);
  record.offset = Record::kReceiversPlace;
  const auto source_of = [&](int rank) -> const std::byte* {
    if (rank != rank_) return far_inputs_.of(number, static_cast<std::uint32_t>(rank), record.bytes);
    return lent.number == number ? lent.bytes : nullptr;
  };
  const std::span<const int> whose = carriage == Carriage::kFromBuffers ? std::span(round.sent) : std::span(&rank_, 1);
  if (std::ranges::any_of(whose, [&](int rank) { return source_of(rank) == nullptr; })) return false;
  for (const int rank : whose) {
    const auto part = static_cast<std::uint32_t>(rank);
    record.value = protocol::announce_word(number, is_sum ? FarInputs::kSumOfAll : part);
    round.to->link->queue(record, source_of(rank));
  }
  return true;
}

void Bridge::queue_announcement(Remote& remote, int rank, std::uint32_t number) {
  const protocol::AnnounceBoard& board = members_->announcer.board();
  const auto writer = static_cast<std::uint32_t>(rank);
  const protocol::AnnounceLine& line = board.line(writer, number);
  const Signature& signature = control_.signatures().of(rank, number);
  const Extent extent = extent_of(*members_, signature, line, rank, remote.peer);
  const std::uint64_t mark = protocol::announce_word(number, writer);
  queue_part(remote, &signature, sizeof(signature), mark);
  if (extent.beside != 0) {
    queue_part(remote, board.carried(writer, number), extent.beside, mark);
  }
  queue_line(remote, line, extent.in_line);
}

void Bridge::collect_announcements() {
  for (std::uint32_t next = announced_ + 1; has_line(rank_, next); ++next) {
    announced_ = next;
    looks_ = 0;
    round_ = 0;
    part_source_ = -1;  // until the call says so
    const bool once = crosses_once(rank_, next);
    LineWays& ways = ways_of(next);
    if (&ways != ways_) begin_at(ways, next);
    ways_ = &ways;
    taken_ = once ? 0 : ways_->sources.size();
    for (Remote& remote : remotes_) {
      if (!once || !remote.link->is_stream()) queue_announcement(remote, rank_, next);
    }
  }
  if (++looks_ % kLooksPerClock == 0) lose_patience();
}

/// Its lines before went by other ways, and are over.
void Bridge::begin_at(LineWays& ways, std::uint32_t number) {
  for (Round& round : ways.rounds) {
    if (round.carried + 1 == number || round.carried == number) continue;
    round.carried = number - 1;
    round.early.assign(round.sent.size(), false);
  }
}

void Bridge::carry_lines(LineWays& ways) {
  if (&ways != ways_) {
    if (!knows_that_calls_differ(announced_)) return;
    begin_at(ways, announced_);  // others may wait for lines by these
  }
  for (Round& round : ways.rounds)
    if (round.to != nullptr) carry_lines(round);
}

/// A round's lines, call by call, as soon as all are there. Those that keep the others waiting for long do not keep these back.
void Bridge::carry_lines(Round& round) {
  for (; round.carried != announced_; ++round.carried) {
    const std::uint32_t next = round.carried + 1;
    if (!crosses_once(rank_, next)) continue;
    const bool complete = has_lines(round.sent, next);
    if (!complete && (has_one_way_calls() || impatient_ != announced_)) return;
    // Numbers go round: 0 is a call's too, and none's where nothing is held or was sent again.
    const bool held = round.to->holds_lines_of == next && next != 0;
    if (complete && held && !knows_that_calls_differ(next)) return;
    if (complete && !carry_inputs(round, next)) return;
    for (std::size_t place = 0; place < round.sent.size(); ++place) {
      const int rank = round.sent[place];
      if (round.early[place] || !has_line(rank, next)) continue;
      round.early[place] = true;
      const bool goes_by_itself = (rank == rank_ && resent_ == next && next != 0) || !crosses_once(rank, next);
      if (!goes_by_itself) queue_announcement(*round.to, rank, next);
    }
    if (!complete) return;
    round.early.assign(round.sent.size(), false);
  }
}

/// Of the rounds that bring lines of this rank's call: those of one come before those of a later one go on.
bool Bridge::receive_lines() {
  bool moved = false;
  for (std::size_t place = round_; place < ways_->rounds.size(); ++place) {
    const Round& round = ways_->rounds[place];
    if (round.from == nullptr || has_lines(round.brought, announced_)) {
      if (place == round_) ++round_;
      continue;
    }
    moved |= receive_from(*round.from);
    if (here_.size() == 1) return moved;  // others of this host wait for what any round brings
  }
  return moved;
}

/// Others' lines of this rank's last call, from the copies of those who get them. Nobody needs one before those of earlier rounds, unless they
/// keep this rank waiting for long: then it passes on any that is there.
void Bridge::take_lines() {
  for (std::size_t place = taken_; place < ways_->sources.size(); ++place) {
    const bool is_here = take_line(ways_->sources[place]);
    if (is_here && place == taken_) ++taken_;
    if (!is_here && impatient_ != announced_) break;
  }
  if (rail_ways_ && waits_for_carried_lines() && knows_that_calls_differ(announced_)) take_lines_from_any();
}

/// Where calls differ, who brings lines by ways of its own call may be through with it, and hear no more of it: it has them all then.
void Bridge::take_lines_from_any() {
  for (int rank = 0; rank < control_.ranks(); ++rank) {
    if (is_here(rank)) continue;
    for (const int other : here_)
      if (other != rank_ && !has_line(rank, announced_)) take_line({rank, *copies_[other]});
  }
}

bool Bridge::take_line(const Elsewhere& from) {
  if (has_line(from.rank, announced_)) return true;
  const auto rank = static_cast<std::uint32_t>(from.rank);
  const protocol::AnnounceBoard theirs = from.copy.board();
  const protocol::AnnounceLine& line = theirs.line(rank, announced_);
  const std::uint64_t word = executor::load_acquire(&line.word);
  if (protocol::sequence_of(word) != announced_) return false;
  const Signature& signature = from.copy.signatures().of(from.rank, announced_);
  if (signature.one_way != 0) return false;  // it comes by itself, with what this rank reads of it
  const Extent extent = extent_of(*members_, signature, line, from.rank, rank_);
  const protocol::AnnounceBoard& mine = members_->announcer.board();
  control_.signatures().of(from.rank, announced_) = signature;
  if (extent.beside != 0) std::memcpy(mine.carried(rank, announced_), theirs.carried(rank, announced_), extent.beside);
  protocol::AnnounceLine& to = mine.line(rank, announced_);
  std::memcpy(to.payload, line.payload, extent.in_line);
  executor::store_release(&to.word, word);
  return true;
}

bool Bridge::waits_for_carried_lines() const {
  if (members_ == nullptr || announced_ == 0) return false;
  const protocol::Announcer& announcer = members_->announcer;
  return announcer.sequence() == announced_ && announcer.unseen() < announcer.reads().end &&
         crosses_once(rank_, announced_);
}

/// Where some rank has not come to the call for long.
void Bridge::lose_patience() {
  if (announced_ == 0 || impatient_ == announced_) return;
  if (looks_ == kLooksPerClock) announced_at_ = Clock::now();
  if (Clock::now() - announced_at_ < kPatient) return;
  impatient_ = announced_;
  if (has_one_way_calls()) resend_line();
}

/// Where all have come the carriers are in the call, and nothing is needed.
void Bridge::resend_line() {
  if (taken_ == ways_->sources.size()) taken_ = 0;  // of a one-way call, where others' calls may be others
  take_lines();
  bool complete = true;
  for (int rank = 0; rank < control_.ranks(); ++rank) complete = complete && has_line(rank, announced_);
  if (complete || !crosses_once(rank_, announced_)) return;
  resent_ = announced_;
  for (Remote& remote : remotes_) {
    const bool has_it = std::ranges::any_of(
        ways_->rounds, [&](const Round& round) { return round.to == &remote && round.carried == announced_; });
    if (remote.link->is_stream() && !has_it) queue_announcement(remote, rank_, announced_);
  }
}

bool Bridge::is_stale(const Record& record) const {
  if (record.offset == Record::kReceiversPlace) return false;
  const protocol::AnnounceBoard& board = members_->announcer.board();
  const std::uint64_t lines = offset_of(board.lines);
  std::uint64_t rank = record.value & 0xffffffff;
  if (record.word != Record::kNoWord) {
    if (record.word < lines) return false;
    const std::uint64_t place = (record.word - lines) / sizeof(protocol::AnnounceLine);
    if (place >= std::uint64_t{protocol::kAnnounceDepth} * board.ranks) return false;
    rank = place % board.ranks;
  }
  const std::uint32_t number = protocol::sequence_of(record.value);
  if (number == 0 || rank >= board.ranks) return false;
  const std::uint32_t found = number_of(board.line(static_cast<std::uint32_t>(rank), number));
  const bool is_signature = record.word == Record::kNoWord &&
                            record.offset == offset_of(&control_.signatures().of(static_cast<int>(rank), number));
  return is_line_stale(number, found, announced_, is_signature);
}

}  // namespace tutti::comm
