#include "comm/device_segment.h"

#include "comm/communicator.h"
#include "comm/device_fifos.h"
#include "comm/device_path.h"
#include "comm/device_work.h"
#include "comm/reach.h"
#include "executor/host_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

namespace tutti::comm {
namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

DeviceSegment::Layout::Layout(std::uint32_t ranks, SegmentUse use) {
  state = 0;
  learned = aligned(state + sizeof(cuda::RankState));
  home = aligned(learned + sizeof(cuda::Buffers));
  mappings = aligned(home + sizeof(cuda::RankHome));
  board = aligned(mappings + std::size_t{ranks} * kMappings * sizeof(cuda::PeerMapping));
  closings = aligned(board + cuda::board_bytes(ranks));
  lines = aligned(closings + cuda::closing_bytes(ranks));
  staging = aligned(lines + line_memory_for(static_cast<int>(ranks)).bytes(ranks));
  end = staging;
  if (use == SegmentUse::kOneProcess) return;
  // CUDA shares whole blocks of 2 MiB, with whatever else lies in them.
  constexpr std::size_t kBlock = std::size_t{2} << 20;
  end = (staging + kStagingBytes + kBlock - 1) / kBlock * kBlock;
}

/// A segment whose rank has left: others may still write into it, and CUDA leaves undefined what frees memory before all who have
/// opened it have closed it.
struct DeviceSegment::Retired {
  Control control;
  cuda::DeviceMemory memory;
  int device = 0;
  std::vector<std::int32_t> pids;

  bool is_used() const {
    for (int r = 0; r < control.ranks(); ++r) {
      if (executor::load_acquire(&control.device_card(r).maps) == 0) continue;
      const std::int32_t pid = pids[static_cast<std::size_t>(r)];
      if (kill(pid, 0) == 0 || errno != ESRCH) return true;
    }
    return false;
  }
  /// Never destroyed: a process ends without.
  static std::pair<std::mutex, std::list<Retired>>& all() {
    static auto* made = new std::pair<std::mutex, std::list<Retired>>;
    return *made;
  }
};

bool same_gpu(const Control& control, int a, int b) {
  const auto& uuid = control.device_card(a).uuid;
  return std::memcmp(uuid, control.device_card(b).uuid, sizeof uuid) == 0;
}

std::uint32_t resident_share(const Control& control) {
  std::uint32_t most = cuda::kBlocksMax;
  for (int r = 0; r < control.ranks(); ++r) {
    const DeviceCard& card = control.device_card(r);
    std::uint32_t sharing = 0;
    for (int other = 0; other < control.ranks(); ++other) {
      sharing += same_gpu(control, r, other) ? 1 : 0;
    }
    most = std::min(most, card.resident_blocks / sharing);
  }
  return std::max(most, 1u);
}

bool ranks_share_gpus(const Control& control) {
  for (int r = 0; r < control.ranks(); ++r) {
    for (int other = 0; other < r; ++other) {
      if (same_gpu(control, r, other)) return true;
    }
  }
  return false;
}

bool processes_share_gpus(const Membership& members) {
  for (const Peer& a : members.peers) {
    for (const Peer& b : members.peers) {
      if (a.process_token != b.process_token && same_gpu(members.control, a.rank, b.rank)) return true;
    }
  }
  return false;
}

DeviceSegment::DeviceSegment(std::shared_ptr<cuda::Device> device, const Control& control, int rank, SegmentUse use)
    : device_(std::move(device)),
      control_(control),
      rank_(rank),
      layout_(static_cast<std::uint32_t>(control.ranks()), use) {
  pids_.resize(static_cast<std::size_t>(control.ranks()));
  retired_.push_back({control, {}, device_->facts().ordinal, {}});
}

Result<std::unique_ptr<DeviceSegment>> DeviceSegment::open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                           int rank, SegmentUse use) {
  std::unique_ptr<DeviceSegment> made(new DeviceSegment(device, control, rank, use));
  TUTTI_TRY_ASSIGN(made->memory_, cuda::DeviceMemory::allocate(device, made->layout_.end));
  TUTTI_TRY_ASSIGN(made->pinned_, cuda::PinnedMemory::allocate(device, sizeof(Words)));
  DeviceCard& card = control.device_card(rank);
  if (use == SegmentUse::kProcesses) {
    TUTTI_TRY_ASSIGN(const cuda::MemoryHandle handle,
                     cuda::export_memory(made->memory_.data(), cuda::Sharing::kByHandle, device->context()));
    static_assert(sizeof card.handle == sizeof handle);
    std::memcpy(card.handle, &handle, sizeof handle);
  }
  card.segment = reinterpret_cast<std::uint64_t>(made->memory_.data());
  card.segment_bytes = made->layout_.end;
  card.resident_blocks = device->resident_blocks();
  card.exported = 1;
  return made;
}

