#include "comm/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

/// Sends up to here are eager even where the receiver could load the input itself: two short copies cost less than a word back.
constexpr std::size_t kAlwaysCarriedBytes = 2 << 10;

std::size_t bytes_of(const Signature& signature) { return signature.count * size_of(signature.type); }

}  // namespace

PointToPointCall::PointToPointCall(Communicator& communicator, int peer, Direction direction)
    : Call(communicator),
      direction_(direction),
      theirs_(direction == Direction::kSend ? Direction::kReceive : Direction::kSend),
      pair_(direction == Direction::kSend ? communicator.members().control.pair(communicator.rank(), peer)
                                          : communicator.members().control.pair(peer, communicator.rank())),
      signatures_(direction == Direction::kSend
                      ? communicator.members().control.pair_signatures(communicator.rank(), peer)
                      : communicator.members().control.pair_signatures(peer, communicator.rank())),
      peers_phase_(communicator.members().control.phase(peer)),
      goes_by_mpi_(communicator.members().mpi_sends.are_on && !communicator.members().bridge->is_here(peer)) {
  peers_.resize(communicator.ranks());
}

std::string PointToPointCall::name() const {
  return fmt::format("{} {} rank {} #{}", name_of(args_.collective), direction_ == Direction::kSend ? "to" : "from",
                     args_.root, sequence_);
}

std::string PointToPointCall::name_for_all() const { return fmt::format("rank {}'s {}", comm_.rank(), name()); }

/// What a call has in common with the next one of the same arguments but for the buffers.
void PointToPointCall::prepare(const CallArgs& args) {
  const planner::PlanCache& plans = comm_.members().plans;
  shape_ = shape_of(args, comm_.ranks(), comm_.rank());
  // Both ends give the same signature: the sender's view, no root.
  signature_ = Signature{args.count, 0, 0, Collective::kSend, args.type, ReduceOp::kSum, 0, 0, {}};
  signature_.tuning = plans.tuning_fingerprint();
  signature_.whole_count = args.whole_count;
  fingerprint_ = signature_.fingerprint();
  eager_ = is_eager(signature_);
  may_carry_ = may_carry(signature_);
  // Over hosts lines are passed on one after the other.
  announces_late_ = eager_ && shape_.output_bytes <= protocol::kAnnouncePayloadBytes &&
                    direction_ == Direction::kReceive && comm_.members().bridge == nullptr;
  signed_ = sequence_;
  prepared_with_ = plans.schedules_version();
  prepared_ = true;
  ran_ = false;
  watched_ = false;
  own_.forget();
}

bool PointToPointCall::is_prepared_for(const CallArgs& args) const {
  return prepared_ && args.count == args_.count && args.type == args_.type && args.whole_count == args_.whole_count &&
         prepared_with_ == comm_.members().plans.schedules_version();
}

/// By the signature alone, so that both ends know.
bool PointToPointCall::is_eager(const Signature& signature) const {
  if (goes_by_mpi_) return false;
  return bytes_of(signature) <= std::max(protocol::kAnnouncePayloadBytes, std::min(kAlwaysCarriedBytes, carry_bytes()));
}
bool PointToPointCall::may_carry(const Signature& signature) const {
  return !goes_by_mpi_ && !is_eager(signature) && bytes_of(signature) <= carry_bytes();
}

/// Once the sender has announced: whether its send was eager.
bool PointToPointCall::sender_carries(const Signature& sent) const {
  if (is_eager(sent)) return true;
  return may_carry(sent) && (pair_.send(sequence_).buffers.flags & protocol::kCarried) != 0;
}

