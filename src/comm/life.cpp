// Creating, splitting and ending communicators.

#include "base/config.h"
#include "comm/batch.h"
#include "comm/device_rank.h"
#include "comm/group_jobs.h"
#include "comm/registry.h"
#include "comm/split_exchange.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

Options effective(Options options) {
  if (config().blocking_set) options.blocking = config().blocking;
  return options;
}

/// Of a communicator that there will not be.
void take_back(Handle* handle) {
  if (handle) remove(std::exchange(*handle, nullptr));
}

/// What a split's ranks tell each other first.
struct Wish {
  std::int32_t color;
  std::int32_t key;
};

struct Place {
  std::vector<int> members;  ///< parent ranks of my color, in the child's order
  int rank = -1;
};

Place place_of(const std::vector<Wish>& wishes, int rank) {
  Place place;
  if (wishes[rank].color < 0) return place;
  for (int r = 0; r < static_cast<int>(wishes.size()); ++r) {
    if (wishes[r].color == wishes[rank].color) place.members.push_back(r);
  }
  std::ranges::stable_sort(place.members, {}, [&](int r) { return std::pair(wishes[r].key, r); });
  place.rank = static_cast<int>(std::ranges::find(place.members, rank) - place.members.begin());
  return place;
}

/// The second half of a split: the leaders' ids go round, and each color's ranks meet. `own`: empty where this rank leads
/// no other, or could not make one.
Status meet_child(Communicator& parent, ParentTurn& turn, const Place& place, const UniqueId& own,
                  Communicator& child) {
  std::vector<UniqueId> ids(parent.ranks());
  TUTTI_TRY(exchange_in_turn(parent, child, &own, sizeof(own), ids.data()));
  turn.end();
  if (place.rank < 0) return {};
  child.set_place(static_cast<int>(place.members.size()), place.rank);
  if (place.members.size() == 1) return child.initialise({}, &parent);
  const UniqueId& id = ids[place.members[0]];
  if (id.magic == 0) {
    return error(Code::kRemote, fmt::format("ncclCommSplit: rank {} could not start the new communicator's bootstrap",
                                            place.members[0]));
  }
  return child.initialise({id}, &parent);
}

/// Runs on every rank of the parent; for those without a color `child` stays empty.
Status make_child(Communicator& parent, ParentTurn& turn, int color, int key, Communicator& child) {
  const Wish wish{color, key};
  std::vector<Wish> wishes(parent.ranks());
  turn.wait(child);
  TUTTI_TRY(exchange_in_turn(parent, child, &wish, sizeof(wish), wishes.data()));
  const Place place = place_of(wishes, parent.rank());
  if (place.rank != 0 || place.members.size() == 1) return meet_child(parent, turn, place, UniqueId{}, child);
  auto id = make_unique_id();
  // Ranks that never joined would keep the bootstrap waiting for them.
  std::optional<OwnId> own;
  if (id.ok()) own.emplace(id.value());
  Status status = meet_child(parent, turn, place, id.ok() ? id.value() : UniqueId{}, child);
  if (status.ok() && own) own->begin();
  return id.ok() ? status : Status(id.error());
}

}  // namespace

Status schedule(InitJob job, Handle* handle) {
  if (handle) {
    *handle = add(job.communicator);
    if (!*handle)
      return error(Code::kSystem, fmt::format("too many communicators are open ({}); destroy some", kOpenMax));
  }
  try {
    if (in_group()) {
      queue_job(std::move(job));
      return {};
    }
    std::vector<InitJob> jobs;
    jobs.push_back(std::move(job));
    Status status = run_jobs(std::move(jobs));
    if (!status.ok() && status.error().code != Code::kInProgress) take_back(handle);
    return status;
  } catch (...) {
    take_back(handle);
    throw;
  }
}

Options child_options(Communicator& parent, const Options* wanted) {
  Options options = effective(wanted ? *wanted : parent.options());
  // What the parent's ranks have agreed on: one that asked for it may not be in the child.
  const planner::Rules& agreed = parent.members().plans.rules();
  options.reproducible |= agreed.reproducible;
  options.wide_wire |= agreed.wide_wire;
  options.device = parent.options().device;
  return options;
}