DeviceSegment::~DeviceSegment() {
  imports_.clear();
  executor::store_release(&control_.device_card(rank_).maps, 0);
  const int device = device_->facts().ordinal;
  if (memory_.data()) {
    retired_.front().memory = std::move(memory_);
    retired_.front().pids = std::move(pids_);
    const std::lock_guard lock(Retired::all().first);
    auto& all = Retired::all().second;
    all.splice(all.end(), retired_);
  }
  sweep(device);
}

void DeviceSegment::sweep(int device) {
  std::list<Retired> free;  // freed after the lock
  const std::lock_guard lock(Retired::all().first);
  auto& all = Retired::all().second;
  for (auto one = all.begin(); one != all.end();) {
    const auto its = one++;
    if (may_free(its->device, device) && !its->is_used()) free.splice(free.end(), all, its);
  }
}

Result<std::byte*> DeviceSegment::map(int peer, const Reach& reach) {
  const DeviceCard& card = control_.device_card(peer);
  if (peer == rank_) return memory_.data();
  if ((control_.device_card(rank_).far >> peer & 1) != 0) {
    return error(Code::kUnhandledCuda, fmt::format("NCCL_P2P_LEVEL={} keeps it apart from rank {}'s GPU",
                                                   name_of(control_.settings().p2p_level), peer));
  }
  if (card.exported == 0) {
    return error(Code::kUnhandledCuda, fmt::format("rank {} could not share its memory: {}", peer, card.why));
  }
  if (!reach.same_process(peer)) {
    cuda::MemoryHandle handle{};
    std::memcpy(&handle, card.handle, sizeof handle);
    TUTTI_TRY_ASSIGN(cuda::ImportedMemory memory, cuda::ImportedMemory::open(handle, device_->context()));
    imports_.push_back(std::move(memory));
    return imports_.back().data();
  }
  TUTTI_TRY_ASSIGN(const auto other, cuda::Device::open(card.device));
  TUTTI_TRY_ASSIGN(bool reached, device_->can_reach(*other));
  if (reached) {
    TUTTI_TRY_ASSIGN(reached, device_->reach(*other));
  }
  if (!reached) {
    return error(Code::kUnhandledCuda, fmt::format("GPU {} cannot reach the memory of GPU {}",
                                                   device_->facts().bus_id.data(), other->facts().bus_id.data()));
  }
  return reinterpret_cast<std::byte*>(card.segment);
}

void DeviceSegment::map_others(const Reach& reach) {
  executor::store_release(&control_.device_card(rank_).maps, 1);
  for (int r = 0; r < control_.ranks(); ++r) {
    pids_[static_cast<std::size_t>(r)] = reach.pid(r);
    const Result<std::byte*> found = map(r, reach);
    mapped_.push_back(found.ok() ? found.value() : nullptr);
    if (why_not_.empty() && !found.ok()) why_not_ = found.error().message;
  }
}

Status DeviceSegment::link(const DeviceLinks& links) {
  const auto ranks = static_cast<std::uint32_t>(control_.ranks());
  cuda::RankHome home;
  home.rank = static_cast<std::uint32_t>(rank_);
  home.ranks = ranks;
  home.abort_word = &words().abort;
  home.failure = &words().failure;
  home.state = reinterpret_cast<cuda::RankState*>(memory_.data() + layout_.state);
  home.learned = reinterpret_cast<cuda::Buffers*>(memory_.data() + layout_.learned);
  home.line_memory = line_memory_for(control_.ranks());
  std::vector<cuda::PeerMapping> mappings;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    std::byte*& base = mapped_[r];
    const bool joined = links.joins(rank_, static_cast<int>(r));
    if (joined && base == nullptr) return error(Code::kUnhandledCuda, why_not_);
    if (!joined) base = nullptr;
    if (joined) {
      home.boards[r] = reinterpret_cast<protocol::AnnounceLine*>(base + layout_.board);
      home.closings[r] = reinterpret_cast<std::uint64_t*>(base + layout_.closings);
      home.lines[r] = reinterpret_cast<std::uint64_t*>(base + layout_.lines);
    }
    home.mappings[r].list =
        reinterpret_cast<const cuda::PeerMapping*>(memory_.data() + layout_.mappings) + r * kMappings;
    home.mappings[r].count = kMappings;
    mappings.resize(mappings.size() + kMappings);
    mappings[r * kMappings + kMapping].base = reinterpret_cast<std::uint64_t>(base);
  }
  TUTTI_TRY(memory_.write(layout_.mappings, mappings.data(), mappings.size() * sizeof(cuda::PeerMapping)));
  return memory_.write(layout_.home, &home, sizeof home);
}

Status DeviceSegment::set_mapping(int peer, std::uint64_t name, std::uint64_t base) const {
  constexpr int kNumberBits = cuda::PeerMappings::kNumberBits;
  const cuda::PeerMapping mapping{base, name >> kNumberBits};
  const std::size_t place = static_cast<std::size_t>(peer) * kMappings + name % (1u << kNumberBits);
  return memory_.write(layout_.mappings + place * sizeof mapping, &mapping, sizeof mapping);
}

void DeviceSegment::abort() const { executor::store_release(&words().abort, std::uint64_t{1}); }

}  // namespace tutti::comm
