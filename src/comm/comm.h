// What the API layer sees of communicators: create, submit calls, group, end. User arguments are checked by the API
// layer; what only all ranks together can know is checked here.
#pragma once

#include "base/dtype.h"
#include "base/result.h"
#include "comm/unique_id.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tutti::comm {

class Communicator;

/// The value behind ncclComm_t: a slot index and a generation, so that a stale handle is an error and not a crash.
using Handle = void*;
/// Communicators that may be open at once.
inline constexpr int kOpenMax = 1 << 14;

inline constexpr int kHostMemory = -1;

struct Options {
  bool blocking = true;
  bool reproducible = false;
  bool wide_wire = false;
  bool is_team = false;      ///< works for another communicator, which says what goes wrong here (device_teams.h)
  int device = kHostMemory;  ///< whose memory the communicator works on
  std::string name;
};

/// Which of the messages of a sum or a broadcast a call is, that goes as two of them (two_shot.h).
enum class Shot : std::uint8_t { kNone, kFirst, kSecond };

/// One collective or point-to-point call, arguments already checked against the communicator.
struct CallArgs {
  Collective collective = Collective::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;  ///< as in the NCCL call of that name
  DataType type = DataType::kInt8;
  ReduceOp op = ReduceOp::kSum;
  bool scaled = false;  ///< PreMulSum: `scale` holds one element of `type`
  std::uint64_t scale = 0;
  bool scale_is_address = false;  ///< in device memory, read when the call runs
  int root = 0;                   ///< root, or the peer of send and receive
  void* stream = nullptr;         ///< nullptr or a host stream's handle (executor/stream.h)
  std::size_t whole_count = 0;    ///< of the call that this is a part of; 0: it is one
  int averaged_over = 0;          ///< what an average divides by; 0: the number of ranks
  Shot shot = Shot::kNone;
  std::size_t gpu_pitch = 0;  ///< buffers are GPU memory for MPI, and their blocks so many bytes apart; 0: neither
  /// The same number: alike but for the buffers, and on one communicator. 0: not known.
  std::uint64_t identity = 0;
};
inline bool is_point_to_point(const CallArgs& args) {
  return args.collective == Collective::kSend || args.collective == Collective::kReceive;
}

/// An id that nobody outside this process has: its bootstrap ends with it, unless a rank has begun to come.
class OwnId {
 public:
  explicit OwnId(const UniqueId& id);
  ~OwnId();
  OwnId(const OwnId&) = delete;
  OwnId& operator=(const OwnId&) = delete;
  void begin() { begun_ = true; }

 private:
  const UniqueId id_;
  const int process_;  ///< a group may be open while it forks
  std::atomic<bool> begun_{false};
};

/// Makes *handle valid at once. Blocking and outside a group: returns when the communicator is ready. In a group: starts
/// at the group's end. Non-blocking: returns kInProgress's Error or success while initialisation goes on in the background.
/// `own`: of the id, if it is the library's.
Status init_rank(Handle* handle, std::span<const UniqueId> ids, int ranks, int rank, const Options& options,
                 std::shared_ptr<OwnId> own = nullptr);

/// color < 0 (NCCL_SPLIT_NOCOLOR): takes part, *child = nullptr. options: nullptr inherits the parent's.
Status split(Communicator& parent, int color, int key, Handle* child, const Options* options);

/// A communicator of the ranks that are not in `excluded` (ascending, none of them this rank), in the same order. Every other rank
/// calls it; the excluded ones need not live. `abort`: ends the parent's calls first, on all ranks.
Status shrink(Communicator& parent, std::span<const int> excluded, bool abort, Handle* child, const Options* options);

/// nullptr for a handle that never was or is no longer a communicator's.
Communicator* find(Handle handle);
/// It is one of the process from which this one was forked: a child is no rank, and find() gives nothing.
bool is_inherited(Handle handle);
/// Why find() gives nothing. Of another process's: kInvalidUsage; else kInvalidArgument.
Error no_communicator(Handle handle);

Status submit(Communicator& communicator, const CallArgs& args);

