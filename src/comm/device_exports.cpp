#include "comm/device_exports.h"

#include "base/config.h"
#include "base/log.h"
#include "comm/reach.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <list>
#include <new>

namespace tutti::comm {

/// Memory of ncclMemAlloc in a place of a communicator's, which may have ended since.
struct DeviceExports::Loan {
  std::uint64_t allocation = 0;
  Control control;
  std::vector<std::int32_t> pids;  ///< by rank
  Place* place = nullptr;
  std::uint64_t number = 0;

  bool is_held() const {
    const std::uint64_t now = std::atomic_ref(place->number).load(std::memory_order_seq_cst);
    if (now != 0 && now != number) return false;  // the place is another allocation's
    const std::uint32_t holders = std::atomic_ref(place->holders).load(std::memory_order_seq_cst);
    for (std::size_t r = 0; r < pids.size(); ++r) {
      if ((holders >> r & 1) != 0 && (kill(pids[r], 0) == 0 || errno != ESRCH)) return true;
    }
    return false;
  }
};

/// What all communicators of this process have in common. Never destroyed: a process ends without.
struct DeviceExports::Shared {
  struct Retired {
    cuda::UserMemory memory;
    std::list<Loan> loans;

    bool is_held() const { return std::ranges::any_of(loans, &Loan::is_held); }
  };
  std::mutex mutex;
  std::vector<std::weak_ptr<DeviceExports>> exports;
  std::list<Loan> loans;
  std::list<Retired> retired;
  int freeing = 0;  ///< threads that have taken some out, and free it

  static Shared& get() {
    static auto* made = new Shared;
    return *made;
  }
  /// Whose devices a thread that works on this one may wait for.
  std::vector<std::shared_ptr<DeviceExports>> alive_for(int device) {
    std::vector<std::shared_ptr<DeviceExports>> found;
    std::vector<std::shared_ptr<DeviceExports>> others;  // ends after the lock: it may have the last of one
    const std::lock_guard lock(mutex);
    std::erase_if(exports, [&](const std::weak_ptr<DeviceExports>& one) {
      if (auto held = one.lock()) (may_free(held->device(), device) ? found : others).push_back(std::move(held));
      return one.expired();
    });
    return found;
  }
  /// One.
  void lend(std::list<Loan> loan) {
    const std::lock_guard lock(mutex);
    std::erase_if(loans, [&](const Loan& one) { return one.place == loan.front().place; });
    loans.splice(loans.end(), loan);
  }
  bool is_lent(std::uint64_t allocation) {
    const std::lock_guard lock(mutex);
    return std::ranges::any_of(loans, [&](const Loan& one) { return one.allocation == allocation; });
  }
  /// Those of memory that is about to be freed.
  std::list<Loan> take_loans(std::uint64_t allocation) {
    std::list<Loan> taken;
    const std::lock_guard lock(mutex);
    for (auto one = loans.begin(); one != loans.end();) {
      const auto its = one++;
      if (its->allocation == allocation) taken.splice(taken.end(), loans, its);
    }
    return taken;
  }
};

DeviceExports::DeviceExports(const Control& control, const Reach& reach, const DeviceSegment& segment,
                             std::shared_ptr<cuda::Device> device, DeviceMail& mail, const DeviceOrder& order, int rank,
                             std::vector<bool> works)
    : control_(control),
      boards_(reinterpret_cast<Board*>(control.exports().data()), static_cast<std::size_t>(control.ranks())),
      segment_(segment),
      device_(std::move(device)),
      mail_(mail),
      order_(order),
      rank_(rank),
      works_(std::move(works)),
      opened_at_(boards_.size()),
      looked_at_(boards_.size()),
      imports_(boards_.size()) {
  for (int r = 0; r < control.ranks(); ++r) {
    pids_.push_back(reach.pid(r));
    same_process_.push_back(reach.same_process(r));
  }
}

std::shared_ptr<DeviceExports> DeviceExports::make(const Control& control, const Reach& reach,
                                                   const DeviceSegment& segment, std::shared_ptr<cuda::Device> device,
                                                   DeviceMail& mail, const DeviceOrder& order, int rank,
                                                   std::vector<bool> works) {
  std::shared_ptr<DeviceExports> made(
      new DeviceExports(control, reach, segment, std::move(device), mail, order, rank, std::move(works)));
  Shared& shared = Shared::get();
  const std::lock_guard lock(shared.mutex);
  shared.exports.push_back(made);
  return made;
}

void DeviceExports::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    for (const Own& own : own_) take_back(own);
    own_.clear();
    for (int r = 0; r < control_.ranks(); ++r) {
      auto& imports = imports_[static_cast<std::size_t>(r)];
      for (std::size_t place = 0; place < kPlaces; ++place) {
        if (imports[place].number == 0) continue;
        imports[place] = {};
        std::atomic_ref(board(r).places[place].holders).fetch_and(~(1u << rank_), std::memory_order_seq_cst);
      }
    }
  }
  tidy(device());
}

