// One collective or point-to-point call under way: announce, read the others' announcements, plan, run the lanes.
#pragma once

#include "comm/communicator.h"
#include "comm/way_choice.h"
#include "executor/host_machine.h"
#include "executor/task.h"
#include "protocol/announce.h"
#include "protocol/lane.h"
#include "protocol/lane_storage.h"
#include "transport/shared_memory.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti::comm {

inline bool is_to_self(const Communicator& communicator, const CallArgs& call) {
  return is_point_to_point(call) && call.root == communicator.rank();
}

/// What the sum is divided by; 0: nothing.
inline int divisor_of(const CallArgs& args, int ranks) {
  if (args.op != ReduceOp::kAverage) return 0;
  return args.averaged_over != 0 ? args.averaged_over : ranks;
}

/// The buffers of a call as a rank's program sees them.
struct CallShape {
  schedule::Request request;
  std::uint64_t count = 0;
  std::size_t input_bytes = 0;  ///< 0: this rank's call uses none
  std::size_t output_bytes = 0;
  bool in_place = false;
};
bool is_in_place(const CallArgs& args, int rank);
/// Without in_place.
CallShape shape_of(const CallArgs& args, int ranks, int rank);

/// Whether the announcements can carry all inputs of a collective: by its signature alone.
enum class Carriage : std::uint8_t {
  kNone,
  kBesideLines,  ///< where all buffers are private, or the call is rooted, or up to kCarriedAnywayBytes
  kFromBuffers,  ///< hosts of one rank: with the lines too, from the caller's buffer (far_inputs.h)
  kAddedUp,      ///< the same of an all-reduce whose lines double: added up on the way
  kAtHub,        ///< ... and where they go by a hub: added up there
  kByRails,      ///< in parts, of hosts of one rank in shares, before all lines are there (rails.h)
  kByMpi,    ///< hosts of one rank, long: by MPI from the callers' buffers, once all lines are there (mpi_all_reduce.h)
  kInLines,  ///< whatever the buffers are
};
Carriage carriage_of(const Membership& members, const CallArgs& args);
/// Whether each rank reads one block of another's input, and another one of its own.
inline bool reads_one_block(Collective collective) {
  return collective == Collective::kAllToAll || collective == Collective::kReduceScatter;
}
/// Inputs up to here go beside the line whatever the buffers are: ranks that map each other's would have to meet twice.
inline constexpr std::size_t kCarriedAnywayBytes = 512;
/// Whether this rank's input, of a call that is not one-way, does.
inline bool goes_beside_line(const Membership& members, Carriage carriage, std::size_t input_bytes,
                             const protocol::BufferReferences& buffers) {
  return carriage == Carriage::kBesideLines && (input_bytes <= kCarriedAnywayBytes || !members.maps(buffers));
}
inline bool goes_from_buffers(Carriage carriage) {
  return carriage == Carriage::kFromBuffers || carriage == Carriage::kAddedUp || carriage == Carriage::kAtHub;
}

/// Lines say nothing of the buffers.
inline bool needs_no_references(Carriage carriage) {
  return goes_from_buffers(carriage) || carriage == Carriage::kByRails || carriage == Carriage::kByMpi;
}

/// How often a wait looks again before it lets others have their turn: the common waits are shorter than a look at everything.
inline constexpr int kLooks = 16;

/// Runs the lanes of a plan; shared by collectives and point-to-point calls.
class LaneRun {
 public:
  LaneRun(Communicator& communicator);

  struct Options {
    std::uint32_t first_lane = kPointToPointLane;  ///< which channels carry the plan's lanes
    std::uint32_t streamed_parts = 0;              ///< LaneCall's
  };

