// A communicator as its calls see it: who takes part, the shared control segment, the order of calls, and its first
// failure.
#pragma once

#include "comm/bootstrap.h"
#include "comm/bridge.h"
#include "comm/comm.h"
#include "comm/control.h"
#include "comm/late_ties.h"
#include "comm/machine_view.h"
#include "comm/mpi_all_reduce.h"
#include "comm/peer_watch.h"
#include "comm/rails.h"
#include "comm/reach.h"
#include "comm/turns.h"
#include "comm/watchdog.h"
#include "executor/backoff.h"
#include "executor/host_machine.h"
#include "planner/plan_cache.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tutti::comm {

class Batch;
class DeviceRank;
class DeviceTeams;
class CollectiveCall;
class PointToPointCall;

/// Of one wait: what has been said of its taking long, and since when it is for a rank that cannot be reached.
struct Lateness {
  std::chrono::steady_clock::time_point since;
  double next_warning_s = 0;
  std::optional<std::chrono::steady_clock::time_point> unreached;
};

/// A wait over hosts for the kernel to take what calls that have ended wrote for others.
struct Sending {
  std::chrono::steady_clock::time_point since;
  Lateness lateness;
};

/// Whether sends and receives of GPU memory between hosts are messages of MPI's (device_messages.h).
struct MpiSends {
  bool are_on = false;
  bool copy_too = false;  ///< and so are collectives that copy blocks (goes_by_messages())
  bool are_left = false;  ///< after a failure: MPI may still be at work on memory of some; by whoever has the turn
  bool flush = false;     ///< streams that wait for a message can make sure that they see it
  std::atomic<std::uint64_t> bytes{0};
};

/// What initialisation makes: immutable afterwards but for the counts inside.
struct Membership {
  std::vector<Peer> peers;
  Control control;
  Reach reach;
  planner::PlanCache plans;
  /// [lane][peer]; those of lanes after the first few only once connect() was asked for them.
  std::vector<std::vector<protocol::Channel>> channels;
  std::vector<std::uint32_t> sent_calls;  ///< point-to-point calls so far, per peer
  std::vector<std::uint32_t> received_calls;
  std::vector<std::uint64_t> shrinks_seen;       ///< by rank: the number of its last shrink that included this one
  protocol::Announcer announcer;                 ///< of calls of all ranks; belongs to whoever has the turn
  std::unique_ptr<Control> host_segment;         ///< over hosts: of the ranks of this one, if there are several
  std::vector<int> places;                       ///< by rank, in the host's segment where channels lie there; else -1
  std::shared_ptr<transport::MpiNetwork> mpi;    ///< what the bridge's streams go over; nullptr: TCP
  CudaMpi cuda_mpi;                              ///< what the ranks agreed on, of GPU memory
  std::unique_ptr<LateTies> late_ties;           ///< the bridge's further connections; nullptr: there are none to be
  std::unique_ptr<Bridge> bridge;                ///< to ranks of other hosts; nullptr: there are none
  MpiSends mpi_sends;                            ///< of callers' own memory
  FarLimits far_limits;                          ///< zeros where hosts have several ranks
  std::unique_ptr<MpiAllReduce> mpi_all_reduce;  ///< over MPI, of hosts of one rank each
  std::unique_ptr<Rails> rails;                  ///< nullptr: no call goes so
  executor::StoreRates carried_stores;           ///< of what is carried beside lines
  CacheRoom cache_room;                          ///< of this host, for calls of all ranks
  bool single_copy = false;                      ///< works between all processes, on every rank
  std::vector<std::unique_ptr<ProcessWatch>> watches;  ///< these last: they go first
  std::unique_ptr<PeerWatch> peer_watch;               ///< over ranks of other hosts

  Membership(std::vector<Peer> all, Control c, int rank, planner::Rules rules);
  /// Makes the channels of the lanes before this one that are not there yet; only once rank 0 has written the control
  /// segment's sizes. By whoever has the turn; channels that are there stay where they are.
  void connect(std::uint32_t lanes);
  /// How buffers are reached. `mappable`: all of them are in shared memory, or the ranks in question share a process.
  planner::Access access(bool mappable, bool same_process) const;
  /// Whether the other ranks load from and store to these buffers of this rank, if theirs are like them.
  bool maps(const protocol::BufferReferences& own) const {
    return access((own.flags & protocol::kMappable) != 0, reach.one_process()) == planner::Access::kMapped;
  }
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  explicit Communicator(Options options);
  ~Communicator();

  /// The user's name for it, once it has one (registry.h).
  Handle handle() const { return handle_; }
  void set_handle(Handle handle) { handle_ = handle; }

