#include "comm/call.h"
#include "comm/device_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

/// After a one-way call whose lines were there already: the others are ahead, and what they may have announced since is fetched while
/// this call ends. Lines of ranks that are not ahead are left alone, as those are about to write them. `bytes`: of a line.
void fetch_later_lines(const protocol::Announcer& announcer, std::uint32_t rank, std::size_t bytes) {
  constexpr std::uint32_t kCallsAhead = 2;
  for (std::uint32_t r = announcer.reads().first; r < announcer.reads().end; ++r) {
    if (r == rank) continue;
    for (std::uint32_t n = 1; n <= kCallsAhead; ++n) {
      const auto* line = reinterpret_cast<const std::byte*>(&announcer.board().line(r, announcer.sequence() + n));
      for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at);
    }
  }
}

}  // namespace

CollectiveCall::CollectiveCall(Communicator& communicator)
    : Call(communicator),
      announcer_(communicator.members().announcer),
      signatures_(communicator.members().control.signatures()) {
  peers_.resize(communicator.ranks());
  scales_.resize(communicator.ranks());
  sources_.resize(communicator.ranks());
  references_.resize(communicator.ranks());
}

std::string CollectiveCall::name() const {
  return fmt::format("{} #{}", internal_ ? "ncclCommSplit" : name_of(args_.collective), sequence_);
}

/// What a call has in common with the next one of the same arguments but for the buffers.
void CollectiveCall::prepare(const CallArgs& args) {
  signature_ = Signature{args.count,
                         0,
                         is_rooted(args.collective) ? args.root : 0,
                         args.collective,
                         args.type,
                         reduces(args.collective) ? args.op : ReduceOp::kSum,
                         static_cast<std::uint8_t>(args.scaled),
                         static_cast<std::uint8_t>(internal_)};
  signature_.whole_count = args.whole_count;
  signature_.shot = args.shot;
  shape_ = shape_of(args, comm_.ranks(), comm_.rank());
  prepared_with_ = comm_.members().plans.schedules_version();
  const planner::SetSchedule* set = internal_ ? nullptr : comm_.members().plans.schedule_for(shape_.request);
  signature_.schedule = set ? set->fingerprint : 0;
  signature_.tuning = comm_.members().plans.tuning_fingerprint();
  fingerprint_ = signature_.fingerprint();
  const bool copies = comm_.members().mpi_sends.copy_too && goes_by_messages(args.collective);
  goes_by_mpi_ = args.shot != Shot::kNone || (copies && !internal_ && set == nullptr);
  carriage_ = set == nullptr ? carriage_of(comm_.members(), args) : Carriage::kNone;
  const auto rank = static_cast<std::uint32_t>(comm_.rank());
  const auto root = static_cast<std::uint32_t>(args.root);
  const auto ranks = static_cast<std::uint32_t>(comm_.ranks());
  const Bridge* const bridge = comm_.members().bridge.get();
  // Of an agreement that stands for a call by teams all ranks are to know.
  const bool is_agreement = args.count == 0 && args.whole_count != 0;
  const bool may_be_one_way = !is_agreement && (bridge == nullptr || bridge->has_one_way_calls());
  signature_.one_way =
      static_cast<std::uint8_t>(may_be_one_way && is_rooted(args.collective) && carriage_ != Carriage::kNone);
  reads_ = signature_.one_way != 0 ? protocol::lines_read_one_way(args.collective, rank, root, ranks)
                                   : protocol::LinesRead{0, ranks};
  lanes_.machine().set_reduce(reduce_function(args.type, args.op));
  announced_call_.collective = args.collective;
  announced_call_.rank = rank;
  announced_call_.root = root;
  announced_call_.divisor = reduces(args.collective) ? divisor_of(args, comm_.ranks()) : 0;
  announced_call_.sources = sources_.data();
  announced_call_.carried = carriage_ == Carriage::kBesideLines;
  announced_call_.set_block(args.count, size_of(args.type));
  announced_call_.own_input = nullptr;
  own_.forget();
  reached_ = false;
  watched_ = false;
  may_carry_ = carriage_ == Carriage::kBesideLines && shape_.input_bytes > kCarriedAnywayBytes;
  chooser_ = comm_.ranks() == 2 ? chooser_of(args) : 0;
  chooses_way_ = set == nullptr && !goes_by_mpi_ && may_choose_way() && (comm_.rank() == chooser_ || may_carry_);
  way_ = nullptr;  // once the buffers are known
  ways_.forget_plans();
  prepared_ = true;
  signed_ = sequence_;
  finished_ = kNoIdentity;
}

