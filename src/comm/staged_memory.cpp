#include "comm/staged_memory.h"

#include "comm/device_work.h"
#include "executor/backoff.h"
#include "transport/shared_memory.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <mutex>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the end of a communicator waits for streams to get through.
constexpr auto kPassTime = std::chrono::seconds(1);
constexpr std::size_t kLeastSlotBytes = std::size_t{64} << 10;
/// The two words lie in lines of their own.
constexpr std::size_t kWordsBytes = 4096;
constexpr std::size_t kDoneAt = 128;

struct Remains {
  std::mutex mutex;
  std::list<StagedResources> all;
};
Remains& remains() {
  static auto* made = new Remains;
  return *made;
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

Result<StagedResources> StagedResources::create(std::shared_ptr<cuda::Device> device) {
  StagedResources made;
  TUTTI_TRY_ASSIGN(made.words_, cuda::PinnedMemory::allocate(device, kWordsBytes));
  TUTTI_TRY_ASSIGN(made.passed_, cuda::Event::create(device));
  made.device_ = std::move(device);
  return made;
}

std::uint32_t* StagedResources::ready() const { return reinterpret_cast<std::uint32_t*>(words_.data()); }
std::uint32_t* StagedResources::done() const { return reinterpret_cast<std::uint32_t*>(words_.data() + kDoneAt); }

Result<std::byte*> StagedResources::place(std::size_t bytes) {
  if (bytes > slot_bytes_) {
    const std::size_t wanted = std::bit_ceil(std::max(bytes, kLeastSlotBytes));
    TUTTI_TRY_ASSIGN(auto memory, StagingMemory::allocate(device_, kDepth * wanted));
    if (memory_) outgrown_.push_back(std::move(memory_));
    memory_ = std::move(memory);
    slot_bytes_ = wanted;
  }
  ++last_number_;
  return memory_ ? memory_->data() + last_number_ % kDepth * slot_bytes_ : nullptr;
}

Result<std::byte*> StagedResources::scratch(std::size_t bytes) {
  if (!scratch_ || bytes > scratch_->bytes()) {
    TUTTI_TRY_ASSIGN(auto memory, cuda::DeviceMemory::allocate(device_, std::bit_ceil(bytes)));
    if (scratch_) outgrown_scratch_.push_back(std::move(scratch_));
    scratch_ = std::make_shared<cuda::DeviceMemory>(std::move(memory));
  }
  return scratch_->data();
}

Status StagedResources::join(const std::vector<cuda::StreamHandle>& streams) {
  is_used_ = true;
  for (std::size_t i = 1; i < streams.size(); ++i) {
    TUTTI_TRY(passed_.record(streams[i]));
    TUTTI_TRY(passed_.hold(*device_, streams[0]));
  }
  return {};
}

Status StagedResources::part(const std::vector<cuda::StreamHandle>& streams) {
  TUTTI_TRY(passed_.record(streams[0]));
  for (std::size_t i = 1; i < streams.size(); ++i) TUTTI_TRY(passed_.hold(*device_, streams[i]));
  return {};
}

/// Recording it may be what has failed, once.
void StagedResources::give_up(cuda::StreamHandle stream) { is_lost_ = is_used_ && !passed_.record(stream).ok(); }

bool StagedResources::are_through() const {
  if (!is_used_) return true;
  if (is_lost_) return false;
  const Result<bool> complete = passed_.is_complete();
  return complete.ok() && complete.value();
}

void let_go(std::list<StagedResources> all, int device) {
  executor::Backoff backoff(true);
  const auto start = Clock::now();
  for (auto one = all.begin(); one != all.end();) {
    const bool may_end = may_free(one->device().facts().ordinal, device);
    if (may_end && one->are_through()) {
      one = all.erase(one);
    } else if (may_end && !one->are_lost() && Clock::now() - start < kPassTime) {
      backoff.wait();
    } else {
      ++one;
    }
  }
  const std::lock_guard lock(remains().mutex);
  remains().all.splice(remains().all.end(), all);
}

void let_go_of_remains(int device) {
  std::list<StagedResources> through;  // ends after the lock
  const std::lock_guard lock(remains().mutex);
  auto& all = remains().all;
  for (auto one = all.begin(); one != all.end();) {
    const auto its = one++;
    if (may_free(its->device().facts().ordinal, device) && its->are_through()) through.splice(through.end(), all, its);
  }
}

}  // namespace tutti::comm