  /// Before initialisation: which rank of how many this is.
  void set_place(int ranks, int rank) {
    ranks_ = ranks;
    rank_ = rank;
    has_place_.store(true, std::memory_order_release);
  }
  /// One that a split or shrink makes learns how many ranks it has on the way.
  bool has_place() const { return has_place_.load(std::memory_order_acquire); }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const Options& options() const { return options_; }
  Membership& members() { return *members_; }
  /// Only once initialised.
  MachineView& machine() { return *machine_; }
  bool crowded() const { return crowded_; }
  /// Waits leave the processor to others at once: a look at the network costs as much, and what runs may be what is waited for.
  const executor::Crowding& yields() const { return crowding_; }
  bool spans_hosts() const { return members_ && members_->bridge; }
  /// nullptr: on host memory.
  DeviceRank* device() const { return device_.get(); }
  /// nullptr: it does not work by any.
  DeviceTeams* teams() const;

  /// Connects; every rank's returns the same success or a failure. Runs in the caller's thread.
  /// `parent`: the communicator that is being split; its failure ends the wait.
  Status initialise(std::vector<UniqueId> ids, const Communicator* parent = nullptr);
  /// Before initialisation: asked while that waits; an answer is why it cannot succeed any more.
  using Outlook = std::function<std::optional<Error>()>;
  /// `numbering`: what is added to failures whose numbers of ranks are this communicator's, which its user does not know yet.
  void set_outlook(Outlook outlook, std::string numbering = {}) {
    outlook_ = std::move(outlook);
    numbering_ = std::move(numbering);
  }
  /// Before initialisation: the network's prices are known, of a communicator that this one is a part of.
  void inherit_network(const planner::NetworkCosts& costs) { known_network_ = costs; }
  /// Any work that ends in initialise(), here. What it throws is a failure like others.
  void carry_out(const std::function<void()>& work) noexcept;
  /// The same; whoever ends the communicator meanwhile waits.
  void run_here(const std::function<void()>& work);
  /// The same in a thread of its own; async_state() tells when it is over.
  void start_background(std::function<void()> work);
  /// Work of a split for which this rank gets nothing, in a thread that is waited for before the communicator ends.
  void start_beside(std::function<void()> work);
  void fail_initialisation(const Error& failure) noexcept;
  /// Somebody has aborted the communicator before it was ready.
  bool is_cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  /// For a rank that takes part in a split and gets no communicator of it.
  void skip_initialisation();
  /// Waits for a background initialisation.
  Status wait_initialised();
  /// Ends an initialisation that is under way, in whichever thread, and one that is still to come. When it returns none is. Why, an earlier
  /// keep_async() says, else it was the user.
  void stop_initialising();
  /// Of one that is_cancelled().
  Error why_stopped() const;
  bool is_initialised() const { return init_state_.load(std::memory_order_acquire) == InitState::kReady; }

  /// Calls of a communicator run one after another in the order they were taken, whatever their streams. Those that kernels do among
  /// processes have turns of their own (DeviceIpc).
  Turns& turns() { return turns_; }
  std::uint64_t take_ticket() { return turns_.take(); }
  bool is_turn(std::uint64_t ticket) const { return turns_.is_turn(ticket); }
  /// By whoever has the turn.
  void complete_ticket() { turns_.complete(); }
  /// Somebody's call ended without being carried through (no memory, for instance): no peer may wait for it.
  void give_up_ticket(std::uint64_t ticket, Code code, std::string_view text);
  /// No call is under way or waits, whichever way it goes. `but_for_shrinks`: but for a shrink that has the turn, and what
  /// waits for that.
  bool is_idle(bool but_for_shrinks = false);
  /// By a shrink that has the turn, which it keeps while it waits for other ranks.
  void set_shrinking(bool is_shrinking) { is_shrinking_ = is_shrinking; }

  /// The next collective's number; calls of one communicator are numbered alike on every rank.
  std::uint32_t next_sequence() { return ++sequence_; }