/// What there will be no handle of, and nobody waits for, is its parent's to keep.
void start(InitJob& job) {
  // A copy, unless others wait for its end: where no thread starts, it is needed still.
  if (job.blocking || job.communicator->handle())
    return job.communicator->start_background(job.parent ? std::move(job.work) : job.work);
  job.turn->parent().start_beside(
      [communicator = job.communicator, work = std::move(job.work)] { communicator->carry_out(work); });
}

Error why_no_thread(const std::exception& refused) {
  try {
    return error(Code::kSystem, fmt::format("cannot start a thread that makes a communicator: {}; the limit of "
                                            "threads (ulimit -u, pids.max) may be reached",
                                            refused.what()));
  } catch (const std::bad_alloc&) {
    return {Code::kSystem, "out of memory"};  // a text that is short enough to take none
  }
}

/// All of them, or none: those that have begun may wait for the others.
Status start_all(std::vector<InitJob>& jobs) {
  Error failure{Code::kSystem, "out of memory"};
  auto job = jobs.begin();
  try {
    for (; job != jobs.end(); ++job) {
      start(*job);
      job->turn.reset();  // the work's alone, with which it ends, also where that throws: others wait for it
    }
    return {};
  } catch (const std::bad_alloc&) {
  } catch (const std::exception& refused) {
    failure = why_no_thread(refused);
  }
  const std::span begun(jobs.begin(), job);
  const std::span left(job, jobs.end());
  for (const InitJob& each : jobs) each.communicator->keep_async(failure);  // before what follows from its end
  for (const InitJob& each : begun) each.communicator->stop_initialising();
  for (const InitJob& each : left) {
    // Others may wait for it: it says why it does not come.
    each.communicator->stop_initialising();
    if (!each.parent) each.communicator->run_here(each.work);
    each.communicator->fail_initialisation(failure);
  }
  return failure;
}

/// What it is made from has been ended since.
bool has_lost_parent(const InitJob& job) { return job.parent && find(job.parent->handle()) != job.parent.get(); }

Status run_jobs(std::vector<InitJob> jobs) {
  if (std::ranges::any_of(jobs, has_lost_parent)) {
    const Error gone =
        error(Code::kInvalidArgument, "a communicator was destroyed or aborted after another one was to be made of it");
    for (const InitJob& job : jobs) job.communicator->fail_initialisation(gone);
    return gone;
  }
  for (const InitJob& job : jobs) {
    if (job.turn) job.turn->begin();
  }
  if (jobs.size() == 1 && jobs[0].blocking) {
    jobs[0].communicator->run_here(jobs[0].work);
    return jobs[0].communicator->wait_initialised();
  }
  TUTTI_TRY(start_all(jobs));
  Status first;
  bool pending = false;
  for (InitJob& job : jobs) {
    if (!job.blocking) {
      pending = true;
      continue;
    }
    Status status = job.communicator->wait_initialised();
    if (first.ok() && !status.ok()) first = status;
  }
  if (first.ok() && pending) return error(Code::kInProgress, "");
  return first;
}

OwnId::OwnId(const UniqueId& id) : id_(id), process_(getpid()) {}

OwnId::~OwnId() {
  if (begun_ || process_ != getpid()) return;
  try {
    end_bootstrap(id_);
  } catch (const std::exception&) {
    // Without memory it stays.
  }
}

Status init_rank(Handle* handle, std::span<const UniqueId> ids, int ranks, int rank, const Options& options,
                 std::shared_ptr<OwnId> own) {
  bury(nullptr);
  auto communicator = std::make_shared<Communicator>(effective(options));
  communicator->set_place(ranks, rank);
  Communicator* raw = communicator.get();
  const bool blocking = communicator->options().blocking;
  const auto work = [raw, own = std::move(own), ids = std::vector<UniqueId>(ids.begin(), ids.end())]() mutable {
    if (own) own->begin();
    (void)raw->initialise(std::move(ids));
  };
  return schedule({std::move(communicator), work, blocking}, handle);
}

