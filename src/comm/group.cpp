// Groups, and the way from a call that is not a lone one (lone_call.h) to the thread that runs it.

#include "base/assert.h"
#include "base/config.h"
#include "comm/batch.h"
#include "comm/device_rank.h"
#include "comm/group_jobs.h"
#include "comm/group_works.h"
#include "comm/lone_call.h"
#include "comm/registry.h"
#include "comm/this_thread.h"
#include "comm/thread_end.h"
#include "executor/backoff.h"
#include "executor/stream.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace tutti::comm {
namespace {

/// A communicator that calls were made of. Its handle says at the group's end whether it is still there: to keep it alive until then
/// would cost each group locked operations, which wait for all stores before them.
struct Name {
  const Communicator* communicator;
  Handle handle;
};

struct Group {
  bool plain = true;  ///< no call names a stream, or is to the own rank
  std::vector<QueuedCall> calls;
  std::vector<Name> names;                                   ///< of the calls' communicators, in order of first use
  std::vector<std::shared_ptr<Communicator>> communicators;  ///< the same, after hold()
  std::vector<CallArgs> device_calls;                        ///< those on device memory by communicator, when they run
  std::vector<DeviceCalls> device_works;                     ///< parts of these
  std::vector<InitJob> jobs;
  std::optional<Error> failure;

  [[gnu::always_inline]] void add(Communicator& communicator, const CallArgs& args) {
    if (calls.empty() || calls.back().communicator != &communicator) note(communicator);
    plain = plain && args.stream == nullptr && !is_to_self(communicator, args);
    calls.emplace_back(&communicator, args);
  }
  /// Before calls of several communicators, on streams or over hosts run: keeps these alive until reset().
  Status hold() {
    communicators.reserve(names.size());
    {
      const Registry registry;
      for (const Name& name : names) communicators.push_back(registry.share(name.handle));
    }
    const auto lost = std::ranges::find(communicators, nullptr);
    return lost == communicators.end() ? Status() : gone(names[lost - communicators.begin()].handle);
  }
  static Error gone(Handle handle) {
    if (is_inherited(handle)) return no_communicator(handle);
    return error(Code::kInvalidArgument, "the communicator was destroyed or aborted after the call was made");
  }
  bool is_new() const { return calls.empty() && names.empty() && jobs.empty() && !failure; }
  /// Makes it as new; what it had room for stays, if it is not much.
  void reset() {
    constexpr std::size_t kKeptCalls = 256;
    plain = true;
    calls.clear();
    if (calls.capacity() > kKeptCalls) calls.shrink_to_fit();
    names.clear();
    communicators.clear();
    device_works.clear();
    device_calls.clear();
    if (device_calls.capacity() > kKeptCalls) device_calls.shrink_to_fit();
    jobs.clear();
    if (failure) failure.reset();
  }

 private:
  [[gnu::noinline]] void note(const Communicator& communicator) {
    const auto is_it = [&](const Name& known) { return known.communicator == &communicator; };
    if (std::ranges::none_of(names, is_it)) names.push_back({&communicator, communicator.handle()});
  }
};

}  // namespace

/// A thread's: the one that is open, or will be, and the last one that ended, for its memory: a group's calls run after it is closed.
struct Groups {
  Group places[2];
  int open = 0;
};

namespace {

const ThreadEnd thread_end([](void*) {
  delete std::exchange(this_thread.groups, nullptr);
  this_thread.group_depth = 0;  // the calls of one that was open are gone
});

[[gnu::cold, gnu::noinline]] void make_groups() {
  this_thread.groups = new Groups;
  thread_end.await();
}

Group& open_group() {
  if (this_thread.groups == nullptr) [[unlikely]]
    make_groups();
  return this_thread.groups->places[this_thread.groups->open];
}

/// The one that was open; another one, empty, is in its place.
class ClosedGroup {
 public:
  ClosedGroup() : group_(open_group()) { this_thread.groups->open ^= 1; }
  ~ClosedGroup() {
    if (!group_.is_new()) group_.reset();
  }
  ClosedGroup(const ClosedGroup&) = delete;
  ClosedGroup& operator=(const ClosedGroup&) = delete;
  Group* operator->() const { return &group_; }
  Group& operator*() const { return group_; }