void DeviceExports::add(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<std::uint64_t>(begin);
  registered_.insert(std::ranges::upper_bound(registered_, at, {}, &Range::begin), {at, at + bytes});
}

void DeviceExports::end(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<std::uint64_t>(begin);
  const auto found = std::ranges::find(registered_, Range{at, at + bytes});
  if (found != registered_.end()) registered_.erase(found);
}

void DeviceExports::remove(const void* begin, std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<std::uint64_t>(begin);
    const Range gone{at, at + bytes};
    if (config().export_buffers) return;
    std::erase_if(own_, [&](const Own& own) {
      const Range whole{own.extent.begin(), own.extent.end()};
      const auto overlaps = [&whole](const Range& range) { return range.begin < whole.end && whole.begin < range.end; };
      const auto* const begins = reinterpret_cast<const void*>(whole.begin);
      if (!overlaps(gone) || std::ranges::any_of(registered_, overlaps) || cuda::is_for_user(begins)) return false;
      take_back(own);
      return true;
    });
  }
  tidy(device());
}

std::optional<DeviceExports::Range> DeviceExports::registered_around(const Range& range) const {
  std::optional<Range> joined;
  for (const Range& one : registered_) {
    if (joined && one.begin <= joined->end) {
      joined->end = std::max(joined->end, one.end);
      continue;
    }
    if (joined && range.begin < joined->end) break;
    joined = one;
  }
  if (!joined || range.begin < joined->begin || joined->end < range.end) return std::nullopt;
  return joined;
}

Result<std::optional<DeviceExports::Range>> DeviceExports::may_export(const Range& range) const {
  if (const auto registered = registered_around(range)) return registered;
  if (config().export_buffers) return std::optional(range);
  const auto memory = cuda::user_range(reinterpret_cast<const void*>(range.begin));
  if (!memory || memory->begin + memory->bytes < range.end) return std::optional<Range>();
  return std::optional(Range{memory->begin, memory->begin + memory->bytes});
}

Result<std::optional<protocol::BufferReference>> DeviceExports::find(const void* address, std::size_t bytes) {
  std::optional<protocol::BufferReference> none;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(mutex_);
  const Range wanted{at, at + bytes};
  TUTTI_TRY_ASSIGN(auto own, find_own(wanted));
  if (!own) {
    TUTTI_TRY_ASSIGN(const auto allowed, may_export(wanted));
    if (!allowed) return none;
    TUTTI_TRY_ASSIGN(const bool is_unshared, unshared_.is_known(wanted));
    if (is_unshared) return none;
    own_.reserve(own_.size() + 1);
    TUTTI_TRY_ASSIGN(own, export_allocation(wanted, *allowed));
    if (!own) return none;
    own_.push_back(*own);
  }
  const std::uint64_t name = DeviceSegment::export_mapping(own->place, board(rank_).places[own->place].number);
  return std::optional(protocol::BufferReference{name, at - own->extent.begin()});
}

/// One whose memory below the buffer is another by now may be in use where it is not.
Result<std::optional<DeviceExports::Own>> DeviceExports::find_own(const Range& wanted) {
  const std::uint64_t bytes = wanted.end - wanted.begin;
  for (auto own = own_.begin(); own != own_.end();) {
    if (own->extent.holds(wanted.begin, bytes)) {
      TUTTI_TRY_ASSIGN(const bool is_there, own->extent.is_there(wanted.begin, bytes));
      if (is_there) return std::optional(*own);
      TUTTI_TRY_ASSIGN(const bool is_any_there, own->extent.is_any_there());
      if (!is_any_there) {
        take_back(*own);
        own = own_.erase(own);
        continue;
      }
    }
    ++own;
  }
  return std::optional<Own>();
}