  /// `peers`: by rank, valid until done.
  void start(const CallArgs& args, std::shared_ptr<const planner::Plan> plan, const protocol::PeerBuffers* peers,
             Options options);
  /// The last run again, with other buffers of this rank and all else alike.
  void start_again(const CallArgs& args);
  executor::Progress advance();
  int waiting_for();
  /// The peer that all lanes wait for; -1: there is none, or several.
  int waiting_for_one();
  executor::HostMachine& machine() { return machine_; }

 private:
  struct Running {
    protocol::Lane<executor::HostMachine> lane;
    protocol::LaneStorage storage;
    bool done = false;
    bool reads = true;  ///< it may read others' buffers still
  };

  bool may_have_read_anything(Running& r);

  Communicator& comm_;
  executor::HostMachine machine_;
  std::shared_ptr<const planner::Plan> plan_;
  std::vector<Running> lanes_;
  std::vector<std::byte> scratch_;
};

/// What one object's calls have to choose from, by kind (way_choice.h).
class Ways {
 public:
  /// Of the calls of this kind; `first`: of the first of them. What was returned before may be gone.
  WayChoice& of(std::uint64_t kind, int first);
  /// They may have other plans than when they were last asked for.
  void forget_plans() { asked_.reset(); }
  /// A bit for each planner::Way whose plan is none of an earlier one's.
  std::uint32_t of_question(planner::PlanCache& plans, planner::Question question, int rank);

 private:
  std::unordered_map<std::uint64_t, WayChoice> kinds_;  ///< by a call's fingerprint, and more above it
  std::optional<planner::Question> asked_;              ///< of_question(), the last time
  std::uint32_t asked_ways_ = 0;
};

/// A call as the batch runs it.
class Call : public executor::Task {
 public:
  explicit Call(Communicator& communicator) : comm_(communicator), lanes_(communicator) {}
  virtual void start(const CallArgs& args) = 0;
  /// After kFailed: why. After kDone: success.
  const Status& status() const { return status_; }

 protected:
  using Progress = executor::Progress;

  /// What this rank's buffers are to others, and while what it holds. Kept, as finding out takes time, and words that were just written
  /// cannot be read as a vector before all stores ahead of them are done.
  class Described {
   public:
    bool holds_for(const CallArgs& args) const {
      return send_ == args.send && receive_ == args.receive && (version_ & 1) == 0 &&
             version_ == transport::shared_version() && freed_ == transport::shared_freed_count();
    }
    /// To be called before the buffers are looked at.
    void begin(const CallArgs& args) {
      send_ = args.send;
      receive_ = args.receive;
      version_ = transport::shared_version();
      freed_ = transport::shared_freed_count();
    }
    void forget() { version_ = 1; }
    protocol::BufferReferences references{};

   private:
    const void* send_ = nullptr;
    void* receive_ = nullptr;
    std::uint64_t version_ = 1;  ///< odd: never equal
    std::uint64_t freed_ = 0;
  };

  /// Blocked: still fine, or failed because the communicator has.
  Progress blocked();
  /// Something went on: patience starts anew.
  Progress moved(Progress progress);
  Progress fail(Error failure);
  /// The peer this call waits for now, or -1.
  virtual int waiting_for() = 0;
  /// What is waited for was sent by the peer, though it has left.
  virtual bool is_coming(int) const { return false; }
  virtual std::string name() const = 0;
  /// The same where other ranks read it.
  virtual std::string name_for_all() const { return name(); }
  /// What a peer has announced of this call.
  virtual const protocol::AnnounceLine& line_of(int peer) const = 0;
  /// Finds the memory that the plan reads and writes at other ranks.
  Status reach_buffers(const planner::Plan& plan);
  void check_patience() override;
  /// Of a call that is like the last one but for its buffers. Word by word: a copy of all that was just written has to wait for the stores.
  void set_buffers(const CallArgs& args) {
    args_.send = args.send;
    args_.receive = args.receive;
    args_.scale = args.scale;
    args_.identity = args.identity;
  }

