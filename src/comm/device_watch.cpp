#include "comm/device_watch.h"

#include "comm/device_rank.h"
#include "comm/quiet_thread.h"
#include "cuda/driver_use.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>

namespace tutti::comm {
namespace {

constexpr auto kLook = std::chrono::milliseconds(2);

constexpr std::uint64_t kThroughHost = std::uint64_t{1} << 26;

/// Of a stream_key(): all of that of the legacy default stream; the lowest bit of those of streams that it waits for, and they for it.
constexpr std::uint64_t kLegacy = 1;

DeviceCallNote note_of(const Signature& s, DeviceWatch::Way way) {
  const bool in_windows = way == DeviceWatch::Way::kWindows;
  DeviceCallNote note;
  note.what = std::uint64_t{DeviceWatch::fingerprint_of(s, in_windows)} << 32 |
              (way == DeviceWatch::Way::kHost ? kThroughHost : 0) | std::uint64_t{in_windows} << 25 |
              std::uint64_t{s.scaled} << 24 | static_cast<std::uint64_t>(s.op) << 16 |
              static_cast<std::uint64_t>(s.type) << 8 | static_cast<std::uint64_t>(s.collective);
  note.root = static_cast<std::uint64_t>(s.root);
  note.count = s.count;
  return note;
}

/// nullopt: it is being overwritten.
std::optional<std::string> describe(const DeviceCallNote& note) {
  const std::uint64_t what = executor::load_acquire(&note.what);
  Signature s;
  s.collective = static_cast<Collective>(what & 0xff);
  s.type = static_cast<DataType>(what >> 8 & 0xff);
  s.op = static_cast<ReduceOp>(what >> 16 & 0xff);
  s.scaled = static_cast<std::uint8_t>(what >> 24 & 1);
  const bool in_windows = (what >> 25 & 1) != 0;
  s.root = static_cast<std::int32_t>(executor::load_acquire(&note.root));
  s.count = executor::load_acquire(&note.count);
  if (DeviceWatch::fingerprint_of(s, in_windows) != what >> 32) return std::nullopt;
  return s.describe() + (in_windows ? " in windows" : "");
}

constexpr const char* kAnotherCall = "another call";

/// The call with this fingerprint (but for its lowest bit, which announcements do not have), if it is one of the rank's last. What the ranks
/// agree on is not noted.
std::string find_call(const DeviceCard& card, std::uint64_t fingerprint) {
  for (const DeviceCallNote& note : card.notes) {
    const auto what = static_cast<std::uint32_t>(executor::load_acquire(&note.what) >> 32);
    const bool is_agreed = (DeviceWatch::agreed(what) | 1) == fingerprint;
    if (!is_agreed && (what | 1) != fingerprint) continue;
    if (auto text = describe(note)) return *text + (is_agreed ? " in place" : "");
  }
  return kAnotherCall;
}

/// Where the ways are what differs: the calls themselves may be the same.
std::string describe_with_way(const DeviceCallNote& note) {
  const bool through_host = (executor::load_acquire(&note.what) & kThroughHost) != 0;
  return describe(note).value_or(kAnotherCall) + (through_host ? " through host memory" : " by kernels");
}

std::string calls_differ(const std::string& own, int rank, const std::string& theirs, int peer) {
  return fmt::format(
      "the ranks' calls differ: {} on rank {}; {} on rank {}. Every rank must make the same calls in the "
      "same order with the same arguments; what these calls were to write is undefined now",
      own, rank, theirs, peer);
}

}  // namespace

Result<std::unique_ptr<DeviceWatch>> DeviceWatch::start(Communicator& communicator, const DeviceSegment& segment,
                                                        const DeviceBells* bells) {
  std::unique_ptr<DeviceWatch> made(new DeviceWatch(communicator, segment, bells));
  made->behind_since_.resize(static_cast<std::size_t>(communicator.ranks()));
  made->stalls_.resize(static_cast<std::size_t>(communicator.ranks()));
  TUTTI_TRY_ASSIGN(made->thread_, start_quiet_thread("tutti-gpu-watch", [raw = made.get()] { raw->run(); }));
  return made;
}

DeviceWatch::~DeviceWatch() {
  if (!thread_.joinable()) return;
  leave();
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kOver;
  }
  wake_.notify_all();
  thread_.join();
}

void DeviceWatch::leave() {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kWatching) return;
  phase_ = Phase::kLeaving;
  wake_.notify_all();
  wake_.wait(lock, [this] { return phase_ != Phase::kLeaving; });
}

