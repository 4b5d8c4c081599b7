#include "comm/control.h"

#include "base/config.h"
#include "base/round_up.h"
#include "comm/device_agreement.h"
#include "comm/device_bells.h"
#include "comm/device_exports.h"
#include "comm/far_inputs.h"
#include "comm/mpi_all_reduce.h"
#include "comm/rails.h"
#include "executor/host_machine.h"
#include "planner/tuning.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::size_t kPage = 4096;

/// At least schedule::kSlotsMin. Larger slots amortise the hand-over; many ranks share the memory. A pair's FIFO is to be as large as a
/// second-level cache: a slot is written faster when its reader's cache has lost it to one that both share.
protocol::SlotShape default_slots(int ranks) {
  if (ranks <= 2) return {8, 128 << 10};
  if (ranks <= 8) return {8, 64 << 10};
  if (ranks <= 16) return {4, 64 << 10};
  return {4, 12 << 10};
}

/// Between hosts a message costs more than its bytes do. With its record's head it is to fit packets as long as the kernel hands them on
/// (64 KiB with their heads), without a short one at the end: two of them, or one from a plan of two lanes. Of two ranks, whose
/// acknowledgements go along with data, four: 1 MiB takes 0.86 of the time that it takes in messages half as long. Of more than eight one:
/// between three hosts of six 1 MiB takes half the time that it takes in messages of 12 KiB. Where ranks are so many that the address space
/// for all pairs of them counts (docs/scale.md), as on one host.
protocol::SlotShape slots_between_hosts(int ranks) {
  if (ranks <= 2) return {4, 248 << 10};
  if (ranks <= 8) return {8, 120 << 10};
  if (ranks <= 1024) return {4, 60 << 10};
  return default_slots(ranks);
}

protocol::SlotShape configured(protocol::SlotShape shape) {
  if (config().slot_bytes != 0) {
    shape.slot_bytes =
        static_cast<std::uint32_t>(round_up(std::min<std::size_t>(config().slot_bytes, 64u << 20), kPage));
  }
  return shape;
}

/// Small messages go as lines: as far as they spare the receiver a cache miss that costs more than half the bandwidth.
constexpr std::uint32_t kLinePayloadBytes = 512;

/// Copies of that size take much longer than to ask for them, and four of them are not much pinned memory.
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;

struct Header {
  protocol::SlotShape slots;
  Settings settings;
  alignas(64) std::uint64_t frees;
  FailureRecord failure;
  CalibrationBoard calibration;
};
static_assert(offsetof(Header, failure.word) < offsetof(Header, frees) + 64);

struct RankState {
  alignas(64) std::uint64_t phase;
  std::uint64_t farewell;
  std::uint64_t copies;
  std::uint64_t reproducible;
  std::uint64_t wide_wire;
  MappingProbe mapping;
  planner::NetworkCosts network_costs;  ///< goes by itself
  NetworkTalk network_talk;             ///< goes by itself
};

/// What two ranks share of the sends from one to the other.
struct PairMemory {
  protocol::AnnounceLine sends[protocol::kSendDepth];
  alignas(64) Signature sent[protocol::kSendDepth];
  protocol::AnnounceLine receives[protocol::kReceiveDepth];
  alignas(64) Signature received[protocol::kReceiveDepth];
  alignas(64) std::uint64_t taken;
};

/// Mappings of this process by inode: ranks that are threads share one address, as the race detector needs.
using Key = std::pair<dev_t, ino_t>;
constinit std::mutex mappings_mutex;
// A forked child makes communicators of its own.
[[maybe_unused]] const int mappings_stay_whole =
    pthread_atfork([] { mappings_mutex.lock(); }, [] { mappings_mutex.unlock(); }, [] { mappings_mutex.unlock(); });
std::map<Key, std::weak_ptr<std::byte>>& mappings() {
  static auto* table = new std::map<Key, std::weak_ptr<std::byte>>;
  return *table;
}

Result<std::shared_ptr<std::byte>> map_once(int fd, std::size_t bytes) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return system_error("fstat of the control segment");
  const Key key{facts.st_dev, facts.st_ino};
  const std::lock_guard lock(mappings_mutex);
  if (auto known = mappings()[key].lock()) return known;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return system_error(fmt::format("mapping the control segment of {} bytes", bytes));
  std::shared_ptr<std::byte> mapped(static_cast<std::byte*>(base), [bytes](std::byte* p) { munmap(p, bytes); });
  mappings()[key] = mapped;
  std::erase_if(mappings(), [](const auto& entry) { return entry.second.expired(); });
  return mapped;
}