Status split(Communicator& parent, int color, int key, Handle* child, const Options* options) {
  *child = nullptr;
  if (!parent.is_initialised()) return parent.not_ready();
  if (parent.failed()) return parent.refusal();
  if (parent.is_finalized()) return finalized();
  // Without a color the child stays empty; the exchange still has to run, in a group beside the others.
  const bool wanted = color >= 0;
  auto communicator = std::make_shared<Communicator>(child_options(parent, options));
  const auto turn = std::make_shared<ParentTurn>(parent);
  Communicator* raw = communicator.get();
  const bool blocking = parent.options().blocking;
  // Else the parent waits for it when it ends.
  const auto keep = wanted || blocking ? parent.shared_from_this() : nullptr;
  const auto work = [keep, &parent, turn, raw, color, key, wanted, blocking] {
    Status status = make_child(parent, *turn, color, key, *raw);
    if (!status.ok()) raw->fail_initialisation(status.error());
    if (status.ok() && !wanted) raw->skip_initialisation();
    if (!status.ok() && !wanted && !blocking) parent.keep_async(status.error());  // nobody else could be asked
    turn->finish();
  };
  return schedule({std::move(communicator), work, blocking, parent.shared_from_this(), turn}, wanted ? child : nullptr);
}

Error finalized() {
  return error(
      Code::kInvalidUsage,
      "ncclCommFinalize was the communicator's last operation; end it by ncclCommDestroy or ncclCommAbort, and "
      "make another one for further calls");
}

Status finalize(Communicator& communicator) {
  if (!communicator.is_initialised()) return communicator.not_ready();
  if (communicator.is_revoked()) return communicator.refusal();
  Status ended = communicator.finalize();
  if (!ended.ok() || !communicator.device() || !communicator.options().blocking) return ended;
  communicator.device()->drain(communicator);
  return communicator.failed() ? communicator.failure() : Status();
}

Status destroy(Handle handle) {
  if (forget_inherited(handle)) return {};
  const std::shared_ptr<Communicator> communicator = remove(handle);
  if (!communicator) return error(Code::kInvalidArgument, "not a communicator, or destroyed already");
  communicator->stop_initialising();
  if (communicator->device()) communicator->device()->finish();
  communicator->leave();
  bury(nullptr);
  return {};
}

Status abort(Handle handle) {
  if (forget_inherited(handle)) return {};
  const std::shared_ptr<Communicator> communicator = remove(handle);
  if (!communicator) return error(Code::kInvalidArgument, "not a communicator, or destroyed already");
  if (!communicator->abort_now()) {
    new std::shared_ptr<Communicator>(communicator);  // a thread is still inside: better a leak than a crash
    return error(Code::kSystem,
                 "ncclCommAbort: a call of this communicator did not come back within 10 s; its memory stays");
  }
  communicator->leave();
  if (communicator->device()) communicator->device()->close();
  bury(communicator);
  return {};
}

namespace {

/// Of a communicator that another thread may end meanwhile. nullptr: it has.
class Revocation {
 public:
  explicit Revocation(Handle handle) {
    const Registry registry;
    communicator_ = registry.share(handle);
    if (communicator_) communicator_->begin_revocation();
  }
  ~Revocation() {
    if (communicator_) communicator_->end_revocation();
  }
  Revocation(const Revocation&) = delete;
  Revocation& operator=(const Revocation&) = delete;
  Communicator* communicator() const { return communicator_.get(); }

 private:
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace

Status revoke(Handle handle) {
  const Revocation revocation(handle);
  if (!revocation.communicator()) return no_communicator(handle);
  Communicator& communicator = *revocation.communicator();
  if (!communicator.is_initialised()) return communicator.not_ready();
  communicator.set_revoked();
  if (communicator.end_calls(fmt::format("rank {} called ncclCommRevoke", communicator.rank()))) return {};
  return error(Code::kSystem, "ncclCommRevoke: a call of this communicator did not come back within 10 s");
}

Code async_error(Communicator& communicator) {
  Code code = communicator.async_state();
  const auto ipc = code == Code::kSuccess && communicator.device() ? communicator.device()->ipc() : nullptr;
  if (ipc) {
    ipc->watch().look_at_kernels();
    code = communicator.async_state();
  }
  if (code != Code::kSuccess && code != Code::kInProgress) set_last_error(&communicator, communicator.async_message());
  return code;
}

int rank_of(const Communicator& communicator) { return communicator.rank(); }
int size_of(const Communicator& communicator) { return communicator.ranks(); }
Status check_place(Communicator& communicator) {
  return communicator.has_place() ? Status() : Status(communicator.not_ready());
}
Status check_made(Communicator& communicator) {
  return communicator.is_initialised() ? Status() : Status(communicator.not_ready());
}

}  // namespace tutti::comm