  /// On host memory of one host, ready, not over, and not failed.
  bool takes_lone_calls() const {
    const std::uint64_t* const abort_word = lone_abort_word_.load(std::memory_order_acquire);
    return abort_word != nullptr && executor::load_acquire(abort_word) == 0;
  }
  /// By ncclCommFinalize: no more calls.
  bool is_finalized() const { return finalized_.load(std::memory_order_acquire); }
  bool failed() const { return members_ && (has_failure() || is_aborted_.load(std::memory_order_acquire)); }
  /// Why what needs an initialised communicator is refused.
  Error not_ready();
  /// The stored failure as this rank's error.
  Error failure() const;
  /// Why a failed one takes no more calls: the same, or that this rank has revoked it.
  Error refusal() const;
  void set_revoked() { revoked_ = true; }
  bool is_revoked() const { return revoked_; }
  /// A thread is about to revoke it: leave() waits for that, as whoever's call this ends may destroy the communicator at once.
  void begin_revocation() { revocations_.fetch_add(1); }
  void end_revocation() { revocations_.fetch_sub(1); }
  /// Not only for this rank, which has aborted it in peace.
  bool has_failure() const { return executor::load_acquire(members_->control.abort_word()) != 0; }
  /// Stores a failure for all ranks, if it is the first.
  void fail(Code code, int culprit, std::string_view text);
  /// For calls on streams, whose caller has gone on: kept until the communicator ends.
  void keep_async(const Error& failure) noexcept;

  Code async_state();
  std::string async_message();
  /// Another communicator is made from this one, by a caller that does not wait: async_state() is kInProgress meanwhile.
  void begin_child() { children_in_making_.fetch_add(1); }
  void end_child() { children_in_making_.fetch_sub(1); }

  /// The rank's process is no more, whether or not it had left.
  bool has_ended(int peer) const { return ended_[peer].load(std::memory_order_acquire); }
  bool has_left(int peer) const { return phase_of(peer) == RankPhase::kLeft; }
  PeerLife life_of(int peer) const;
  /// Fails the communicator if a call waits for `peer` in vain: it has `left`, as was seen before the call was found still
  /// waiting for it, or patience is over. `what`: "all_reduce #3". `lateness`: the wait's own.
  void check_patience(int peer, bool left, const std::string& what, std::chrono::steady_clock::time_point since,
                      Lateness& lateness);
  /// The same for a wait for the kernel, which does not take what a rank does not read. Begins anew when all is sent.
  void check_sending(const std::string& what, Sending& sending);

  /// Over hosts, by whoever has the turn: fails the communicator if a stream to a rank that has not left is at its end.
  void check_streams();

  Status finalize();
  /// Stops everything under way; peers' calls fail then, and where nothing is it leaves in peace.
  /// False if one of this rank's own calls has not come back in time: the communicator must then stay in memory.
  bool abort_now();
  /// Fails the communicator for all ranks, if it has not failed yet, and waits for this rank's own calls to end. False: one did not.
  bool end_calls(const std::string& why);
  /// Waits for calls under way and leaves, once. No initialisation is under way.
  void leave();
  /// When the program ends without ncclCommDestroy.
  void leave_at_exit();

  /// Kept between calls so that a lone collective allocates nothing; belongs to whoever has the turn.
  CollectiveCall& collective_call() {
    if (!collective_call_) [[unlikely]]
      make_collective_call();
    return *collective_call_;
  }
  PointToPointCall& point_to_point_call(const CallArgs& args) {
    const std::size_t index = 2 * static_cast<std::size_t>(args.root) + (args.collective == Collective::kReceive);
    if (index >= point_to_point_calls_.size() || !point_to_point_calls_[index]) [[unlikely]]
      make_point_to_point_call(args, index);
    return *point_to_point_calls_[index];
  }
  /// For a group that has calls of this communicator only, and no streams.
  Batch& batch();

  std::vector<std::optional<ScaledSum>> scaled_sums;  ///< guarded by state_mutex()
  std::vector<int> free_scaled_sums;                  ///< places in it; guarded by state_mutex()
  std::mutex& state_mutex() { return state_mutex_; }
  std::string last_error;  ///< guarded by state_mutex()

 private:
  enum class InitState : std::uint8_t { kPending, kReady, kFailed, kSkipped };

