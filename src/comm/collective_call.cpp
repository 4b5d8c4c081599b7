#include "comm/call.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

namespace tutti::comm {
namespace {

/// Bytes that a rank puts into its announce line if the call goes that way: the same on every rank.
std::size_t announced_bytes(const CallArgs& args, int ranks) {
  const bool block_per_rank = args.collective == Collective::kReduceScatter ||
                              args.collective == Collective::kAllToAll || args.collective == Collective::kScatter;
  return args.count * size_of(args.type) * (block_per_rank ? ranks : 1);
}

}  // namespace

Carriage carriage_of(const Membership& members, const CallArgs& args) {
  const int ranks = members.control.ranks();
  if (ranks == 1 || !members.plans.may_announce(args.collective)) return Carriage::kNone;
  const std::size_t bytes = announced_bytes(args, ranks);
  if (bytes <= protocol::announce_payload_bytes(ranks)) return Carriage::kInLines;
  return bytes <= members.control.settings().carry_bytes ? Carriage::kBesideLines : Carriage::kNone;
}

CollectiveCall::CollectiveCall(Communicator& communicator)
    : Call(communicator), board_(communicator.members().control.board()) {
  peers_.resize(communicator.ranks());
  scales_.resize(communicator.ranks());
  sources_.resize(communicator.ranks());
  references_.resize(communicator.ranks());
}

std::string CollectiveCall::name() const {
  return fmt::format("{} #{}", internal_ ? "ncclCommSplit" : name_of(args_.collective), signature_.sequence);
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
                         static_cast<std::uint8_t>(internal_),
                         {}};
  shape_ = shape_of(args, comm_.ranks(), comm_.rank());
  prepared_with_ = comm_.members().plans.schedules_version();
  const planner::SetSchedule* set = internal_ ? nullptr : comm_.members().plans.schedule_for(shape_.request);
  signature_.schedule = set ? set->fingerprint : 0;
  signature_.tuning = comm_.members().plans.tuning_fingerprint();
  fingerprint_ = signature_.fingerprint();
  carriage_ = set == nullptr ? carriage_of(comm_.members(), args) : Carriage::kNone;
  lanes_.machine().set_reduce(reduce_function(args.type, args.op));
  announced_call_.collective = args.collective;
  announced_call_.rank = static_cast<std::uint32_t>(comm_.rank());
  announced_call_.root = static_cast<std::uint32_t>(args.root);
  announced_call_.element_bytes = static_cast<std::uint32_t>(size_of(args.type));
  announced_call_.count = args.count;
  announced_call_.divisor = args.op == ReduceOp::kAverage && reduces(args.collective) ? comm_.ranks() : 0;
  announced_call_.sources = sources_.data();
  announced_call_.carried = carriage_ == Carriage::kBesideLines;
  own_.version = 1;
  reached_ = false;
  prepared_ = true;
}

bool CollectiveCall::is_prepared_for(const CallArgs& args) const {
  return prepared_ && args.count == args_.count && args.collective == args_.collective && args.type == args_.type &&
         args.op == args_.op && args.root == args_.root && args.scaled == args_.scaled &&
         prepared_with_ == comm_.members().plans.schedules_version();
}

void CollectiveCall::start(const CallArgs& args) {
  if (!is_prepared_for(args)) prepare(args);
  args_ = args;
  if (!status_.ok()) status_ = {};
  waiting_since_ = {};
  signature_.sequence = comm_.next_sequence();
  phase_ = Phase::kGather;
  if (comm_.ranks() > 1) announce();
}

/// Small inputs travel in the announce line itself, or beside it if they are private. What the next call of this kind will write
/// is asked for right afterwards: it comes while this call waits.
void CollectiveCall::announce() {
  const std::uint32_t sequence = signature_.sequence;
  executor::HostMachine& machine = lanes_.machine();
  protocol::AnnounceLine& line = board_.line(comm_.rank(), sequence);
  comm_.members().control.signature(comm_.rank(), sequence) = signature_;
  bool carries = false;
  if (carriage_ == Carriage::kInLines) {
    write_input(line.payload);
  } else {
    protocol::BufferReferences buffers = describe_buffers();
    carries = carriage_ == Carriage::kBesideLines && !comm_.members().maps(buffers);
    if (carries) {
      buffers.flags |= protocol::kCarried;
      write_input(board_.carried(comm_.rank(), sequence));
    }
    announce_buffers(machine, line, buffers);
  }
  const std::uint64_t word = protocol::announce_word(sequence, fingerprint_);
  gathering_.start(sequence, word);
  publish(machine, line, word);
  const std::size_t in_line = carriage_ == Carriage::kInLines ? shape_.input_bytes : sizeof(line.buffers);
  machine.prepare_write(reinterpret_cast<std::byte*>(&board_.line(comm_.rank(), sequence + 1)),
                        sizeof line.word + in_line);
  if (carries) machine.prepare_write(board_.carried(comm_.rank(), sequence + 1), shape_.input_bytes);
}