 private:
  Group& group_;
};

/// Why calls cannot be made.
[[gnu::cold]] Error unusable(Communicator& communicator) {
  if (communicator.is_initialised() && communicator.failed()) return communicator.refusal();
  if (communicator.is_finalized()) return finalized();
  const Code state = communicator.async_state();
  // Success: it was not ready when the call was made, and has become so since.
  if (state == Code::kInProgress || state == Code::kSuccess) {
    return error(Code::kInvalidUsage,
                 "the communicator is still initialising; poll ncclCommGetAsyncError until it is no "
                 "longer ncclInProgress");
  }
  return error(state, "the communicator's initialisation failed: " + communicator.async_message());
}

Status usable(Communicator& communicator) {
  const bool ready = communicator.is_initialised() && !communicator.failed() && !communicator.is_finalized();
  return ready ? Status() : Status(unusable(communicator));
}

/// Sends and receives to the own rank must pair up within the group, some of whose calls are such.
Status check_self_calls(const Communicator& communicator, const std::vector<QueuedCall>& calls) {
  std::vector<CallArgs> own;
  for (const QueuedCall& call : calls) {
    if (call.communicator == &communicator && is_to_self(communicator, call.args)) own.push_back(call.args);
  }
  return own.empty() ? Status() : check_pairs(communicator, own);
}

Status check_calls(const Group& ended) {
  const bool some_to_self =
      std::ranges::any_of(ended.calls, [](const QueuedCall& c) { return is_to_self(*c.communicator, c.args); });
  for (const auto& communicator : ended.communicators) {
    TUTTI_TRY(usable(*communicator));
    if (some_to_self) TUTTI_TRY(check_self_calls(*communicator, ended.calls));
  }
  for (const QueuedCall& call : ended.calls) {
    if (!call.args.stream || call.communicator->device() || executor::stream_valid(call.args.stream)) continue;
    return error(Code::kInvalidArgument,
                 fmt::format("the stream {} was destroyed after the call was made, and nothing was done",
                             fmt::ptr(call.args.stream)));
  }
  return {};
}

/// The hot path of groups: one communicator's calls in the caller's thread, nothing allocated.
Status run_batch(Communicator& communicator, const std::vector<QueuedCall>& calls) {
  HeldTurn turn(communicator);
  Batch& batch = communicator.batch();
  batch.begin();
  for (const QueuedCall& call : calls) batch.refer(call.args);
  executor::Task* task = &batch;
  executor::run_tasks({&task, 1}, communicator.yields());
  Status status = batch.status();
  turn.end();
  return status;
}

bool on_device(const std::shared_ptr<Communicator>& communicator) { return communicator->device() != nullptr; }

/// Those of communicators on device memory go to their streams; the others follow.
Status run_host_calls(const Group& ended);
Status run_device_calls(Group& ended) {
  std::vector<CallArgs>& calls = ended.device_calls;
  calls.reserve(ended.calls.size());  // the works have parts of it
  for (const auto& communicator : ended.communicators) {
    if (!on_device(communicator)) continue;
    const std::size_t begin = calls.size();
    for (const QueuedCall& call : ended.calls) {
      if (call.communicator == communicator.get()) calls.push_back(call.args);
    }
    ended.device_works.push_back({communicator.get(), std::span(calls).subspan(begin)});
  }
  TUTTI_TRY(enqueue_on_devices(ended.device_works));
  if (calls.size() == ended.calls.size()) return {};
  Group others;
  for (const QueuedCall& call : ended.calls) {
    if (!call.communicator->device()) others.add(*call.communicator, call.args);
  }
  TUTTI_TRY(others.hold());
  return run_host_calls(others);
}

Status run_calls(Group& ended) {
  TUTTI_TRY(ended.hold());
  TUTTI_TRY(check_calls(ended));
  return std::ranges::any_of(ended.communicators, on_device) ? run_device_calls(ended) : run_host_calls(ended);
}

Status run_host_calls(const Group& ended) {
  const bool streams = std::ranges::any_of(ended.calls, [](const QueuedCall& c) { return c.args.stream != nullptr; });
  if (!streams && ended.communicators.size() == 1) return run_batch(*ended.communicators[0], ended.calls);
  return run_works(ended.calls, ended.communicators, !ended.plain);
}

Status run_lone_over_hosts(Communicator& communicator, const CallArgs& args) {
  return run_batch(communicator, {{&communicator, args}});
}

/// As a group of it alone, without the lists that a group has.
Status run_lone_on_device(Communicator& communicator, CallArgs args) {
  const std::shared_ptr<Communicator> kept = Registry().share(communicator.handle());
  if (!kept) return Group::gone(communicator.handle());
  TUTTI_TRY(usable(communicator));
  if (is_to_self(communicator, args)) TUTTI_TRY(check_pairs(communicator, {&args, 1}));
  const DeviceCalls work{&communicator, {&args, 1}};
  return enqueue_on_devices({&work, 1});
}

/// ncclGroupEnd is of no communicator, but who asks one of the group's is told.
[[gnu::cold]] void tell_communicators(const Group& ended, const Error& failure) {
  for (const Name& name : ended.names) {
    const std::shared_ptr<Communicator> communicator = Registry().share(name.handle);
    if (!communicator) continue;
    // One that has failed, too, says why itself: the group's reason may be another one's, with that one's numbers of ranks.
    const bool has_own = ended.names.size() > 1 && communicator->is_initialised() && communicator->failed();
    set_last_error(communicator.get(),
                   "ncclGroupEnd: " + (has_own ? communicator->failure().message : failure.message));
  }
}

[[gnu::cold]] Error opened_before_fork(int process) {
  return error(Code::kInvalidUsage, fmt::format("communicators were to be made in this group by process {}, from which "
                                                "this process ({}) was forked; open a group and "
                                                "make them after fork",
                                                process, getpid()));
}

Status run_group(Group& ended) {
  if (!ended.jobs.empty() && ended.jobs[0].process != getpid()) return opened_before_fork(ended.jobs[0].process);
  if (ended.failure) {
    for (InitJob& job : ended.jobs) job.communicator->fail_initialisation(*ended.failure);
    return *ended.failure;
  }
  Status started = ended.jobs.empty() ? Status() : run_jobs(std::move(ended.jobs));
  if (!started.ok() && started.error().code != Code::kInProgress) return started;
  if (ended.calls.empty()) return started;
  if (Status ran = run_calls(ended); !ran.ok()) return ran;
  return started;
}

Status end_group(Group& ended) {
  Status status = run_group(ended);
  if (!status.ok() && status.error().code != Code::kInProgress) tell_communicators(ended, status.error());
  return status;
}

/// The hottest of groups.
Status run_exchange(Communicator& communicator, Group& ended) {
  HeldTurn turn(communicator);
  if (turn.had_to_wait() && communicator.failed()) [[unlikely]] {
    turn.end();
    return communicator.failure();
  }
  Exchange exchange(communicator, ended.calls[0].args, ended.calls[1].args);
  ended.reset();  // here, as the other rank's line is on its way
  exchange.run(communicator.yields());
  Status status = exchange.status();
  turn.end();
  return status;
}

Status run_lone_group(Communicator& communicator, Group& ended) {
  const std::vector<QueuedCall>& calls = ended.calls;
  if (calls.size() == 2 && Exchange::is_one(communicator, calls[0].args, calls[1].args)) {
    return run_exchange(communicator, ended);
  }
  return run_batch(communicator, calls);
}

/// The one communicator of all calls, if it takes lone ones: then what end_group() finds out is known. Else nullptr.
Communicator* lone_communicator(const Group& ended) {
  if (!ended.plain || ended.names.size() != 1 || !ended.jobs.empty() || ended.failure) return nullptr;
  Communicator* const communicator = find(ended.names[0].handle);
  return communicator != nullptr && communicator->takes_lone_calls() ? communicator : nullptr;
}

}  // namespace