  Status connect(std::vector<UniqueId> ids, const Communicator* parent);
  /// The bootstrap, by which `memory` is mapped, and the members that come of it. The way to ranks of other hosts.
  Result<Port> meet_members(const BootstrapArgs& args, const Control::Memory& memory);
  using FailureText = std::array<char, sizeof(FailureRecord::text)>;
  /// That, for all ranks; in `room`, as memory may be what is missing.
  std::string_view could_not_initialise(std::string_view why, FailureText& room) const;
  void give_up_initialisation(const Error& why) noexcept;
  void await_initialisation();
  void await_beside();
  void make_collective_call();
  void make_point_to_point_call(const CallArgs& args, std::size_t index);
  void warn_late(int peer, const std::string& what, std::chrono::steady_clock::time_point since, Lateness& lateness);
  /// Rank 0 and one of another process find out what bytes cost here, unless that is known or not asked for.
  void measure_costs();
  void settle_pacing();
  bool hosts_share_systems() const;
  void measure_network_costs();
  planner::NetworkCosts network_costs() const;
  void plan_lines(const planner::Rules& rules);
  void plan_rails(const planner::Rules& rules);
  /// `port`: over hosts, the way to the others.
  void take_seat(const Port& port);
  /// What the others try to map. To be held until all are ready.
  Descriptor offer_mapping_probe();
  void probe_mapping();
  Status look_at_machine();
  Status meet(RankPhase phase, const Communicator* parent);
  Error did_not_finish(int rank, RankPhase phase) const;
  /// Why initialisation failed, by the parent's numbers of ranks if it is known there.
  Error explained(Error failure, const Communicator* parent) const;
  /// Makes the members, with a copy of the control segment and the bridge to the others. `memory`: what this host's ranks share, slots
  /// between them and their copies, or this rank's own.
  Status join_over_hosts(BootstrapResult found, Control::Memory memory);
  /// Rank 0's slots are those that this rank's memory was made for. On one host the size of the segment shows it.
  Status check_slots() const;
  /// What was heard of a rank of other hosts. False: that it is gone is known.
  void check_unreached(int peer, const std::string& what, std::chrono::steady_clock::time_point since,
                       Lateness& lateness);
  void note_life(int peer, PeerLife life, std::uint32_t last_call = 0);
  /// Further connections for data are made when they are needed.
  void await_late_ties(LateMeeting meeting, const std::vector<PeerSockets>& sockets, bool over_mpi);
  Status watch_hosts(std::vector<PeerSockets>& sockets, bool over_mpi);
  /// Streams over MPI in place of the sockets for data.
  Status open_streams(std::vector<PeerSockets>& sockets, const MpiGroup& mpi);
  void find_places_on_host();
  bool is_on_this_host(int peer) const;
  /// By rank: its host, numbered by their lowest ranks.
  schedule::Groups hosts_of_ranks() const;
  int ranks_on_this_host() const;
  bool is_needed();
  std::string why_aborted() const;
  /// Tells the other hosts' ranks that this one leaves, and sees to it that all it sent arrives.
  void leave_over_hosts();
  Status watch_peers();
  void on_exit(std::int32_t pid);
  RankPhase phase_of(int rank) const;
  void settle_crowding(bool crowded);

  Handle handle_ = nullptr;
  int ranks_ = 0;
  int rank_ = 0;
  std::atomic<bool> has_place_{false};
  const Options options_;
  bool crowded_ = false;
  executor::Crowding crowding_{true};  ///< as crowded_ has it, and over hosts always
  Outlook outlook_;
  std::string numbering_;
  std::optional<planner::NetworkCosts> known_network_;
  std::unique_ptr<std::atomic<bool>[]> ended_;      ///< by rank
  std::unique_ptr<std::atomic<PeerLife>[]> lives_;  ///< the same, over hosts
  std::unique_ptr<Membership> members_;
  std::unique_ptr<MachineView> machine_;
  std::unique_ptr<DeviceRank> device_;  ///< goes before members_
  std::atomic<InitState> init_state_{InitState::kPending};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finalized_{false};
  std::atomic<bool> is_aborted_{false};  ///< a call that takes its turn from now on finds it, or is found by is_idle()
  std::atomic<bool> has_left_{false};
  std::atomic<bool> revoked_{false};
  std::atomic<int> revocations_{0};
  std::atomic<bool> is_shrinking_{false};
  std::atomic<int> children_in_making_{0};
  std::atomic<const std::uint64_t*> lone_abort_word_{nullptr};  ///< nullptr: takes_lone_calls() is false
  std::mutex init_mutex_;    ///< held by a thread that initialises here, or waits for init_thread_
  std::thread init_thread_;  ///< guarded by init_mutex_
  struct Beside {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> over;
  };
  std::vector<Beside> beside_;                     ///< guarded by init_mutex_
  std::atomic<const void*> initialiser_{nullptr};  ///< the thread in run_here()
  Turns turns_;
  std::uint32_t sequence_ = 0;
  std::unique_ptr<CollectiveCall> collective_call_;
  std::vector<std::unique_ptr<PointToPointCall>> point_to_point_calls_;  ///< by peer and direction
  std::unique_ptr<Batch> batch_;
  mutable std::mutex state_mutex_;
  std::optional<Error> async_failure_;
  std::optional<std::chrono::steady_clock::time_point> stream_ended_;  ///< when a stream was first found so
};

}  // namespace tutti::comm