  Communicator& comm_;
  LaneRun lanes_;
  CallArgs args_;
  CallShape shape_;
  Signature signature_;         ///< but for the number, so that it stays as it is while calls repeat
  std::uint32_t sequence_ = 0;  ///< the call's number
  std::vector<protocol::PeerBuffers> peers_;
  std::vector<std::uint64_t> scales_;
  std::chrono::steady_clock::time_point waiting_since_;
  Lateness lateness_{};  ///< of that wait: calls side by side wait each for its own
  Status status_;

  void begin_time();
  /// At the end of a call that nothing else came between.
  void note_time();

  Ways ways_;
  WayChoice* way_ = nullptr;  ///< of calls like this one, if there is a choice that this rank has a part in
  bool watched_ = false;      ///< the lanes' plan is one of several
  using Clock = std::chrono::steady_clock;
  Clock::time_point began_;  ///< what counts of the call, if its time is wanted
};

/// A call of all ranks.
class CollectiveCall final : public Call {
 public:
  explicit CollectiveCall(Communicator& communicator);
  void start(const CallArgs& args) override;
  executor::Progress advance() override;
  /// Both, to the end.
  void run(const CallArgs& args);
  /// Over hosts: the rank that alone can bring the call on, as it waits for that one's line, or for what a rank of this host does; -1: what comes
  /// from any may. While lanes wait for another host, what comes from the others is taken in meanwhile.
  int awaited();
  /// MPI is at work on it, and has to be asked.
  bool has_messages() const { return phase_ == Phase::kMessages || phase_ == Phase::kMpiAllReduce; }
  /// Marks the library's own exchanges, which no user call may meet.
  void set_internal() {
    internal_ = true;
    prepared_ = false;
  }

 private:
  enum class Phase : std::uint8_t { kRoom, kGather, kRun, kMessages, kMpiAllReduce, kRefused, kDone };

  int waiting_for() override;
  bool is_coming(int peer) const override;
  std::string name() const override;
  const protocol::AnnounceLine& line_of(int peer) const override;
  void prepare(const CallArgs& args);
  bool is_like_last(const CallArgs& args) const;
  Progress repeat(const CallArgs& args);
  void run_on();
  protocol::Room look_for_room();
  void announce();
  void prepare_next(bool carries);
  void write_signature(std::uint32_t sequence);
  bool write_input();
  void copy_input(std::byte* to);
  void carry_input(std::byte* to);
  bool all_carry() const;
  bool all_have_announced(int looks);
  Status open();
  Status run_lanes();
  void post_messages();
  Progress go_on_with_messages();
  void begin_mpi_all_reduce();
  Progress go_on_with_mpi_all_reduce();
  bool lines_finish() const;
  void finish_by_lines();
  bool gets_sum() const;
  void lend_buffers();
  void finish_from_buffers();
  void lay_rails();
  Progress end_refused();
  Rails& rails() { return *comm_.members().rails; }
  void add_round(std::uint32_t round, void* to, int divisor);
  void add_up();
  int missing_input() const;
  void* far_input(std::uint32_t part) const;
  void* far_sum(std::uint32_t round) const;
  bool is_input_needed() const;
  std::vector<int> ranks_read() const;
  bool knows_calls(const std::vector<int>& ranks, std::uint32_t last) const;
  Error mismatch(const std::vector<int>& ranks, std::uint32_t last);
  const protocol::BufferReferences& describe_buffers();
  bool may_choose_way() const;
  int chooser_of(const CallArgs& args) const;
  WayChoice* way_of_buffers();
  void announce_way();
  bool prefers_lanes() const;
  void follow_way();
  void choose_way(planner::Question& question);
  void begin_lanes();
  bool read_references();
  planner::Access find_access(bool& in_place);
  bool all_are_in_place() const;

  struct Message {
    int peer = 0;
    std::unique_ptr<transport::MpiMessage> message;
  };