bool CollectiveCall::is_like_last(const CallArgs& args) const {
  if (args.identity != 0 && args.identity == args_.identity) [[likely]]
    return true;
  return args.count == args_.count && args.collective == args_.collective && args.type == args_.type &&
         args.op == args_.op && args.root == args_.root && args.scaled == args_.scaled &&
         args.whole_count == args_.whole_count && args.averaged_over == args_.averaged_over &&
         args.gpu_pitch == args_.gpu_pitch && args.shot == args_.shot;
}

void CollectiveCall::start(const CallArgs& args) {
  const bool known = prepared_ && prepared_with_ == comm_.members().plans.schedules_version();
  if (known && is_like_last(args)) [[likely]] {
    set_buffers(args);
  } else {
    prepare(args);
    args_ = args;
  }
  if (!status_.ok()) status_ = {};
  waiting_since_ = {};
  began_ = {};
  sequence_ = comm_.next_sequence();
  phase_ = Phase::kGather;
  if (comm_.ranks() == 1) return;
  phase_ = Phase::kRoom;
  announcer_.begin(sequence_, fingerprint_, reads_);
}

[[gnu::always_inline]] inline protocol::Room CollectiveCall::look_for_room() {
  protocol::Room room = announcer_.room(lanes_.machine());
  for (int look = 1; room == protocol::Room::kNotYet && look < kLooks; ++look) {
    room = announcer_.room(lanes_.machine());
  }
  return room;
}

/// Small inputs travel in the announce line itself, or beside it if they are private or the call is rooted.
[[gnu::always_inline]] inline void CollectiveCall::announce() {
  if (signed_ != sequence_) write_signature(sequence_);
  const bool carries = write_input();
  announcer_.publish(lanes_.machine());
  if (announcer_.has_room_for_next()) prepare_next(carries);
}

[[gnu::always_inline]] inline void CollectiveCall::write_signature(std::uint32_t sequence) {
  Signature& place = signatures_.of(comm_.rank(), sequence);
  place = signature_;
  place.sequence = sequence;
  signed_ = sequence;
}

/// The longest input whose next place is asked for early, if the store that will fill it asks for lines one by one.
constexpr std::size_t kPreparedBytes = 8 << 10;

/// The next call is expected to be like this one: what it will write is written already, or asked for, while this call waits.
[[gnu::always_inline]] inline void CollectiveCall::prepare_next(bool carries) {
  const std::uint32_t next = sequence_ + 1;
  const protocol::AnnounceBoard& board = announcer_.board();
  executor::HostMachine& machine = lanes_.machine();
  std::size_t in_line = carriage_ == Carriage::kInLines ? shape_.input_bytes : sizeof(protocol::BufferReferences);
  if (signature_.one_way != 0 && carriage_ == Carriage::kBesideLines) in_line = 0;

  machine.prepare_write(reinterpret_cast<std::byte*>(&board.line(comm_.rank(), next)), sizeof(std::uint64_t) + in_line);
  if (carries && shape_.input_bytes <= kPreparedBytes &&
      !machine.takes_lines_over(shape_.input_bytes, signature_.one_way != 0))
    machine.prepare_write(board.carried(comm_.rank(), next), shape_.input_bytes);
  write_signature(next);
}

/// Fills this rank's line; true if the input lies beside it then.
[[gnu::always_inline]] inline bool CollectiveCall::write_input() {
  protocol::AnnounceLine& line = announcer_.line();
  std::byte* const beside = announcer_.board().carried(comm_.rank(), sequence_);
  if (carriage_ == Carriage::kInLines) {
    if (!reduces(args_.collective)) {
      announced_call_.own_input = static_cast<const std::byte*>(args_.send);
      if (signature_.one_way != 0 && reads_.has(announced_call_.rank)) return false;  // nobody else reads it
    } else if (shape_.input_bytes != 0 && shape_.input_bytes <= protocol::kAnnounceVectorBytes && !args_.scaled) {
      executor::copy_bytes(own_input_, args_.send, shape_.input_bytes);
      announced_call_.own_input = own_input_;
    } else {
      announced_call_.own_input = nullptr;
    }
    copy_input(line.payload);
    return false;
  }
  if (signature_.one_way != 0) {
    const bool as_it_is = comm_.rank() == args_.root && !args_.scaled;
    announced_call_.own_input = as_it_is ? static_cast<const std::byte*>(args_.send) : nullptr;
    if (as_it_is && reads_.has(announced_call_.rank)) return false;  // nobody else reads it
    copy_input(beside);
    return shape_.input_bytes != 0;
  }
  if (goes_by_mpi_ || carriage_ == Carriage::kByMpi) return false;
  if (goes_from_buffers(carriage_)) {
    lend_buffers();
    return false;
  }
  if (carriage_ == Carriage::kByRails) {
    lay_rails();
    return false;
  }
  const protocol::BufferReferences& buffers = describe_buffers();
  if (way_ != nullptr) announce_way();
  bool carries = goes_beside_line(comm_.members(), carriage_, shape_.input_bytes, buffers);
  if (carries && may_carry_ && way_ != nullptr) [[unlikely]] {
    carries = !prefers_lanes();
    if (comm_.rank() == chooser_ && way_->wants_time()) begin_time();
  }
  announce_buffers(lanes_.machine(), line, buffers);
  announced_call_.own_input = carries && !args_.scaled ? static_cast<const std::byte*>(args_.send) : nullptr;
  if (carries) {
    line.buffers.flags |= protocol::kCarried;
    carry_input(beside);
  }
  return carries;
}