/// Waits for the calls under way; further ones are refused: kInvalidUsage.
Status finalize(Communicator& communicator);
/// The handle is invalid afterwards, whatever is returned. Of one that is inherited nothing else ends, and nobody is told.
Status destroy(Handle handle);
Status abort(Handle handle);
/// Ends the calls of all ranks; the communicator can be asked, shrunk, aborted and destroyed then, and on this rank has no failure.
Status revoke(Handle handle);

/// kSuccess, kInProgress or the sticky failure of the communicator.
Code async_error(Communicator& communicator);
/// Text of the last failure of this communicator, or of this thread for nullptr. The pointer is valid until the thread's
/// next failing call.
const char* last_error(Communicator* communicator);
/// Keeps the text for last_error of this thread (and of the communicator, if not nullptr).
void set_last_error(Communicator* communicator, const std::string& text);

int rank_of(const Communicator& communicator);
int size_of(const Communicator& communicator);
/// Both are known but of one that a split or shrink is still making, or could not make: why they are not.
Status check_place(Communicator& communicator);
/// Whether it has been initialised; else why not.
Status check_made(Communicator& communicator);

struct ScaledSum {
  DataType type;
  std::uint64_t scale;
  bool is_address = false;  ///< `scale` is where the element lies, in memory that the device reads
};
/// A one-time sum operation: PreMulSum. Indexes are dense from 0 per communicator; those of destroyed ones are given again.
int create_scaled_sum(Communicator& communicator, const ScaledSum& sum);
Status destroy_scaled_sum(Communicator& communicator, int index);
/// Error if the index was never made or is destroyed.
Result<ScaledSum> scaled_sum(Communicator& communicator, int index);

Status group_start();
Status group_end();
/// Drops the queued calls, closes the group level, and returns the predicted time of them all.
Result<float> group_simulate_end();
/// Calls `ncclGroupEnd` must fail: the first error of a call inside the group is kept and returned by group_end.
bool in_group();
void fail_group(const Error& failure);

/// The forms of a call in which a schedule is proved, as bits.
struct ScheduleForms {
  unsigned bits = 0;
  static constexpr unsigned bit(bool in_place, bool direct) { return 1u << (2 * in_place + direct); }
};
/// From now on calls that the schedule fits run it; nullptr: the planner's choice again. Every rank must set the same, with no
/// call under way. kInvalidUsage: calls are, or a group is open; else as planner::prove_schedule.
Result<ScheduleForms> set_schedule(Communicator& communicator, const char* text);

/// From now on these crossovers guide the planner (planner/tuning.h); nullptr or "": again those of TUTTI_TUNING_FILE. Every rank
/// must set the same, with no call under way. kInvalidUsage: calls are, or a group is open; else as planner::parse_tuning.
Status set_tuning(Communicator& communicator, const char* text);
/// What could run for this call: for each candidate the rule, as a line of a tuning, that makes it run for calls of such a size.
/// First the one that would run now. Empty where there is no choice: no ranks to talk to, or so small a call that its data
/// travels in the lines that open it.
Result<std::string> candidate_rules(Communicator& communicator, const CallArgs& args);

/// Where every rank is, as far as this one can see: what tuttiCommReport gives.
Result<std::string> report_of(Communicator& communicator);
/// Bytes that this rank has sent by a network so far.
Result<std::uint64_t> wire_bytes(Communicator& communicator);

/// What carries them: "mpi", "tcp", or "local" where all ranks are on one host.
Result<const char*> transport_name(Communicator& communicator);

/// The plan the library would run for this call, in words and as the schedule's text form.
Result<std::string> explain(Communicator& communicator, const CallArgs& args);
/// What no schedule exceeds for this call on this machine, what is expected of the one that would run, and why that one would.
Result<std::string> certificate(Communicator& communicator, const CallArgs& args);
/// What would run for such calls, from which size on; `args.count` is ignored.
Result<std::string> plan_by_size(Communicator& communicator, const CallArgs& args);

/// The machine graph of the ranks, in topology/text_form.h's text, with a comment line for each rank. kSystem: the plug-in is not there,
/// or it cannot look at the machine; kRemote: another rank that looks at it has not come to an end.
Result<std::string> topology(Communicator& communicator);

}  // namespace tutti::comm