  Phase phase_ = Phase::kGather;
  Status refusal_;            ///< of kRefused
  bool goes_by_mpi_ = false;  ///< once all have announced it
  std::vector<Message> messages_;
  bool internal_ = false;
  bool prepared_ = false;
  std::uint64_t prepared_with_ = 0;  ///< the version of the schedules that are set
  Carriage carriage_ = Carriage::kNone;
  std::uint32_t fingerprint_ = 0;
  static constexpr std::uint64_t kNoIdentity = ~std::uint64_t{0};
  std::uint64_t finished_ = kNoIdentity;  ///< CallArgs::identity of the last call, if it may be repeated
  std::uint32_t signed_ = 0;              ///< the call for which this rank's signature was written last
  protocol::Announcer& announcer_;
  const CollectiveSignatures signatures_;
  protocol::AnnouncedCall announced_call_;
  protocol::LinesRead reads_;
  std::vector<const void*> sources_;
  std::uint32_t added_ = 0;  ///< of Carriage::kAddedUp, in this call: rounds whose sum goes on in the next one
  /// The call's input, if it is this short. A vector of a line that was just written in smaller pieces cannot be loaded before the stores
  /// have reached the cache, and those of a line wait for the line; these are before them.
  alignas(64) std::byte own_input_[2 * protocol::kAnnounceVectorBytes]{};

  Described own_;
  std::vector<protocol::BufferReferences> references_;  ///< all ranks', of the last call that ran lanes
  bool reached_ = false;                                ///< the lanes and peers_ are those of references_
  std::uint64_t reached_with_ = 0;                      ///< Reach::drops() then

  bool may_carry_ = false;    ///< beside the lines is among the ways
  bool chooses_way_ = false;  ///< of several that these calls may take
  int chooser_ = 0;           ///< the rank that measures them, and says which one all take
  std::uint64_t kind_ = 0;    ///< of way_
};

/// A send or a receive: the same with one peer only. One object per peer and direction, used again and again.
class PointToPointCall final : public Call {
 public:
  PointToPointCall(Communicator& communicator, int peer, Direction direction);
  void start(const CallArgs& args) override;
  executor::Progress advance() override;
  /// Both, to the end.
  void run(const CallArgs& args);
  /// What the calls above do, where they are inlined. `exchanges`: one of a send and a receive that are made together; `follows`: of the receive, that
  /// send, if it goes the other way and the peer chooses for both.
  void begin(const CallArgs& args, bool exchanges = false, const PointToPointCall* follows = nullptr);
  Progress go_on();
  /// MPI is at work on it, and has to be asked.
  bool is_message() const { return phase_ == Phase::kMessage; }
  /// After start(): a send that may be over without its receiver.
  bool may_be_eager() const { return eager_ || may_carry_; }
  /// After the end of an exchange's receive.
  void learn_way();
  /// After the end of a call that went by itself.
  void note_end() {
    if (status_.ok()) note_time();
  }
  /// After the end of an exchange, of its receive, whose time is that of both: through slots the send may have copied all before the receive begins.
  /// Not that of a send to another rank than it is from, which may have come earlier.
  void note_end_with(const PointToPointCall& send) {
    if (send.began_ != Clock::time_point{} && send.args_.root == args_.root) began_ = std::min(began_, send.began_);
    note_end();
  }

 private:
  enum class Phase : std::uint8_t { kRoom, kMeet, kRun, kMessage };
  static constexpr int kNotTold = -1;