/// What others read of the input: this rank's own block, if they have others, it takes from its own buffer.
[[gnu::always_inline]] inline void CollectiveCall::carry_input(std::byte* to) {
  if (!reads_one_block(args_.collective) || args_.scaled) return copy_input(to);
  executor::HostMachine& machine = lanes_.machine();
  const auto* const from = static_cast<const std::byte*>(args_.send);
  const std::size_t own = announced_call_.rank * announced_call_.block_bytes;
  const std::size_t behind = own + announced_call_.block_bytes;
  if (own != 0) machine.store_bytes(to, from, own);
  if (behind < shape_.input_bytes) machine.store_bytes(to + behind, from + behind, shape_.input_bytes - behind);
}

[[gnu::always_inline]] inline void CollectiveCall::copy_input(std::byte* to) {
  executor::HostMachine& machine = lanes_.machine();
  if (shape_.input_bytes == 0) return;
  if (!args_.scaled && signature_.one_way != 0) return machine.store_ahead(to, args_.send, shape_.input_bytes);
  if (!args_.scaled) return machine.store_bytes(to, args_.send, shape_.input_bytes);
  const void* source = args_.send;
  void* destination = to;
  const void* scale = &args_.scale;
  machine.reduce({&source, 1, &destination, 1, shape_.input_bytes / size_of(args_.type), &scale, 0});
}

/// Whether no rank's input has to be fetched; all see the same lines.
bool CollectiveCall::all_carry() const {
  for (int r = 0; r < comm_.ranks(); ++r) {
    if ((line_of(r).buffers.flags & protocol::kCarried) == 0) return false;
  }
  return true;
}

const protocol::BufferReferences& CollectiveCall::describe_buffers() {
  if (own_.holds_for(args_)) {
    if (own_.references.scale != args_.scale) [[unlikely]] {  // another PreMulSum
      reached_ = false;
      own_.references.scale = args_.scale;
    }
    return own_.references;
  }
  reached_ = false;
  own_.begin(args_);
  shape_.in_place = is_in_place(args_, comm_.rank());
  own_.references = comm_.members().reach.describe(args_.send, shape_.input_bytes, args_.receive, shape_.output_bytes);
  if (shape_.in_place) own_.references.flags |= protocol::kInPlace;
  own_.references.scale = args_.scale;
  way_ = way_of_buffers();
  return own_.references;
}

const protocol::AnnounceLine& CollectiveCall::line_of(int peer) const {
  return announcer_.board().line(peer, sequence_);
}

/// Takes what all have announced; true if the last call's lanes were made for just that.
bool CollectiveCall::read_references() {
  const Reach& reach = comm_.members().reach;
  bool same = reached_ && reached_with_ == reach.drops();  // a receive may have heard of freed memory meanwhile
  for (int r = 0; r < comm_.ranks(); ++r) {
    if (same && r == comm_.rank()) continue;  // describe_buffers has looked
    const protocol::AnnounceLine& line = line_of(r);
    if (same && line.buffers == references_[r]) continue;
    references_[r] = announced_buffers(lanes_.machine(), line);
    same = false;
  }
  reached_ = false;
  return same;
}

planner::Access CollectiveCall::find_access(bool& in_place) {
  const Membership& members = comm_.members();
  peers_.assign(comm_.ranks(), {});
  bool mappable = true;
  for (int r = 0; r < comm_.ranks(); ++r) {
    const protocol::BufferReferences& announced = references_[r];
    in_place |= (announced.flags & protocol::kInPlace) != 0;
    mappable &= (announced.flags & protocol::kMappable) != 0;
    scales_[r] = announced.scale;
    peers_[r].scale = args_.scaled ? &scales_[r] : nullptr;
  }
  return members.access(mappable, members.reach.one_process());
}