[[gnu::always_inline]] inline void PointToPointCall::begin(const CallArgs& args, bool exchanges,
                                                           const PointToPointCall* follows) {
  follows_ = follows;
  if (direction_ == Direction::kSend) exchanges_ = exchanges;  // by which nothing else of it changes
  if (exchanges == exchanges_ && is_prepared_for(args)) [[likely]] {
    set_buffers(args);
  } else {
    exchanges_ = exchanges;
    prepare(args);
    args_ = args;
    ways_.forget_plans();
    way_ = way_of_calls();
  }
  if (!status_.ok()) status_ = {};
  waiting_since_ = {};
  began_ = {};
  told_way_ = kNotTold;
  done_ = false;
  Membership& members = comm_.members();
  if (direction_ == Direction::kSend) {
    sequence_ = ++members.sent_calls[args.root];
    phase_ = Phase::kRoom;
  } else {
    sequence_ = ++members.received_calls[args.root];
    announced_ = false;
    if (!announces_late_) announce();
    phase_ = Phase::kMeet;
  }
}

[[gnu::always_inline]] inline void PointToPointCall::announce() {
  executor::HostMachine& machine = lanes_.machine();
  const std::uint32_t sequence = sequence_;
  const std::uint64_t word = protocol::announce_word(sequence, fingerprint_);
  const bool sends = direction_ == Direction::kSend;
  announced_ = true;
  if (signed_ != sequence) write_signature(sequence);
  if (!eager_ && !goes_by_mpi_ && !own_.holds_for(args_)) describe_buffers();
  if (way_ != nullptr) announce_way();
  done_ = sends && (eager_ || (may_carry_ && carries_));
  if (done_) {
    send_eagerly(machine, pair_, word, args_.send, shape_.input_bytes, taken_);
    // The next send is expected to be like this one.
    if (protocol::has_known_room(sequence + 1, taken_)) write_signature(sequence + 1);
    return;
  }
  protocol::AnnounceLine& line = sends ? pair_.send(sequence) : pair_.receive(sequence);
  if (!eager_) announce_buffers(machine, line, own_.references);
  publish(machine, line, word);
}

void PointToPointCall::write_signature(std::uint32_t sequence) {
  Signature& place = signatures_.of(direction_, sequence);
  place = signature_;
  place.sequence = sequence;
  signed_ = sequence;
}

void PointToPointCall::describe_buffers() {
  const Membership& members = comm_.members();
  own_.begin(args_);
  own_.references = members.reach.describe(args_.send, shape_.input_bytes, args_.receive, shape_.output_bytes);
  carries_ = !members.maps(own_.references);
}

const protocol::AnnounceLine& PointToPointCall::line_of(int) const {
  return direction_ == Direction::kSend ? pair_.receive(sequence_) : pair_.send(sequence_);
}

bool PointToPointCall::has_room() { return protocol::has_room(lanes_.machine(), pair_, sequence_, taken_); }

std::uint64_t PointToPointCall::peer_word() { return announced_word(lanes_.machine(), line_of(args_.root), sequence_); }

bool PointToPointCall::peer_has_announced() {
  for (int look = 0; look < kLooks; ++look) {
    if (peer_word() != 0) return true;
  }
  return false;
}

/// An eager send is over for its rank, which believes that it succeeded: then the communicator fails, so that it learns of it.
Status PointToPointCall::mismatch() {
  const Signature& other = signatures_.of(theirs_, sequence_);
  const bool sends = direction_ == Direction::kSend;
  const Signature& sent = sends ? signature_ : other;
  const bool late = sender_carries(sent);
  const auto text = [](const Signature& s) {
    return fmt::format("count {} {}{}", s.count, name_of(s.type), s.describe_tuning());
  };
  Error failure =
      error(Code::kInvalidUsage,
            fmt::format("send and recv differ, and nothing was {}: rank {} sends {}, rank {} receives {}. Both must "
                        "give the same count and data type",
                        late ? "received" : "done", sends ? comm_.rank() : args_.root, text(sent),
                        sends ? args_.root : comm_.rank(), text(sends ? other : signature_)));
  if (late) comm_.fail(failure.code, -1, name_for_all() + ": " + failure.message);
  return failure;
}

