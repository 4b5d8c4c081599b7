#include "comm/device_staged.h"

#include "comm/batch.h"
#include "comm/quiet_thread.h"
#include "executor/backoff.h"
#include "transport/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the end of a communicator waits for streams to get through.
constexpr auto kPassTime = std::chrono::seconds(1);
constexpr std::size_t kLeastSlotBytes = std::size_t{64} << 10;
/// The two words lie in lines of their own.
constexpr std::size_t kWordsBytes = 4096;
constexpr std::size_t kDoneAt = 128;

/// What ended while streams had not passed it, until they have.
struct Remains {
  std::mutex mutex;
  std::vector<StagedResources> all;
};
Remains& remains() {
  static auto* made = new Remains;
  return *made;
}

void clear_remains() {
  const std::lock_guard lock(remains().mutex);
  std::erase_if(remains().all, [](const StagedResources& one) { return one.are_through(); });
}

void leave_behind(StagedResources resources) {
  const std::lock_guard lock(remains().mutex);
  remains().all.push_back(std::move(resources));
}

bool has_reached(std::uint32_t* word, std::uint32_t number) {
  const std::uint32_t now = std::atomic_ref(*word).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(now - number) >= 0;
}

}  // namespace

Result<std::unique_ptr<StagingMemory>> StagingMemory::allocate(const std::shared_ptr<cuda::Device>& device,
                                                               std::size_t bytes) {
  std::unique_ptr<StagingMemory> memory(new StagingMemory);
  TUTTI_TRY_ASSIGN(memory->shared_, transport::shared_allocate(bytes));
  Result<cuda::RegisteredMemory> registered = cuda::RegisteredMemory::add(device, memory->shared_, bytes);
  if (registered.ok()) {
    memory->registered_ = std::move(registered).value();
    memory->data_ = static_cast<std::byte*>(memory->shared_);
    return memory;
  }
  // Some machines pin only what the driver itself has allocated.
  TUTTI_TRY_ASSIGN(memory->pinned_, cuda::PinnedMemory::allocate(device, bytes));
  memory->data_ = memory->pinned_.data();
  return memory;
}

StagingMemory::~StagingMemory() {
  registered_ = {};
  if (shared_) (void)transport::shared_free(shared_);
}

bool StagedResources::are_through() const {
  if (!is_used) return true;
  if (is_lost) return false;
  const Result<bool> complete = passed.is_complete();
  return complete.ok() && complete.value();
}

Result<std::shared_ptr<StagedRank>> StagedRank::create(Communicator& communicator,
                                                       std::shared_ptr<cuda::Device> device) {
  clear_remains();
  StagedResources resources;
  TUTTI_TRY_ASSIGN(resources.words, cuda::PinnedMemory::allocate(device, kWordsBytes));
  TUTTI_TRY_ASSIGN(resources.passed, cuda::Event::create(device));
  resources.device = std::move(device);
  return std::shared_ptr<StagedRank>(new StagedRank(communicator, std::move(resources)));
}

StagedRank::StagedRank(Communicator& communicator, StagedResources resources)
    : comm_(communicator), resources_(std::move(resources)) {}

StagedRank::~StagedRank() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  news_.notify_one();
  if (thread_.joinable()) thread_.join();
  executor::Backoff backoff(true);
  const auto start = Clock::now();
  while (!resources_.are_through()) {
    if (resources_.is_lost || Clock::now() - start > kPassTime) {
      leave_behind(std::move(resources_));
      break;
    }
    backoff.wait();
  }
  clear_remains();
}

std::uint32_t* StagedRank::ready() const { return reinterpret_cast<std::uint32_t*>(resources_.words.data()); }
std::uint32_t* StagedRank::done() const { return reinterpret_cast<std::uint32_t*>(resources_.words.data() + kDoneAt); }

Status StagedRank::start() {
  if (thread_.joinable()) return {};
  TUTTI_TRY_ASSIGN(thread_, start_quiet_thread("tutti-staged", [this] { run(); }));
  return {};
}

Result<std::byte*> StagedRank::place(std::uint32_t number, std::size_t bytes) {
  if (!resources_.memory || bytes > slot_bytes_) {
    const std::size_t wanted = std::bit_ceil(std::max(bytes, kLeastSlotBytes));
    TUTTI_TRY_ASSIGN(auto memory, StagingMemory::allocate(resources_.device, kDepth * wanted));
    if (resources_.memory) resources_.outgrown.push_back(std::move(resources_.memory));
    resources_.memory = std::move(memory);
    slot_bytes_ = wanted;
  }
  return resources_.memory->data() + number % kDepth * slot_bytes_;
}

void StagedRank::post(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  news_.notify_one();
}

void StagedRank::run() {
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      news_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    run(work);
  }
}

void StagedRank::run(const Work& work) {
  executor::Backoff backoff(true);
  while (work.ticket && !comm_.is_turn(*work.ticket)) backoff.wait();
  if (!work.parts.empty() && wait_until_ready(work.number)) {
    try {
      run_calls(work);
    } catch (const std::exception& failure) {
      comm_.fail(Code::kSystem, comm_.rank(), fmt::format("a call broke off: {}", failure.what()));
    }
  }
  std::atomic_ref(*done()).store(work.number, std::memory_order_release);
  if (work.is_last) comm_.complete_ticket();
}

/// False: the communicator has failed.
bool StagedRank::wait_until_ready(std::uint32_t number) {
  executor::Backoff backoff(comm_.crowded());
  while (!has_reached(ready(), number)) {
    if (comm_.failed()) return false;
    backoff.wait();
  }
  return true;
}

void StagedRank::run_calls(const Work& work) {
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
  // The others may not know what becomes of the rest.
  if (!work.is_last) comm_.fail(failure.code, comm_.rank(), failure.message);
}

}  // namespace tutti::comm