bool CollectiveCall::all_are_in_place() const {
  const auto is_in_place = [](const auto& announced) { return (announced.flags & protocol::kInPlace) != 0; };
  return std::ranges::all_of(references_, is_in_place);
}

[[gnu::always_inline]] inline void CollectiveCall::begin_lanes() {
  reached_ = true;
  phase_ = Phase::kRun;
  if (watched_ && !may_carry_ && way_->wants_time()) begin_time();
}

/// For a call whose inputs all lie with the lines.
[[gnu::always_inline]] inline void CollectiveCall::finish_by_lines() {
  announced_call_.sequence = sequence_;
  announced_call_.output = static_cast<std::byte*>(args_.receive);
  finish_announced(lanes_.machine(), announcer_.board(), announced_call_);
}

/// Whether all inputs lie with the lines.
[[gnu::always_inline]] inline bool CollectiveCall::lines_finish() const {
  return carriage_ == Carriage::kInLines || (carriage_ == Carriage::kBesideLines && all_carry());
}

/// Everybody has announced, or in one-way calls who matters: check, plan, start the lanes. Small calls are finished here.
[[gnu::always_inline]] inline Status CollectiveCall::open() {
  if (comm_.ranks() > 1 && !announcer_.all_equal()) [[unlikely]]
    return mismatch(ranks_read(), sequence_);
  phase_ = Phase::kDone;
  if (shape_.count == 0) return {};
  if (goes_by_mpi_) {
    post_messages();
    return {};
  }
  if (carriage_ == Carriage::kByMpi) {
    begin_mpi_all_reduce();
    return {};
  }
  if (carriage_ == Carriage::kAddedUp) {
    add_round(added_, args_.receive, announced_call_.divisor);
    return {};
  }
  if (goes_from_buffers(carriage_)) {
    finish_from_buffers();
    return {};
  }
  if (carriage_ == Carriage::kByRails) return {};  // they have done it
  follow_way();
  if (signature_.one_way != 0 || lines_finish()) {
    finish_by_lines();
    return {};
  }
  return run_lanes();
}

/// The plan of what all have announced; the last call's, where that is the same.
Status CollectiveCall::run_lanes() {
  if (comm_.ranks() > 1 && read_references()) {
    lanes_.start_again(args_);
    begin_lanes();
    return {};
  }
  planner::Question question;
  question.request = shape_.request;
  question.count = shape_.count;
  question.element_bytes = static_cast<std::uint32_t>(size_of(args_.type));
  question.set = signature_.schedule != 0;
  question.wide_wire = planner::uses_wide_wire(comm_.members().plans.rules(), args_.collective, args_.type, args_.op);
  bool in_place = comm_.ranks() > 1 ? shape_.in_place : is_in_place(args_, comm_.rank());
  if (comm_.ranks() > 1) question.access = find_access(in_place);
  question.in_place = in_place;
  const bool may_mix = comm_.ranks() > 1 && in_place && !is_rooted(args_.collective);
  question.mixed = question.set && may_mix && !all_are_in_place();
  watched_ = false;
  if (comm_.ranks() > 1 && question.access != planner::Access::kMapped) choose_way(question);
  TUTTI_TRY_ASSIGN(auto plan, comm_.members().plans.find(question, comm_.rank()));
  TUTTI_TRY(reach_buffers(*plan));
  lanes_.start(args_, std::move(plan), peers_.data(),
               {kFirstCollectiveLane, streamed_parts(args_, comm_.ranks(), in_place, comm_.members().cache_room)});
  reached_with_ = comm_.members().reach.drops();
  begin_lanes();
  return {};
}

[[gnu::always_inline]] inline bool CollectiveCall::all_have_announced(int looks) {
  for (int look = 0; look < looks; ++look) {
    if (!announcer_.advance(lanes_.machine())) continue;
    if (look == 0 && signature_.one_way != 0) {
      const std::size_t payload = carriage_ == Carriage::kInLines ? shape_.output_bytes : 0;
      fetch_later_lines(announcer_, static_cast<std::uint32_t>(comm_.rank()), sizeof(std::uint64_t) + payload);
    }
    return true;
  }
  return false;
}