Status DeviceWatch::note(const Signature& signature, Way way, bool eager, std::uint64_t stream) {
  const DeviceCallNote note = note_of(signature, way);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(noting_);
    number = card_.calls;
    DeviceCallNote& place = card_.notes[number % DeviceCard::kNotes];
    executor::store_release(&place.what, note.what);
    executor::store_release(&place.root, note.root);
    executor::store_release(&place.count, note.count);
    executor::store_release(&place.stream, stream);
    if (!eager) {
      note_capture();
      return {};
    }
    // In one order with what peers write and read here: one of two sees the other's.
    std::atomic_ref(card_.calls).store(number + 1, std::memory_order_seq_cst);
  }
  if (stream != 0) TUTTI_TRY(compare_streams(number, stream));
  // Elsewhere kernels take all collectives.
  if (!comm_.device()->ways().are_mixed()) return {};
  return compare_ways(number, note);
}

namespace {

bool has_captured(DeviceCard& card) { return std::atomic_ref(card.captured).load(std::memory_order_seq_cst) != 0; }

}  // namespace

bool DeviceWatch::counts_match(int peer) const {
  return !has_captured(card_) && !has_captured(comm_.members().control.device_card(peer));
}

Status DeviceWatch::compare_ways(std::uint64_t number, const DeviceCallNote& own) const {
  for (int peer = 0; peer < comm_.ranks(); ++peer) {
    DeviceCard& card = comm_.members().control.device_card(peer);
    const std::atomic_ref calls(card.calls);
    if (peer == comm_.rank() || calls.load(std::memory_order_seq_cst) <= number) continue;
    const DeviceCallNote& theirs = card.notes[number % DeviceCard::kNotes];
    const std::uint64_t what = executor::load_acquire(&theirs.what);
    // It says so before it counts what comes behind the captured calls.
    if (((what ^ own.what) & kThroughHost) == 0 || !counts_match(peer)) continue;
    const std::string text = describe_with_way(theirs);
    // What comes so many calls later is about to take its place, or has.
    if (calls.load(std::memory_order_seq_cst) - number >= DeviceCard::kNotes) continue;
    comm_.fail(Code::kInvalidUsage, comm_.rank(), calls_differ(describe_with_way(own), comm_.rank(), text, peer));
    return comm_.failure();
  }
  return {};
}

Result<std::uint64_t> DeviceWatch::stream_key(const cuda::Device& device, cuda::StreamHandle stream) {
  TUTTI_TRY_ASSIGN(const std::uint64_t id, cuda::stream_id(device, stream));
  TUTTI_TRY_ASSIGN(const bool follows, cuda::follows_default_stream(device, stream));
  return id << 1 | (follows ? kLegacy : 0);
}

/// The one stream waits at a bell, and the other comes to where it is to ring only after that.
Status DeviceWatch::compare_streams(std::uint64_t number, std::uint64_t stream) const {
  const auto& peers = comm_.members().peers;
  const auto token_of = [&](int rank) { return peers[static_cast<std::size_t>(rank)].process_token; };
  for (int peer = 0; peer < comm_.ranks(); ++peer) {
    if (peer == comm_.rank() || token_of(peer) != token_of(comm_.rank())) continue;
    DeviceCard& card = comm_.members().control.device_card(peer);
    const std::atomic_ref calls(card.calls);
    if (card.device != card_.device || calls.load(std::memory_order_seq_cst) <= number) continue;
    const std::uint64_t theirs = executor::load_acquire(&card.notes[number % DeviceCard::kNotes].stream);
    const bool is_there = calls.load(std::memory_order_seq_cst) - number < DeviceCard::kNotes && theirs != 0;
    if (!is_there || !counts_match(peer)) continue;
    const bool one_is_legacy = (stream == kLegacy || theirs == kLegacy) && (stream & theirs & kLegacy) != 0;
    if (stream != theirs && !one_is_legacy) continue;
    comm_.fail(
        Code::kInvalidUsage, comm_.rank(),
        fmt::format("ranks {} and {} are of one process and share GPU {}, and {}: each rank's "
                    "stream waits there until those of all ranks have come. Give each rank a stream of its own that "
                    "does not wait for the default stream (cudaStreamNonBlocking)",
                    comm_.rank(), peer, card_.device,
                    stream == theirs ? "their calls are on the same stream"
                                     : "one's call is on the default stream, for which the other's stream waits"));
    return comm_.failure();
  }
  return {};
}

void DeviceWatch::run() {
  std::unique_lock lock(mutex_);
  bool is_last = false;
  while (!is_last) {
    is_last = wake_.wait_for(lock, kLook, [this] { return phase_ != Phase::kWatching; });
    lock.unlock();
    try {
      look();
    } catch (const std::exception&) {  // no memory to say what it has found, which it finds again
      if (is_last) comm_.fail(Code::kSystem, comm_.rank(), "out of memory in the watch over kernels");
      is_last = false;
    }
    lock.lock();
  }
  const bool replays_may_wait = comm_.failed() && bells_;
  phase_ = Phase::kLeft;
  wake_.notify_all();
  const auto is_over = [this] { return phase_ == Phase::kOver; };
  while (replays_may_wait && !wake_.wait_for(lock, kLook, is_over)) bells_->let_go();
}