/// The peer has announced: an eager send's data is here, all others plan.
executor::Progress PointToPointCall::meet() {
  if (peer_word() != protocol::announce_word(sequence_, fingerprint_)) {
    if (!announced_) announce();  // the sender may wait for it
    const Status differs = mismatch();
    finish(Progress::kFailed);
    return fail(differs.error());
  }
  const bool carried = eager_ || (may_carry_ && (pair_.send(sequence_).buffers.flags & protocol::kCarried) != 0);
  if (direction_ == Direction::kReceive && carried) {
    receive_eagerly(lanes_.machine(), pair_, sequence_, args_.receive, shape_.output_bytes);
    return finish(Progress::kDone);
  }
  if (goes_by_mpi_) return post_message();
  if (Status running = run(); !running.ok()) {
    // The other end has no part in this; it must not wait, nor the line stay taken.
    comm_.fail(running.error().code, comm_.rank(), name_for_all() + ": " + running.error().message);
    return finish(fail(running.error()));
  }
  phase_ = Phase::kRun;
  return Progress::kAdvanced;
}

/// What was sent, and the sender's line, are no longer needed.
executor::Progress PointToPointCall::finish(Progress progress) {
  if (direction_ == Direction::kReceive) take(lanes_.machine(), pair_, sequence_);
  return progress;
}

/// Whether both ends' buffers are reached as in the last run: then nothing needs to be found out.
bool PointToPointCall::is_like_last_run(const protocol::BufferReferences& theirs) {
  return ran_ && ran_with_ == comm_.members().reach.drops() && ran_flags_ == own_.references.flags &&
         std::memcmp(&theirs, &theirs_then_, sizeof theirs) == 0;
}

Status PointToPointCall::run() {
  Membership& members = comm_.members();
  const protocol::BufferReferences theirs = announced_buffers(lanes_.machine(), line_of(args_.root));
  if (direction_ == Direction::kSend) hear_next_way(theirs.flags);
  if (is_like_last_run(theirs)) {
    lanes_.start_again(args_);
    begin_lanes();
    return {};
  }
  ran_ = false;
  watched_ = false;
  through_slots_ = false;
  planner::Question question;
  question.request = shape_.request;
  question.count = shape_.count;
  question.element_bytes = static_cast<std::uint32_t>(size_of(args_.type));
  const std::uint32_t flags = own_.references.flags & theirs.flags;
  const bool same_process = members.reach.same_process(args_.root);
  question.access = members.access((flags & protocol::kMappable) != 0 || same_process, same_process);
  if (question.access != planner::Access::kMapped)
    choose_way(question, direction_ == Direction::kReceive ? own_.references.flags : theirs.flags);
  TUTTI_TRY_ASSIGN(auto plan, members.plans.find(question, comm_.rank()));
  peers_[args_.root] = {};
  TUTTI_TRY(reach_buffers(*plan));
  const bool goes_directly = plan->direct;
  lanes_.start(args_, std::move(plan), peers_.data(),
               {kPointToPointLane, streamed_parts(args_, comm_.ranks(), false, comm_.members().cache_room)});
  through_slots_ = direction_ == Direction::kSend && !goes_directly;
  ran_ = true;
  ran_with_ = members.reach.drops();
  ran_flags_ = own_.references.flags;
  theirs_then_ = theirs;
  begin_lanes();
  return {};
}

void PointToPointCall::begin_lanes() {
  if ((exchanges_ && through_slots_) || wants_time()) begin_time();
}

void PointToPointCall::run(const CallArgs& args) {
  begin(args);
  const Progress progress = go_on();
  if (progress != Progress::kDone && progress != Progress::kFailed) {
    executor::Task* task = this;
    executor::run_tasks({&task, 1}, comm_.yields());
  }
  note_end();
}