/// Zeros that take memory as they are touched.
Result<std::shared_ptr<std::byte>> map_zeros(std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return system_error(fmt::format("mapping {} bytes", bytes));
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(base), [bytes](std::byte* p) { munmap(p, bytes); });
}

/// For a rank that is alone, or whose peers are on other hosts.
Result<std::shared_ptr<std::byte>> own_memory(std::size_t bytes, int ranks) {
  if (ranks > 1) return map_zeros(bytes);
  void* base = std::aligned_alloc(kPage, round_up(bytes, kPage));
  if (base == nullptr) return error(Code::kSystem, fmt::format("{} bytes of memory cannot be had", bytes));
  std::memset(base, 0, bytes);
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(base), [](std::byte* p) { std::free(p); });
}

protocol::LineShape line_shape_for(protocol::SlotShape slots) {
  protocol::LineShape shape;
  shape.slots = slots.slots;
  shape.words = kLinePayloadBytes / 4;
  return shape;
}

std::uint32_t lanes_of(int ranks) { return kFirstCollectiveLane + collective_lanes(ranks); }

/// Of send and receive, and of all lanes of collectives.
constexpr std::size_t kSetsOfSlots = 2;

planner::SlotStores slot_stores_of(std::string_view name) {
  if (name.empty()) return planner::SlotStores::kAsMeasured;
  return name == "streamed" ? planner::SlotStores::kStreamed : planner::SlotStores::kOrdinary;
}

}  // namespace

struct Control::Layout {
  std::size_t tuning, machine, ranks, processors, cards, bells, bells_end, agreement, exports, shrinks, shrink_lists,
      freed, announces, inputs, signatures, pairs, pair_inputs, counts, lines, slots, end;

  Layout(std::size_t n, protocol::SlotShape shape) {
    // A rank has no channel to itself, and one that is alone announces and carries nothing.
    const std::uint32_t lanes = lanes_of(static_cast<int>(n));
    const std::size_t channels = n * (n - 1);
    const std::size_t announcing = n > 1 ? n : 0;
    const std::size_t pair_count = n > 1 ? n * n : 0;
    const std::size_t carried_bytes = n > 1 ? protocol::carried_bytes_max(static_cast<int>(n)) : 0;
    const std::size_t input_stride = n > 1 ? protocol::carried_stride(static_cast<int>(n)) : 0;
    tuning = round_up(sizeof(Header), kPage);
    machine = tuning + (n > 1 ? round_up(planner::kTuningBytesMax, kPage) : 0);
    ranks = round_up(machine + MachineBoard::bytes_for(static_cast<int>(n)), n > 1 ? kPage : 64);
    processors = ranks + n * sizeof(RankState);
    cards = round_up(processors + n * sizeof(std::uint32_t), 64);
    bells = round_up(cards + n * sizeof(DeviceCard), n > 1 ? kPage : 64);
    const bool has_gpus = n > 1 && n <= cuda::kRanksMax;
    bells_end = bells + (has_gpus ? round_up(DeviceBells::bytes_for(n), kPage) : 0);
    agreement = round_up(bells_end, 64);
    exports = agreement + (has_gpus ? round_up(DeviceAgreement::bytes_for(n), 64) : 0);
    shrinks = exports + (has_gpus ? round_up(DeviceExports::bytes_for(n), 64) : 0);
    shrink_lists = shrinks + n * sizeof(ShrinkPlace);
    freed = round_up(shrink_lists + n * kShrinkLists * ((n + 63) / 64) * sizeof(std::uint64_t), 64);
    announces = freed + (n > 1 ? n * sizeof(transport::FreedList) : 0);
    inputs = round_up(announces + protocol::kAnnounceDepth * announcing * sizeof(protocol::AnnounceLine), kPage);
    signatures = inputs + protocol::kAnnounceDepth * announcing * input_stride;
    pairs = round_up(signatures + CollectiveSignatures::kDepth * announcing * sizeof(CollectiveSignatures::Place), 64);
    pair_inputs = round_up(pairs + pair_count * sizeof(PairMemory), kPage);
    counts = pair_inputs + pair_count * protocol::kSendDepth * carried_bytes;
    lines = round_up(counts + lanes * pair_count * sizeof(protocol::PairLine), kPage);
    slots = round_up(lines + lanes * channels * line_shape_for(shape).bytes(), kPage);
    end = slots + channels * kSetsOfSlots * shape.bytes();
  }
};