Result<std::optional<DeviceExports::Own>> DeviceExports::export_allocation(const Range& wanted, const Range& allowed) {
  std::optional<Own> none;
  const auto* const address = reinterpret_cast<const void*>(wanted.begin);
  TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(address));
  if (facts.kind != cuda::MemoryKind::kDevice) return none;
  TUTTI_TRY(take_back_freed());
  const std::size_t at = free_place();
  if (at == kNoPlace) return none;
  Board& board = this->board(rank_);
  Place& place = board.places[at];
  const Result<std::optional<Own>> shared = share(wanted, allowed, at);
  if (shared.ok() && shared.value()) {
    std::list<Loan> loan;  // before others may have the memory, as there may be no room for it
    const std::uint64_t begin = shared.value()->extent.begin();
    if (cuda::is_for_user(reinterpret_cast<const void*>(begin)))
      loan.push_back({begin, control_, pids_, &place, exported_});
    std::atomic_ref(place.number).store(exported_, std::memory_order_seq_cst);
    // A loan whose place has another number is over.
    if (!loan.empty()) Shared::get().lend(std::move(loan));
  }
  // What was sent in vain is wanted no more.
  std::atomic_ref(board.exported).store(exported_, std::memory_order_seq_cst);
  std::atomic_ref(board.changes).fetch_add(1, std::memory_order_seq_cst);
  return shared;
}

Result<std::optional<DeviceExports::Own>> DeviceExports::share(const Range& wanted, const Range& allowed,
                                                               std::size_t at) {
  TUTTI_TRY_ASSIGN(const cuda::AddressRange whole,
                   cuda::address_range(*device_, reinterpret_cast<const void*>(wanted.begin)));
  const std::uint64_t end = whole.begin + whole.bytes;
  TUTTI_TRY_ASSIGN(const DeviceAllocation allocation, DeviceAllocation::look_up(whole.begin, end));
  Place& place = board(rank_).places[at];
  place.allocation = whole.begin;
  Own own{{}, at};
  const auto* const begin = reinterpret_cast<const void*>(whole.begin);
  TUTTI_TRY_ASSIGN(const cuda::Sharing sharing, cuda::sharing_of(begin));
  const bool is_one = wanted.end <= end;
  std::string why_no_handle = "it lies in several allocations";
  if (is_one) {
    const Result<cuda::MemoryHandle> handle = cuda::export_memory(begin, sharing, device_->context());
    if (handle.ok()) {
      ++exported_;
      std::memcpy(place.handle, &handle.value(), sizeof place.handle);
      place.mailed = 0;
      own.extent.pieces = {allocation};
      return std::optional(own);
    }
    why_no_handle = handle.error().message;
  }
  Result<cuda::SharedPieces> pieces = send(allowed, sharing);
  // All that is registered around it may be more than can be sent, or of several kinds.
  if (!pieces.ok() && allowed != wanted) pieces = send(wanted, sharing);
  if (!pieces.ok()) {
    log_unshared(fmt::format("the memory of rank {} at {:#x}", rank_, wanted.begin), why_no_handle, pieces.error());
    const bool lacks_resources = pieces.error().code == Code::kSystem;
    unshared_.keep(is_one ? Range{whole.begin, end} : wanted, allocation, is_one, lacks_resources);
    return std::optional<Own>();
  }
  TUTTI_TRY_ASSIGN(own.extent, DeviceExtent::look_up(pieces.value()));
  place.allocation = own.extent.begin();
  place.mailed = own.extent.end() - own.extent.begin();
  return std::optional(own);
}

Result<cuda::SharedPieces> DeviceExports::send(const Range& range, cuda::Sharing sharing) {
  std::vector<const DeviceCard*> workers;
  for (std::size_t r = 0; r < works_.size(); ++r) {
    if (works_[r] && !same_process_[r]) workers.push_back(&control_.device_card(static_cast<int>(r)));
  }
  return DeviceMail::share(*device_, reinterpret_cast<const void*>(range.begin), range.end - range.begin, sharing,
                           workers, {MailOf::kExport, rank_, ++exported_});
}

Status DeviceExports::take_back_freed() {
  for (auto own = own_.begin(); own != own_.end();) {
    TUTTI_TRY_ASSIGN(const bool is_any_there, own->extent.is_any_there());
    if (!is_any_there) take_back(*own);
    own = is_any_there ? own + 1 : own_.erase(own);
  }
  return {};
}

std::size_t DeviceExports::free_place() const {
  const Board& own = board(rank_);
  for (std::size_t i = 0; i < kPlaces; ++i) {
    Place& place = const_cast<Place&>(own.places[i]);
    if (place.number == 0 && std::atomic_ref(place.holders).load(std::memory_order_seq_cst) == 0) return i;
  }
  return kNoPlace;
}

void DeviceExports::take_back(const Own& own) {
  std::atomic_ref(board(rank_).places[own.place].number).store(0, std::memory_order_seq_cst);
  std::atomic_ref(board(rank_).changes).fetch_add(1, std::memory_order_seq_cst);
}

