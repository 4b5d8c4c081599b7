#include "comm/device_staged.h"

#include "comm/batch.h"
#include "comm/device_messages.h"
#include "comm/device_segment.h"
#include "comm/device_teams.h"
#include "comm/device_work.h"
#include "comm/quiet_thread.h"
#include "cuda/driver_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

bool has_reached(std::uint32_t* word, std::uint32_t number) {
  const std::uint32_t now = std::atomic_ref(*word).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(now - number) >= 0;
}

/// Never back: what could not be handed to the thread is through before what it is at.
void reach(std::uint32_t* word, std::uint32_t number) {
  const std::atomic_ref now(*word);
  std::uint32_t found = now.load(std::memory_order_relaxed);
  while (static_cast<std::int32_t>(number - found) > 0 &&
         !now.compare_exchange_weak(found, number, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace

/// A communicator's ranks in this process: what those leave that have failed, until the last one ends its thread.
struct StagedFamily {
  std::mutex mutex;
  int ranks = 0;
  std::list<StagedResources> left;

  void enter() {
    const std::lock_guard lock(mutex);
    ++ranks;
  }
  /// What may go now, and before: of the last one to leave, what all others left, too.
  std::list<StagedResources> leave(std::list<StagedResources> own, bool stays) {
    std::list<StagedResources> free;
    const std::lock_guard lock(mutex);
    std::list<StagedResources>& to = stays ? left : free;
    to.splice(to.end(), own);
    if (--ranks == 0) free.splice(free.end(), left);
    return free;
  }

  /// The ranks that name the same control segment get the same one.
  static std::shared_ptr<StagedFamily> of(const Control& control) {
    static std::mutex mutex;
    static auto* const families = new std::map<const void*, std::weak_ptr<StagedFamily>>;
    const std::lock_guard lock(mutex);
    std::erase_if(*families, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<StagedFamily>& place = (*families)[control.abort_word()];
    if (auto known = place.lock()) return known;
    auto made = std::make_shared<StagedFamily>();
    place = made;
    return made;
  }
};

void CapturedCalls::replay(void* round) {
  const Round& now = *static_cast<const Round*>(round);
  std::uint32_t* const done = now.calls->resources.done();
  if (now.number == 1) std::atomic_ref(*done).store(0, std::memory_order_relaxed);
  const std::lock_guard lock(now.calls->gate->mutex);
  StagedRank* const rank = now.calls->gate->rank;
  if (!rank || !rank->post_replay(now)) reach(done, now.number);
}

Result<std::shared_ptr<StagedRank>> StagedRank::create(Communicator& communicator,
                                                       std::shared_ptr<cuda::Device> device) {
  let_go_of_remains(device->facts().ordinal);
  release_graph_memory(device->facts().ordinal);
  TUTTI_TRY_ASSIGN(StagedResources resources, StagedResources::create(device));
  TUTTI_TRY_ASSIGN(DeviceOrder order, DeviceOrder::make(device));
  return std::shared_ptr<StagedRank>(
      new StagedRank(communicator, std::move(device), std::move(resources), std::move(order)));
}

StagedRank::StagedRank(Communicator& communicator, std::shared_ptr<cuda::Device> device, StagedResources resources,
                       DeviceOrder order)
    : comm_(communicator),
      device_(std::move(device)),
      shares_gpu_(processes_share_gpus(communicator.members())),
      family_(StagedFamily::of(communicator.members().control)),
      gate_(std::make_shared<StagedGate>()),
      order_(std::make_shared<DeviceOrder>(std::move(order))) {
  resources_.push_back(std::move(resources));
  gate_->rank = this;
  family_->enter();
}

StagedRank::~StagedRank() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  news_.notify_one();
  if (thread_.joinable()) thread_.join();
  {
    // In order: what a replay says of itself once it finds no rank comes after what it has posted.
    const std::lock_guard lock(gate_->mutex);
    for (const Work& late : replays_) finish(late);
    gate_->rank = nullptr;
  }
  const int device = device_->facts().ordinal;
  let_go(family_->leave(std::move(resources_), comm_.failed()), device);
  let_go_of_remains(device);
  release_graph_memory(device);
}

Result<std::shared_ptr<CapturedCalls>> StagedRank::capture(const cuda::Capture& into) {
  if (auto known = captured_.lock(); known && capture_id_ == into.id) return known;
  TUTTI_TRY_ASSIGN(StagedResources resources, StagedResources::create(device_));
  auto made = std::make_shared<CapturedCalls>(CapturedCalls{gate_, order_, std::move(resources), {}});
  TUTTI_TRY(cuda::keep_for_graph(into, made));
  capture_id_ = into.id;
  captured_ = made;
  return made;
}

Status StagedRank::start() {
  if (thread_.joinable()) return {};
  TUTTI_TRY_ASSIGN(thread_, start_quiet_thread("tutti-staged", [this] { run(); }));
  return {};
}

void StagedRank::post(std::list<Work> one) {
  Work& work = one.front();
  {
    const std::lock_guard lock(mutex_);
    if (work.is_first) work.ticket = comm_.take_ticket();
    auto& queue = work.replay ? replays_ : queue_;
    queue.splice(queue.end(), one);
  }
  news_.notify_one();
}

void StagedRank::forget_capture() {
  if (const auto captured = captured_.lock()) captured->broke_off = true;
  captured_.reset();
}

bool StagedRank::post_replay(const CapturedCalls::Round& round) {
  // The others would wait for what is missing, until they lose patience.
  if (round.calls->broke_off) {
    comm_.fail(Code::kInvalidUsage, comm_.rank(),
               "a graph was launched in which a call is not whole: it had failed when it was captured");
    return false;
  }
  std::list<Work> one;
  survive([&] {
    one.push_back({.parts = round.parts,
                   .memory = round.memory,
                   .number = round.number,
                   .replay = round.calls,
                   .done = round.calls->resources.done(),
                   .is_last = round.is_last,
                   .binds = round.binds});
  });
  if (one.empty()) return false;
  post(std::move(one));
  return true;
}

/// What was lost for want of memory others may wait for.
template <class Act>
void StagedRank::survive(const Act& act) {
  try {
    act();
  } catch (const std::exception&) {
    comm_.fail(Code::kSystem, comm_.rank(), "a call broke off for want of memory");
  }
}

void StagedRank::run() {
  if (comm_.members().mpi_sends.are_on) survive([this] { prepare_for_messages(comm_, *device_); });
  bool in_call = false;  // has its ticket; more of it comes, also after a failure
  for (;;) {
    Work work;
    bool replays = false;
    bool begins = false;  // waits for its turn
    bool ends = false;    // and gives it to the next one
    {
      std::unique_lock lock(mutex_);
      // After a failure a call's first rounds do not wait for what its stream comes to before it: a replay that holds the stream, which is full,
      // and so the rest of the call.
      const auto may_replay = [&] { return (!in_call || comm_.failed()) && !replays_.empty(); };
      news_.wait(lock, [&] { return ends_ || !queue_.empty() || may_replay(); });
      if (ends_ && queue_.empty()) return;
      replays = queue_.empty();
      if (replays) {
        begins = ends = !in_call;
        if (begins) work.ticket = comm_.take_ticket();
      } else {
        work = std::move(queue_.front());
        queue_.pop_front();
        begins = work.is_first;
        ends = work.is_last;
        in_call = !ends;
      }
    }
    executor::Backoff backoff(true);
    while (begins && !comm_.is_turn(work.ticket)) backoff.wait();
    survive([&] {
      if (replays) return run_replay();
      if (!work.parts.empty() && wait_until_ready(work)) run_calls(work);
    });
    if (!replays) finish(work);
    if (ends) comm_.complete_ticket();
  }
}

void StagedRank::finish(const Work& work) {
  const cuda::DriverUse use;
  if (use.is_there()) reach(work.done, work.number);
}

bool StagedRank::may_wait(executor::Backoff& backoff, Clock::time_point& since, const char* what) {
  if (comm_.failed() || is_ending()) return false;
  // A team's streams wait for other ranks before they come to its calls. What is before the whole call, the communicator it works for sees.
  const double limit = comm_.options().is_team ? 0 : comm_.members().control.settings().timeout_s;
  if (limit <= 0 || !backoff.is_slow()) return true;
  // The call before is on its way by teams, which have their own patience; on a rank without a share they know nothing of it.
  const DeviceTeams* const teams = comm_.teams();
  if (teams && (teams->across() == nullptr || !teams->is_idle())) since = Clock::now();
  if (std::chrono::duration<double>(Clock::now() - since).count() <= limit) return true;
  comm_.fail(Code::kSystem, comm_.rank(),
             fmt::format("rank {} waited {} s for its own stream, which has not come to {} (TUTTI_TIMEOUT_S): work "
                         "before it goes on, or its GPU has failed",
                         comm_.rank(), limit, what));
  return false;
}

/// False: the communicator has failed. A replay may be what the stream comes to before this call.
bool StagedRank::wait_until_ready(const Work& work) {
  executor::Backoff backoff(comm_.crowded());
  auto since = Clock::now();
  for (;;) {
    {
      const cuda::DriverUse use;
      if (!use.is_there()) return false;
      if (has_reached(resources().ready(), work.number)) return true;
    }
    if (!may_wait(backoff, since, "the call")) return false;
    if (work.is_first && has_replays()) run_replay();
    backoff.wait();
  }
}

bool StagedRank::has_replays() {
  const std::lock_guard lock(mutex_);
  return !replays_.empty();
}

bool StagedRank::is_ending() {
  const std::lock_guard lock(mutex_);
  return ends_;
}

/// nullptr: of any.
std::optional<StagedRank::Work> StagedRank::next_of(const CapturedCalls* replay) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(replays_, [&](const Work& w) { return !replay || w.replay == replay; });
  if (found == replays_.end()) return {};
  Work work = std::move(*found);
  replays_.erase(found);
  return work;
}

/// All rounds of one, as nothing may come between them. After a failure they come by themselves.
void StagedRank::run_replay() {
  executor::Backoff backoff(comm_.crowded());
  const CapturedCalls* replay = nullptr;
  auto since = Clock::now();
  for (;;) {
    const std::optional<Work> work = next_of(replay);
    if (!work) {
      if (!may_wait(backoff, since, "the rest of a graph's call")) return;
      backoff.wait();
      continue;
    }
    if (!comm_.failed()) survive([&] { run_calls(*work); });
    finish(*work);
    if (work->is_last) return;
    replay = work->replay;
    backoff.reset();
  }
}

void StagedRank::run_calls(const Work& work) {
  const cuda::DriverUse use;
  if (!use.is_there()) return;
  Batch batch(comm_, Batch::Turn::kStays);
  batch.begin();
  for (const StagedPart& part : work.parts) {
    CallArgs args = part.args;
    if (args.scale_is_address) std::memcpy(&args.scale, reinterpret_cast<const void*>(args.scale), size_of(args.type));
    args.scale_is_address = false;
    batch.add(args);
  }
  executor::Task* task = &batch;
  executor::run_tasks({&task, 1}, comm_.yields());
  if (batch.status().ok()) return;
  const Error& failure = batch.status().error();
  comm_.keep_async(failure);
  // What MPI may still touch stays.
  for (const std::weak_ptr<void>& one : work.memory) {
    auto memory = comm_.members().mpi_sends.are_left ? one.lock() : nullptr;
    if (memory) new std::shared_ptr<void>(std::move(memory));
  }
  // The others may not know what becomes of the rest.
  if (!work.is_last || work.binds) comm_.fail(failure.code, comm_.rank(), failure.message);
}

}  // namespace tutti::comm