Status queue_call(Communicator& communicator, const CallArgs& args) {
  open_group().add(communicator, args);
  return {};
}

Status submit_any(Communicator& communicator, const CallArgs& args) {
  const bool on_host = communicator.options().device == kHostMemory;
  if (on_host && !args.stream && !is_to_self(communicator, args)) {
    TUTTI_TRY(usable(communicator));
    if (communicator.spans_hosts()) return run_lone_over_hosts(communicator, args);
    return run_lone(communicator, args);
  }
  if (!on_host) return run_lone_on_device(communicator, args);
  Group lone;
  lone.add(communicator, args);
  return run_calls(lone);
}

Status group_start() {
  open_group();  // what fails in it needs no memory then
  ++this_thread.group_depth;
  return {};
}

Status group_end() {
  if (this_thread.group_depth == 0) return error(Code::kInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--this_thread.group_depth > 0) return {};
  const ClosedGroup ended;
  Communicator* const communicator = lone_communicator(*ended);
  if (communicator == nullptr) return end_group(*ended);
  Status status = run_lone_group(*communicator, *ended);
  if (!status.ok()) [[unlikely]]
    set_last_error(communicator, "ncclGroupEnd: " + status.error().message);
  return status;
}

[[gnu::cold]] Result<float> group_simulate_end() {
  if (this_thread.group_depth == 0) return error(Code::kInvalidUsage, "ncclGroupSimulateEnd without ncclGroupStart");
  if (--this_thread.group_depth > 0) return 0.0f;
  const ClosedGroup ended;
  for (InitJob& job : ended->jobs) {
    job.communicator->fail_initialisation(error(Code::kInvalidUsage, "its group was ended by ncclGroupSimulateEnd"));
  }
  if (ended->failure) return *ended->failure;
  TUTTI_TRY(ended->hold());
  double total = 0;
  for (const QueuedCall& call : ended->calls) {
    TUTTI_TRY(usable(*call.communicator));
    TUTTI_TRY_ASSIGN(const double predicted, predict_us(*call.communicator, call.args));
    total += predicted;
  }
  return static_cast<float>(total);
}

bool in_group() { return this_thread.group_depth > 0; }

void fail_group(const Error& failure) {
  if (this_thread.group_depth == 0) return;
  if (Group& group = open_group(); !group.failure) group.failure = failure;
}

void queue_job(InitJob job) { open_group().jobs.push_back(std::move(job)); }

}  // namespace tutti::comm