void DeviceWatch::look_at_kernels() {
  const cuda::DriverUse use;
  if (!use.is_there()) return;
  const cuda::FailureRecord& record = segment_.failure();
  const auto failure =
      static_cast<cuda::Failure>(executor::load_acquire(reinterpret_cast<const std::uint64_t*>(&record)) & 0xffffffffu);
  if (failure != cuda::Failure::kNone && failure != cuda::Failure::kAborted && !comm_.failed()) {
    comm_.fail(failure == cuda::Failure::kMismatch ? Code::kInvalidUsage : Code::kInternal, record.peer, why(record));
  }
}

void DeviceWatch::look() {
  const cuda::DriverUse use;
  if (!use.is_there()) return;
  look_at_kernels();
  if (!comm_.failed()) look_at_peers();
  if (!comm_.failed() && bells_) look_at_streams();
  if (!comm_.failed()) return;
  segment_.abort();
  if (bells_) bells_->let_go();  // again and again: each wait of a stream takes them back
}

std::string DeviceWatch::why(const cuda::FailureRecord& record) const {
  if (static_cast<cuda::Failure>(record.failure) != cuda::Failure::kMismatch) {
    const auto ipc = comm_.device()->ipc();
    const std::string why_not = ipc ? ipc->places().exports().why_not(record.peer, record.theirs) : "";
    if (!why_not.empty()) {
      return fmt::format(
          "rank {} cannot open memory of rank {}'s in which all ranks have agreed to do a call: {}. With "
          "TUTTI_IN_PLACE_WAIT_S=0 such calls go through staging",
          comm_.rank(), record.peer, why_not);
    }
    return fmt::format(
        "a kernel of rank {} has no mapping {} of rank {}'s memory: it may be a graph's, and registered "
        "no more",
        comm_.rank(), record.theirs, record.peer);
  }
  return calls_differ(find_call(card_, record.ours), comm_.rank(),
                      find_call(comm_.members().control.device_card(record.peer), record.theirs), record.peer);
}

void DeviceWatch::look_at_peers() {
  const Control& control = comm_.members().control;
  const double limit = control.settings().timeout_s;
  const std::uint64_t own = executor::load_acquire(&card_.calls);
  for (int peer = 0; peer < comm_.ranks(); ++peer) {
    // It makes its call first and leaves then.
    const bool left = comm_.has_left(peer);
    auto& since = behind_since_[static_cast<std::size_t>(peer)];
    const std::uint64_t calls = executor::load_acquire(&control.device_card(peer).calls);
    // What it has not counted it may have in graphs.
    if (calls >= own || has_captured(control.device_card(peer))) {
      since.reset();
      continue;
    }
    if (!since) since = Clock::now();
    const bool is_late = limit > 0 && std::chrono::duration<double>(Clock::now() - *since).count() > limit;
    if (!left && !is_late) continue;
    const std::string what =
        own - calls > DeviceCard::kNotes || has_captured(card_)
            ? fmt::format("call {}", calls + 1)
            : find_call(card_, executor::load_acquire(&card_.notes[calls % DeviceCard::kNotes].what) >> 32 | 1);
    if (left) {
      comm_.fail(Code::kRemote, peer,
                 fmt::format("{}: rank {} has left the communicator (ncclCommDestroy, ncclCommAbort, or its program "
                             "has ended) without making this call",
                             what, peer));
    } else {
      comm_.fail(Code::kRemote, peer,
                 fmt::format("{}: rank {} waited {} s for rank {} (TUTTI_TIMEOUT_S); it has not made the call", what,
                             comm_.rank(), limit, peer));
    }
    return;
  }
}

void DeviceWatch::look_at_streams() {
  const Control& control = comm_.members().control;
  const double limit = control.settings().timeout_s;
  if (limit <= 0) return;
  const auto now = Clock::now();
  for (int peer = 0; peer < comm_.ranks(); ++peer) {
    auto& stall = stalls_[static_cast<std::size_t>(peer)];
    // Replays come and go without being counted: one that waits for long would be no other than many that wait shortly.
    if (peer == comm_.rank() || !counts_match(peer) || !bells_->waits_for(peer)) {
      stall.reset();
      continue;
    }
    const std::uint64_t own = executor::load_acquire(&card_.calls);
    const std::uint64_t theirs = executor::load_acquire(&control.device_card(peer).calls);
    if (!stall || stall->calls != own || stall->peers_calls != theirs) stall = Stall{now, own, theirs};
    if (std::chrono::duration<double>(now - stall->since).count() <= limit) continue;
    comm_.fail(
        Code::kRemote, peer,
        fmt::format(
            "rank {}'s stream waited {} s for rank {}'s (TUTTI_TIMEOUT_S), which has not come to their call: work "
            "before it on that stream goes on, its GPU has failed, or it waits behind another stream in a queue "
            "of the GPU that they share (CUDA_DEVICE_MAX_CONNECTIONS=32 gives a process more of those)",
            comm_.rank(), limit, peer));
    return;
  }
}

}  // namespace tutti::comm