  int waiting_for() override;
  bool is_coming(int) const override { return phase_ == Phase::kMessage; }
  std::string name() const override;
  std::string name_for_all() const override;
  const protocol::AnnounceLine& line_of(int peer) const override;
  bool is_prepared_for(const CallArgs& args) const;
  void prepare(const CallArgs& args);
  std::size_t carry_bytes() const { return comm_.members().control.settings().carry_bytes; }
  bool is_eager(const Signature& signature) const;
  bool may_carry(const Signature& signature) const;
  bool sender_carries(const Signature& sent) const;
  /// Of this rank's line.
  void announce();
  void write_signature(std::uint32_t sequence);
  bool has_room();
  std::uint64_t peer_word();
  bool peer_has_announced();
  Progress meet();
  Progress post_message();
  Progress go_on_with_message();
  Status run();
  WayChoice* way_of_calls();
  void announce_way();
  void choose_way(planner::Question& question, std::uint32_t receiver_flags);
  bool follows() const { return follows_ != nullptr && follows_->fingerprint_ == fingerprint_; }
  bool wants_time();
  void begin_lanes();
  void describe_buffers();
  void hear_next_way(std::uint32_t receiver_flags);
  bool is_like_last_run(const protocol::BufferReferences& theirs);
  Status mismatch();
  Progress finish(Progress progress);

  const Direction direction_;
  const Direction theirs_;
  const protocol::Pair pair_;
  const PairSignatures signatures_;
  const std::uint64_t* const peers_phase_;
  const bool goes_by_mpi_;  ///< once both ends have announced it
  std::unique_ptr<transport::MpiMessage> message_;
  Phase phase_ = Phase::kMeet;
  bool prepared_ = false;
  bool eager_ = false;      ///< by the signature
  bool may_carry_ = false;  ///< eager if the sender finds that the receiver cannot load its input
  bool done_ = false;       ///< this send was eager
  /// A receive of what comes in a line is announced once it has to wait: to whoever asks where the ranks are, or sends something else.
  bool announces_late_ = false;
  bool announced_ = false;
  std::uint32_t signed_ = 0;         ///< the call for which this rank's signature was written last
  std::uint64_t prepared_with_ = 0;  ///< the version of the schedules and tuning that are set
  std::uint32_t fingerprint_ = 0;
  std::uint32_t taken_ = 0;  ///< sends that the receiver is done with, as this sender last saw

  Described own_;
  bool carries_ = false;  ///< a send that may be carried, from buffers as own_ has them: it is

  // The last run of lanes, which the next one may do again.
  bool ran_ = false;
  std::uint64_t ran_with_ = 0;                ///< Reach::drops() then
  std::uint32_t ran_flags_ = 0;               ///< of this rank's buffers
  protocol::BufferReferences theirs_then_{};  ///< what the peer had announced

  bool exchanges_ = false;                     ///< this is one of a send and a receive that are made together
  bool through_slots_ = false;                 ///< the last run of a send
  const PointToPointCall* follows_ = nullptr;  ///< as long as the call runs
  int told_way_ = kNotTold;                    ///< what the receiver of the last send means to take in the next one
};

/// A group of one send and one receive, of other ranks: a batch without lists.
class Exchange final : public executor::Task {
 public:
  /// Whether a group's calls are that. `second` may come before `first`.
  static bool is_one(const Communicator& communicator, const CallArgs& first, const CallArgs& second) {
    const bool one_each =
        is_point_to_point(first) && is_point_to_point(second) && first.collective != second.collective;
    return one_each && !is_to_self(communicator, first) && !is_to_self(communicator, second);
  }
  /// By whoever has the turn. What the calls say is not looked at any more afterwards.
  Exchange(Communicator& communicator, const CallArgs& first, const CallArgs& second);

  /// To the end. `crowding`: Communicator::yields().
  void run(const executor::Crowding& crowding);
  executor::Progress advance() override;
  void check_patience() override;
  /// After the end: the first error, or success.
  const Status& status() const { return failed_ != nullptr ? failed_->status() : sending_.status(); }

 private:
  /// Whether the call is over now; keeps it if it is the first to fail.
  bool ends(PointToPointCall& call, executor::Progress progress);

  PointToPointCall& sending_;
  PointToPointCall& receiving_;
  const PointToPointCall* failed_ = nullptr;
  bool sent_ = false;
  bool received_ = false;
};

}  // namespace tutti::comm