/// Everything before the lines lies where it lies whatever the slots' size, which the leader alone knows at first.
Control::Control(std::shared_ptr<std::byte> base, std::size_t bytes, int ranks)
    : base_(std::move(base)),
      bytes_(bytes),
      ranks_(ranks),
      before_lines_(std::make_shared<const Layout>(static_cast<std::size_t>(ranks), protocol::SlotShape{})) {}

std::uint32_t Signature::fingerprint() const {
  // FNV-1a over what must be equal; the sequence is compared by itself.
  std::uint32_t hash = 2166136261u;
  const auto mix = [&hash](std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xff)) * 16777619u;
  };
  mix(count);
  mix(static_cast<std::uint32_t>(root) | std::uint64_t{schedule} << 32);
  if (tuning != 0) mix(tuning);
  if (whole_count != 0) mix(whole_count);
  if (shot != Shot::kNone) mix(static_cast<std::uint64_t>(shot));
  mix(static_cast<std::uint64_t>(collective) | static_cast<std::uint64_t>(type) << 8 |
      static_cast<std::uint64_t>(op) << 16 | std::uint64_t{scaled} << 24 | std::uint64_t{internal} << 32);
  return hash;
}

std::string Signature::describe() const {
  if (internal) return "ncclCommSplit" + describe_tuning();
  std::string text =
      fmt::format("{} count {} {}", name_of(collective), whole_count != 0 ? whole_count : count, name_of(type));
  if (reduces(collective)) text += fmt::format(" {}", scaled ? "premulsum" : name_of(op));
  if (is_rooted(collective)) text += fmt::format(" root {}", root);
  if (schedule != 0) text += fmt::format(" by a set schedule ({:08x})", schedule);
  return text + describe_tuning();
}

std::string Signature::describe_tuning() const {
  return tuning == 0 ? "" : fmt::format(", with a tuning that was set ({:08x})", tuning);
}

protocol::SlotShape Control::slots_on_host(int ranks) { return configured(default_slots(ranks)); }
protocol::SlotShape Control::slots_over_hosts(int ranks) { return configured(slots_between_hosts(ranks)); }

std::size_t Control::bytes_for(int ranks) {
  return ranks == 1 ? 0 : Layout(static_cast<std::size_t>(ranks), slots_on_host(ranks)).end;
}

std::size_t Control::bytes_of_copies(int ranks, int local_ranks, int copies) {
  const protocol::SlotShape slots = slots_over_hosts(ranks);
  const std::size_t own = Layout(static_cast<std::size_t>(local_ranks), slots).end;
  const std::size_t whole = Layout(static_cast<std::size_t>(ranks), slots).end;
  return round_up(own, kPage) + static_cast<std::size_t>(copies) * round_up(whole, kPage);
}

std::size_t Control::bytes_on_host(int ranks, int local_ranks) {
  if (local_ranks == ranks || local_ranks == 1) return bytes_for(local_ranks);
  const std::size_t rails = ranks <= kAllWithAllMax ? RailRoom::bytes_for(local_ranks) : 0;
  return bytes_of_copies(ranks, local_ranks, local_ranks) + rails;
}

RailRoom Control::rail_room(int ranks) const {
  return {memory().subspan(bytes_of_copies(ranks, ranks_, ranks_)), ranks_};
}

Control Control::copy(int ranks, int place, bool leads) const {
  const protocol::SlotShape slots = slots_over_hosts(ranks);
  const std::size_t bytes = Layout(static_cast<std::size_t>(ranks), slots).end;
  const std::size_t at = bytes_of_copies(ranks, ranks_, place);
  Control copied(std::shared_ptr<std::byte>(base_, base_.get() + at), bytes, ranks);
  if (leads) copied.set_up(slots);
  return copied;
}

Result<Control::Memory> Control::map(int fd, std::size_t bytes, int ranks) {
  if (bytes != 0) return map_once(fd, bytes);
  const protocol::SlotShape slots = ranks == 1 ? slots_on_host(ranks) : slots_over_hosts(ranks);
  return own_memory(Layout(static_cast<std::size_t>(ranks), slots).end, ranks);
}