Status DeviceExports::finish(const void* memory) {
  using Clock = std::chrono::steady_clock;
  const double limit = control_.settings().timeout_s;
  const auto since = Clock::now();
  const auto is_over = [](Clock::time_point begin, double seconds) {
    return Clock::now() - begin > std::chrono::duration<double>(seconds);
  };
  std::optional<Clock::time_point> failed_at;
  executor::Backoff backoff(true);
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      const auto begin = reinterpret_cast<std::uint64_t>(memory);
      const bool uses = std::ranges::any_of(own_, [&](const Own& own) { return own.extent.begin() == begin; });
      if (!uses || is_closed_ || order_.is_through()) return {};
    }
    if (!failed_at && executor::load_acquire(control_.abort_word()) != 0) failed_at = Clock::now();
    if (failed_at && is_over(*failed_at, DeviceWork::kAbortGraceS)) {
      return error(Code::kInvalidUsage,
                   fmt::format("{} is not freed: the communicator has failed, and the stream of rank {} has not come "
                               "to calls that may use it; free it when the stream has",
                               fmt::ptr(memory), rank_));
    }
    if (limit > 0 && is_over(since, limit)) {
      return error(Code::kInvalidUsage,
                   fmt::format("{} is not freed: calls of rank {} that may use it have not ended within {} s "
                               "(TUTTI_TIMEOUT_S)",
                               fmt::ptr(memory), rank_, limit));
    }
    backoff.wait();
  }
}

void DeviceExports::take_back(std::uint64_t allocation) {
  const std::lock_guard lock(mutex_);
  std::erase_if(own_, [&](const Own& own) {
    if (own.extent.begin() != allocation) return false;
    take_back(own);
    return true;
  });
}

Status DeviceExports::link() {
  if (!works() || !have_changed(opened_at_)) return {};
  // First what others have taken back, in all communicators: the driver may have given new memory the old one's handle, which is open once
  // for a device.
  for (const auto& one : Shared::get().alive_for(device())) (void)one->look(false);
  return look(true);
}

Status DeviceExports::free_memory(void* memory) {
  TUTTI_TRY_ASSIGN(cuda::UserMemory taken, cuda::UserMemory::take(memory));
  Shared& shared = Shared::get();
  const auto allocation = reinterpret_cast<std::uint64_t>(memory);
  if (!shared.is_lent(allocation)) return taken.free();
  const int device = taken.device();
  const auto communicators = shared.alive_for(device);
  for (const auto& one : communicators) TUTTI_TRY(one->finish(memory));
  for (const auto& one : communicators) one->take_back(allocation);
  std::list<Shared::Retired> retired;  // before the loans, which must not be lost: others may have the memory open
  retired.push_back({std::move(taken), {}});
  retired.front().loans = shared.take_loans(allocation);
  tidy(device);
  if (!retired.front().is_held()) return retired.front().memory.free();
  const std::lock_guard lock(shared.mutex);
  shared.retired.splice(shared.retired.end(), retired);
  return {};
}

void DeviceExports::tidy(int device) try {
  Shared& shared = Shared::get();
  for (const auto& one : shared.alive_for(device)) (void)one->look(false);
  std::list<Shared::Retired> free;
  {
    const std::lock_guard lock(shared.mutex);
    for (auto one = shared.retired.begin(); one != shared.retired.end();) {
      const auto its = one++;
      if (may_free(its->memory.device(), device) && !its->is_held()) free.splice(free.end(), shared.retired, its);
    }
    ++shared.freeing;
    std::erase_if(shared.loans, [](const Loan& one) {
      return std::atomic_ref(one.place->number).load(std::memory_order_seq_cst) != one.number && !one.is_held();
    });
  }
  for (auto one = free.begin(); one != free.end();) {
    const auto its = one++;
    try {
      (void)its->memory.free();
    } catch (const std::bad_alloc&) {  // for the words of what has failed
    }
    if (its->memory.is_gone()) free.erase(its);
  }
  const std::lock_guard lock(shared.mutex);
  shared.retired.splice(shared.retired.end(), free);  // what could not even be tried
  --shared.freeing;
} catch (const std::bad_alloc&) {
  // The next one does it.
}

bool DeviceExports::keeps_memory(int device) {
  Shared& shared = Shared::get();
  const std::lock_guard lock(shared.mutex);
  if (shared.freeing != 0) return true;
  return std::ranges::any_of(shared.retired, [&](const Shared::Retired& one) { return one.memory.device() == device; });
}

}  // namespace tutti::comm