/// A call like the last one: what start() and advance() do, without what they find out. kDone, or as far as it could go.
[[gnu::always_inline]] inline executor::Progress CollectiveCall::repeat(const CallArgs& args) {
  constexpr int kFirstLooks = 64;
  set_buffers(args);
  waiting_since_ = {};
  began_ = {};
  sequence_ = comm_.next_sequence();
  announcer_.begin(sequence_, fingerprint_, reads_);
  phase_ = Phase::kRoom;
  if (announcer_.room(lanes_.machine()) != protocol::Room::kThere) return Progress::kBlocked;
  announce();
  if (reached_) lanes_.start_again(args_);  // most likely: the others' buffers are the last call's too
  phase_ = Phase::kGather;
  if (!all_have_announced(kFirstLooks) || !announcer_.all_equal()) return Progress::kBlocked;
  follow_way();
  if (lines_finish()) {
    phase_ = Phase::kDone;
    finish_by_lines();
    return Progress::kDone;
  }
  if (!read_references()) return Progress::kBlocked;
  begin_lanes();
  const Progress progress = lanes_.advance();
  if (progress == Progress::kDone) phase_ = Phase::kDone;
  return progress;
}

[[gnu::hot]] void CollectiveCall::run(const CallArgs& args) {
  // A group may have made such a call in between, and it may have failed: start() forgets that.
  const bool known =
      args.identity == finished_ && status_.ok() && prepared_with_ == comm_.members().plans.schedules_version();
  if (known) [[likely]] {
    if (repeat(args) == Progress::kDone) return note_time();
  } else {
    start(args);
  }
  run_on();
}

[[gnu::hot]] void CollectiveCall::run_on() {
  const Progress progress = advance();
  if (progress == Progress::kBlocked || progress == Progress::kAdvanced) {
    executor::Task* task = this;
    executor::run_tasks({&task, 1}, comm_.yields());
  }
  // Longer one-way calls are up to a quarter slower so between far cores: who sends gets too far ahead of who reads.
  const bool may_repeat = signature_.one_way != 0 ? carriage_ == Carriage::kInLines : !needs_no_references(carriage_);
  const bool repeats = may_repeat && shape_.count != 0 && comm_.ranks() > 1 && status_.ok();
  finished_ = repeats && args_.identity != 0 ? args_.identity : kNoIdentity;
  if (status_.ok()) note_time();
}

[[gnu::hot]] executor::Progress CollectiveCall::advance() {
  if (phase_ == Phase::kRoom) {
    const protocol::Room room = look_for_room();
    if (room == protocol::Room::kNotYet) return blocked();
    if (room == protocol::Room::kDiffers) {
      // Calls that failed were not announced: what lies in this rank's lines then is no history.
      if (comm_.failed()) return fail(comm_.failure());
      const std::vector<int> ranks = {comm_.rank(), static_cast<int>(announcer_.unseen())};
      if (!knows_calls(ranks, sequence_ - 1)) return blocked();
      return fail(mismatch(ranks, sequence_ - 1));
    }
    announce();
    phase_ = Phase::kGather;
  }
  if (phase_ == Phase::kGather) {
    if (carriage_ == Carriage::kAddedUp) add_up();
    const bool announced = comm_.ranks() == 1 || all_have_announced(kLooks);
    const bool alike = announced && announcer_.all_equal();
    const bool by_rails = carriage_ == Carriage::kByRails;
    if (by_rails && announcer_.all_equal() && rails().advance(lanes_.machine(), alike) && !rails().is_over())
      return moved(Progress::kAdvanced);
    if (!announced) return blocked();
    if (comm_.ranks() > 1 && !alike && !knows_calls(ranks_read(), sequence_)) return blocked();
    if (alike && (missing_input() >= 0 || is_input_needed() || (by_rails && !rails().is_over()))) return blocked();
    if (Status opened = open(); !opened.ok()) {
      if (alike || comm_.failed() || !comm_.members().rails) return fail(opened.error());
      refusal_ = opened;
      phase_ = Phase::kRefused;
    }
  }
  if (phase_ == Phase::kRefused) return end_refused();
  if (phase_ == Phase::kRun) {
    const Progress progress = lanes_.advance();
    if (progress == Progress::kBlocked) return blocked();
    if (progress == Progress::kFailed) return fail(comm_.failure());
    if (progress == Progress::kDone) phase_ = Phase::kDone;
    return moved(progress);
  }
  if (phase_ == Phase::kMessages) return go_on_with_messages();
  if (phase_ == Phase::kMpiAllReduce) return go_on_with_mpi_all_reduce();
  return Progress::kDone;
}

}  // namespace tutti::comm