Control Control::open(Memory memory, std::size_t bytes, int ranks, bool leads, protocol::SlotShape slots) {
  if (bytes == 0) bytes = Layout(static_cast<std::size_t>(ranks), slots).end;
  Control control(std::move(memory), bytes, ranks);
  if (leads) control.set_up(slots);
  return control;
}

void Control::set_up(protocol::SlotShape slots) const {
  Header& header = *at<Header>(0);
  const Config& c = config();
  header.slots = slots;
  header.settings = Settings{c.single_copy,
                             c.p2p_disable,
                             c.shm_disable,
                             c.single_copy_min_bytes,
                             c.protocols,
                             std::min(c.carry_bytes, protocol::carried_bytes_max(ranks_)),
                             std::min(c.carry_bytes, protocol::one_way_bytes_max(ranks_)),
                             std::min(c.carry_bytes, FarInputs::kBytesMax),
                             std::min(c.carry_bytes, RailRoom::kBytesMax),
                             c.mpi_direct_bytes.value_or(MpiAllReduce::from_bytes(ranks_)),
                             c.timeout_s,
                             1,
                             c.calibrate,
                             slot_stores_of(c.slot_stores),
                             c.staging_bytes != 0 ? c.staging_bytes : kStagingBytes,
                             {},
                             0,
                             {}};
  header.settings.p2p_level = c.p2p_level;
  header.settings.shared_gpu_host_bytes = c.shared_gpu_host_bytes;
  const std::size_t length = std::min(c.algorithm.size(), sizeof(header.settings.algorithm) - 1);
  std::memcpy(header.settings.algorithm, c.algorithm.data(), length);
}

Settings& Control::settings() const { return at<Header>(0)->settings; }
FailureRecord& Control::failure() const { return failure_in(base_); }
FailureRecord& Control::failure_in(const Memory& memory) { return reinterpret_cast<Header*>(memory.get())->failure; }
std::uint64_t* Control::frees() const { return &at<Header>(0)->frees; }
transport::FreedList& Control::freed(int rank) const { return at<transport::FreedList>(before_lines_->freed)[rank]; }
CalibrationBoard& Control::calibration() const { return at<Header>(0)->calibration; }
protocol::SlotShape Control::slot_shape() const { return at<Header>(0)->slots; }
Control::Layout Control::layout() const { return Layout(static_cast<std::size_t>(ranks_), slot_shape()); }

protocol::LineShape Control::line_shape() const { return line_shape_for(slot_shape()); }

char* Control::tuning_text() const { return at<char>(before_lines_->tuning); }
MachineBoard Control::machine() const { return {at<std::byte>(before_lines_->machine), ranks_}; }
std::uint64_t* Control::phase(int rank) const { return &at<RankState>(before_lines_->ranks)[rank].phase; }
std::span<std::uint32_t> Control::processors() const {
  return {at<std::uint32_t>(before_lines_->processors), static_cast<std::size_t>(ranks_)};
}
std::uint64_t* Control::copies(int rank) const { return &at<RankState>(before_lines_->ranks)[rank].copies; }
MappingProbe& Control::mapping(int rank) const { return at<RankState>(before_lines_->ranks)[rank].mapping; }
std::uint64_t* Control::reproducible(int rank) const { return &at<RankState>(before_lines_->ranks)[rank].reproducible; }
std::uint64_t* Control::wide_wire(int rank) const { return &at<RankState>(before_lines_->ranks)[rank].wide_wire; }
std::uint64_t* Control::farewell(int rank) const { return &at<RankState>(before_lines_->ranks)[rank].farewell; }
planner::NetworkCosts& Control::network_costs(int rank) const {
  return at<RankState>(before_lines_->ranks)[rank].network_costs;
}
NetworkTalk& Control::network_talk(int rank) const { return at<RankState>(before_lines_->ranks)[rank].network_talk; }
DeviceCard& Control::device_card(int rank) const { return at<DeviceCard>(before_lines_->cards)[rank]; }
std::span<std::byte> Control::bells() const {
  const Layout& l = *before_lines_;
  return {at<std::byte>(l.bells), l.bells_end - l.bells};
}
std::span<std::byte> Control::agreement() const {
  const Layout& l = *before_lines_;
  return {at<std::byte>(l.agreement), l.exports - l.agreement};
}
std::span<std::byte> Control::exports() const {
  const Layout& l = *before_lines_;
  return {at<std::byte>(l.exports), l.shrinks - l.exports};
}
ShrinkPlace& Control::shrink_place(int rank) const { return at<ShrinkPlace>(before_lines_->shrinks)[rank]; }
std::uint64_t* Control::shrink_list(int rank, ShrinkList which) const {
  return at<std::uint64_t>(before_lines_->shrink_lists) +
         (rank * kShrinkLists + static_cast<std::size_t>(which)) * shrink_list_words();
}
protocol::AnnounceBoard Control::board() const {
  const Layout& l = *before_lines_;
  return {at<protocol::AnnounceLine>(l.announces), static_cast<std::uint32_t>(ranks_), at<std::byte>(l.inputs),
          protocol::carried_stride(ranks_)};
}
CollectiveSignatures Control::signatures() const {
  return {at<CollectiveSignatures::Place>(before_lines_->signatures), static_cast<std::uint32_t>(ranks_)};
}
protocol::Pair Control::pair(int from, int to) const {
  const Layout& l = *before_lines_;
  const std::size_t index = static_cast<std::size_t>(from) * ranks_ + to;
  PairMemory& memory = at<PairMemory>(l.pairs)[index];
  const std::size_t input_bytes = protocol::carried_bytes_max(ranks_);
  return {memory.sends, memory.receives, &memory.taken,
          at<std::byte>(l.pair_inputs) + index * protocol::kSendDepth * input_bytes, input_bytes};
}
PairSignatures Control::pair_signatures(int from, int to) const {
  PairMemory& memory = at<PairMemory>(before_lines_->pairs)[static_cast<std::size_t>(from) * ranks_ + to];
  return {memory.sent, memory.received};
}