void CollectiveCall::write_input(std::byte* to) {
  executor::HostMachine& machine = lanes_.machine();
  if (shape_.input_bytes == 0) return;
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
  const std::uint64_t version = transport::shared_version();
  const std::uint64_t freed = transport::shared_freed_count();
  const bool known = own_.send == args_.send && own_.receive == args_.receive && own_.version == version &&
                     own_.freed == freed && (version & 1) == 0;
  if (known) {
    if (own_.references.scale != args_.scale) reached_ = false;  // another PreMulSum
    own_.references.scale = args_.scale;
    return own_.references;
  }
  reached_ = false;
  shape_.in_place = is_in_place(args_, comm_.rank());
  own_.references = comm_.members().reach.describe(args_.send, shape_.input_bytes, args_.receive, shape_.output_bytes);
  if (shape_.in_place) own_.references.flags |= protocol::kInPlace;
  own_.references.scale = args_.scale;
  own_.send = args_.send;
  own_.receive = args_.receive;
  own_.version = version;
  own_.freed = freed;
  return own_.references;
}

/// Who called what, grouped; the same text on every rank.
Status CollectiveCall::mismatch() const {
  const Control& control = comm_.members().control;
  std::map<std::string, std::string> callers;
  for (int r = 0; r < comm_.ranks(); ++r) {
    std::string& who = callers[control.signature(r, signature_.sequence).describe()];
    who += fmt::format("{}rank {}", who.empty() ? "" : ", ", r);
  }
  std::string text;
  for (const auto& [what, who] : callers) text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", what, who);
  return error(Code::kInvalidUsage,
               fmt::format("the ranks' calls differ, and nothing was done: {}. Every rank must make "
                           "the same call with the same arguments",
                           text));
}

const protocol::AnnounceLine& CollectiveCall::line_of(int peer) const { return board_.line(peer, signature_.sequence); }

/// Takes what all have announced; true if the last call's lanes were made for just that.
bool CollectiveCall::read_references() {
  const Reach& reach = comm_.members().reach;
  bool same = reached_ && reached_with_ == reach.drops();  // a receive may have heard of freed memory meanwhile
  for (int r = 0; r < comm_.ranks(); ++r) {
    if (same && r == comm_.rank()) continue;  // describe_buffers has looked
    const protocol::BufferReferences announced = announced_buffers(lanes_.machine(), line_of(r));
    if (same && std::memcmp(&announced, &references_[r], sizeof announced) == 0) continue;
    references_[r] = announced;
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

/// Everybody has announced: check, plan, start the lanes. Small calls are finished here.
Status CollectiveCall::open() {
  if (comm_.ranks() > 1 && !gathering_.all_equal()) return mismatch();
  phase_ = Phase::kDone;
  if (shape_.count == 0) return {};
  if (carriage_ == Carriage::kInLines || (carriage_ == Carriage::kBesideLines && all_carry())) {
    announced_call_.sequence = signature_.sequence;
    announced_call_.output = static_cast<std::byte*>(args_.receive);
    finish_announced(lanes_.machine(), board_, announced_call_);
    return {};
  }
  if (comm_.ranks() > 1 && read_references()) {
    lanes_.start_again(args_);
    reached_ = true;
    phase_ = Phase::kRun;
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
  TUTTI_TRY_ASSIGN(auto plan, comm_.members().plans.find(question, comm_.rank()));
  TUTTI_TRY(reach_buffers(*plan));
  lanes_.start(args_, std::move(plan), peers_.data(), {0, writes_past_caches(args_, comm_.ranks(), in_place)});
  reached_ = true;
  reached_with_ = comm_.members().reach.drops();
  phase_ = Phase::kRun;
  return {};
}

bool CollectiveCall::all_have_announced() {
  for (int look = 0; look < kLooks; ++look) {
    if (gathering_.advance(lanes_.machine(), board_)) return true;
  }
  return false;
}

executor::Progress CollectiveCall::advance() {
  if (phase_ == Phase::kGather) {
    if (comm_.ranks() > 1 && !all_have_announced()) return blocked();
    if (Status opened = open(); !opened.ok()) return fail(opened.error());
  }
  if (phase_ == Phase::kRun) {
    const Progress progress = lanes_.advance();
    if (progress == Progress::kBlocked) return blocked();
    if (progress == Progress::kFailed) return fail(comm_.failure());
    if (progress == Progress::kDone) phase_ = Phase::kDone;
    return moved(progress);
  }
  return Progress::kDone;
}

int CollectiveCall::waiting_for() {
  if (phase_ == Phase::kRun) return lanes_.waiting_for();
  if (phase_ != Phase::kGather || gathering_.advance(lanes_.machine(), board_)) return -1;
  return static_cast<int>(gathering_.unseen());
}

}  // namespace tutti::comm