[[gnu::always_inline]] inline executor::Progress PointToPointCall::go_on() {
  if (phase_ == Phase::kRoom) {
    if (static_cast<RankPhase>(lanes_.machine().load_acquire(peers_phase_)) == RankPhase::kLeft) {
      // No receive can have met this send, of which nothing is written yet.
      comm_.check_patience(args_.root, true, name_for_all(), {}, lateness_);
      return fail(comm_.failure());
    }
    if (!has_room()) return blocked();
    announce();
    if (done_) return Progress::kDone;
    phase_ = Phase::kMeet;
  }
  if (phase_ == Phase::kMeet) {
    if (!announced_ && peer_word() == 0) announce();
    if (!peer_has_announced()) return blocked();
    if (const Progress met = meet(); met != Progress::kAdvanced) return met;
  }
  if (phase_ == Phase::kMessage) [[unlikely]]
    return go_on_with_message();
  const Progress progress = lanes_.advance();
  if (progress == Progress::kBlocked) return blocked();
  if (progress == Progress::kFailed) return fail(comm_.failure());
  return progress == Progress::kDone ? finish(progress) : moved(progress);
}

void PointToPointCall::start(const CallArgs& args) { begin(args); }
executor::Progress PointToPointCall::advance() { return go_on(); }

int PointToPointCall::waiting_for() {
  switch (phase_) {
    case Phase::kRoom: return has_room() ? -1 : args_.root;
    case Phase::kMeet: return peer_has_announced() ? -1 : args_.root;
    case Phase::kMessage: return args_.root;
    case Phase::kRun: break;
  }
  return lanes_.waiting_for();
}

bool Exchange::ends(PointToPointCall& call, executor::Progress progress) {
  if (progress == executor::Progress::kFailed && failed_ == nullptr) failed_ = &call;
  return progress == executor::Progress::kDone || progress == executor::Progress::kFailed;
}

/// A short send is made first, whatever the order of the calls: its receiver waits for it. Before a longer one copies anything the receive
/// is announced: or the other rank would wait for that with its own. Two ranks that send each other as much in different ways take longest, as one
/// of them has most of the work of both: so the lower one chooses for both.
Exchange::Exchange(Communicator& communicator, const CallArgs& first, const CallArgs& second)
    : sending_(communicator.point_to_point_call(first.collective == Collective::kSend ? first : second)),
      receiving_(communicator.point_to_point_call(first.collective == Collective::kSend ? second : first)) {
  const bool in_order = first.collective == Collective::kSend;
  communicator.members().reach.settle();
  sending_.begin(in_order ? first : second, true);
  if (sending_.may_be_eager()) sent_ = ends(sending_, sending_.go_on());
  const bool follows = first.root == second.root && first.root < communicator.rank();
  receiving_.begin(in_order ? second : first, true, follows ? &sending_ : nullptr);
}

void Exchange::run(const executor::Crowding& crowding) {
  if (sent_) {
    received_ = ends(receiving_, receiving_.go_on());
    if (received_) return;
  }
  executor::Task* task = this;
  executor::run_tasks({&task, 1}, crowding);
  receiving_.note_end_with(sending_);
  receiving_.learn_way();
}

executor::Progress Exchange::advance() {
  bool moved = false;
  if (!sent_) {
    const executor::Progress progress = sending_.advance();
    sent_ = ends(sending_, progress);
    moved = progress != executor::Progress::kBlocked;
  }
  if (!received_) {
    const executor::Progress progress = receiving_.advance();
    received_ = ends(receiving_, progress);
    moved = moved || progress != executor::Progress::kBlocked;
  }
  if (!sent_ || !received_) return moved ? executor::Progress::kAdvanced : executor::Progress::kBlocked;
  return status().ok() ? executor::Progress::kDone : executor::Progress::kFailed;
}

void Exchange::check_patience() {
  if (!sent_) static_cast<executor::Task&>(sending_).check_patience();
  if (!received_) static_cast<executor::Task&>(receiving_).check_patience();
}

}  // namespace tutti::comm