std::span<std::byte> Control::memory() const { return {base_.get(), bytes_}; }

std::vector<std::span<const std::byte>> Control::written_by_leader() const {
  const std::byte* const text = at<std::byte>(before_lines_->tuning);
  // Over hosts the number may be another process's.
  const std::size_t bytes = std::min<std::size_t>(settings().tuning_bytes, planner::kTuningBytesMax);
  return {{base_.get(), offsetof(Header, frees)}, {text, bytes}};
}

std::span<const std::byte> Control::abilities(int rank) const {
  const RankState& state = at<RankState>(before_lines_->ranks)[rank];
  const auto* const first = reinterpret_cast<const std::byte*>(&state.copies);
  return {first, offsetof(RankState, network_costs) - offsetof(RankState, copies)};
}

protocol::Channel Control::channel(int me, int peer, std::uint32_t lane) const {
  const Layout l = layout();
  const std::size_t n = static_cast<std::size_t>(ranks_);
  const auto counts = [&](int from, int to) {
    return (lane * n + static_cast<std::size_t>(from)) * n + static_cast<std::size_t>(to);
  };
  const auto pair = [&](int from, int to) {
    return static_cast<std::size_t>(from) * (n - 1) + static_cast<std::size_t>(to > from ? to - 1 : to);
  };
  const auto lines = [&](int from, int to) {
    return at<std::uint64_t>(l.lines + (lane * n * (n - 1) + pair(from, to)) * line_shape().bytes());
  };
  const bool collective = lane >= kFirstCollectiveLane;
  const std::size_t part = collective ? planner::slot_part(slot_shape(), lane - kFirstCollectiveLane) : 0;
  const auto slots = [&](int from, int to) {
    return at<std::byte>(l.slots + ((collective ? n * (n - 1) : 0) + pair(from, to)) * slot_shape().bytes() + part);
  };
  protocol::Channel c;
  c.mine = at<protocol::PairLine>(l.counts) + counts(me, peer);
  c.theirs = at<protocol::PairLine>(l.counts) + counts(peer, me);
  c.outbox = slots(me, peer);
  c.inbox = slots(peer, me);
  c.outlines = lines(me, peer);
  c.inlines = lines(peer, me);
  return c;
}

bool record_failure(FailureRecord& record, Code code, int rank, std::string_view text) {
  std::uint64_t none = 0;
  if (!std::atomic_ref(record.word).compare_exchange_strong(none, 1)) return false;
  record.code = static_cast<std::int32_t>(code);
  record.rank = rank;
  const std::size_t length = std::min(text.size(), sizeof(record.text) - 1);
  std::memcpy(record.text, text.data(), length);
  record.text[length] = 0;
  executor::store_release(&record.word, 2);
  return true;
}

}  // namespace tutti::comm
