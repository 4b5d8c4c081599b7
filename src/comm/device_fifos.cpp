#include "comm/device_fifos.h"

#include <algorithm>
#include <bit>

namespace tutti::comm {
namespace {

/// The part that neighbours write, and of the rest what programs have.
constexpr std::size_t kSharedBytes = std::size_t{9} << 18;
constexpr std::size_t kProgramBytes = std::size_t{1} << 19;
/// A message is on its way, one is read, one is written, and one waits.
constexpr std::uint32_t kSlots = 4;
/// No shorter: half of what a block's threads move at once.
constexpr std::size_t kLeastSlotBytes = 4 << 10;

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

bool DeviceLinks::joins_all() const {
  for (int a = 0; a < ranks_; ++a) {
    for (int b = 0; b < a; ++b) {
      if (!joins(a, b)) return false;
    }
  }
  return true;
}

bool DeviceLinks::connects_all() const {
  std::uint32_t found = 1;
  for (int turn = 1; turn < ranks_; ++turn) {
    for (int r = 0; r < ranks_; ++r) found |= (found >> r & 1) != 0 ? of_[static_cast<std::size_t>(r)] : 0;
  }
  return std::popcount(found) == ranks_;
}

std::uint32_t DeviceLinks::most() const {
  int most = 0;
  for (const std::uint32_t its : of_) most = std::max(most, std::popcount(its));
  return static_cast<std::uint32_t>(most);
}

std::uint32_t DeviceLinks::place(int rank, int other) const {
  return static_cast<std::uint32_t>(std::popcount(of_[static_cast<std::size_t>(rank)] & ((1u << other) - 1)));
}

DeviceFifos::DeviceFifos(const DeviceLinks& links, std::uint32_t blocks_max)
    : neighbours_(std::max(links.most(), 1u)),
      lanes_(std::clamp(static_cast<std::uint32_t>(kSharedBytes / (neighbours_ * kSlots * kLeastSlotBytes)), 1u,
                        std::clamp(blocks_max, 1u, kLanesMost))) {
  const std::size_t channels = std::size_t{lanes_} * neighbours_;
  fifos_ = aligned(channels * sizeof(protocol::PairLine));
  slots_ = {kSlots, static_cast<std::uint32_t>((kSharedBytes - fifos_) / (channels * kSlots) / 1024 * 1024)};
  homes_ = kSharedBytes;
  channels_ = aligned(homes_ + lanes_ * sizeof(cuda::LaneHome));
  workspaces_ =
      aligned(channels_ + std::size_t{lanes_} * static_cast<std::size_t>(links.ranks()) * sizeof(protocol::Channel));
  programs_ = kBytes - kProgramBytes;
  const std::size_t each = (programs_ - workspaces_) / lanes_ / 256 * 256;
  while (steps_most_ < (std::size_t{1} << 12)) {
    ++steps_most_;
    if (workspace_bytes() <= each) continue;
    --steps_most_;
    return;
  }
}

namespace {

/// Arrays one behind the other; with no memory, how long they are.
class Arrays {
 public:
  explicit Arrays(std::byte* memory) : memory_(memory) {}
  template <class T>
  void take(T*& array, std::size_t count) {
    end_ = (end_ + alignof(T) - 1) / alignof(T) * alignof(T);
    if (memory_ != nullptr) array = reinterpret_cast<T*>(memory_ + end_);
    end_ += count * sizeof(T);
  }
  std::size_t bytes() const { return aligned(end_); }

 private:
  std::byte* memory_;
  std::size_t end_ = 0;
};

std::size_t lay_out(protocol::LaneWorkspace& w, std::byte* memory, std::size_t steps, std::size_t endpoints) {
  constexpr std::size_t kSides = DeviceFifos::kSidesMost;
  Arrays arrays(memory);
  arrays.take(w.sides, endpoints);
  arrays.take(w.steps, steps);
  arrays.take(w.source_pointers, kSides);
  arrays.take(w.scales, kSides);
  arrays.take(w.sink_pointers, kSides);
  arrays.take(w.arrived, kSides);
  arrays.take(w.pulled, cuda::kRanksMax);
  arrays.take(w.wide_sources, kSides);
  arrays.take(w.wide_sinks, kSides);
  return arrays.bytes();
}

}  // namespace

std::size_t DeviceFifos::workspace_bytes() const {
  protocol::LaneWorkspace none;
  return lay_out(none, nullptr, steps_most_, endpoints_most());
}

protocol::LaneWorkspace DeviceFifos::workspace(std::byte* memory) const {
  protocol::LaneWorkspace made;
  lay_out(made, memory, steps_most_, endpoints_most());
  return made;
}

Status DeviceFifos::fill(const DeviceLinks& links, int rank, const std::vector<std::byte*>& memory,
                         const Write& write) const {
  std::byte* const own = memory[static_cast<std::size_t>(rank)];
  const auto ranks = static_cast<std::size_t>(links.ranks());
  std::vector<protocol::Channel> channels(lanes_ * ranks);
  std::vector<cuda::LaneHome> homes(lanes_);
  for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
    for (int peer = 0; peer < links.ranks(); ++peer) {
      std::byte* const theirs = memory[static_cast<std::size_t>(peer)];
      if (peer == rank || theirs == nullptr || !links.joins(rank, peer)) continue;
      const std::uint32_t here = links.place(rank, peer);
      const std::uint32_t there = links.place(peer, rank);
      protocol::Channel& channel = channels[lane * ranks + static_cast<std::size_t>(peer)];
      channel.mine = reinterpret_cast<protocol::PairLine*>(theirs + counts_at(lane, there));
      channel.outbox = theirs + slots_at(lane, there);
      channel.theirs = reinterpret_cast<protocol::PairLine*>(own + counts_at(lane, here));
      channel.inbox = own + slots_at(lane, here);
    }
    homes[lane].channels = reinterpret_cast<protocol::Channel*>(own + channels_) + lane * ranks;
    homes[lane].workspace = workspace(own + workspaces_ + lane * workspace_bytes());
  }
  TUTTI_TRY(write(channels_, channels.data(), channels.size() * sizeof(protocol::Channel)));
  return write(homes_, homes.data(), homes.size() * sizeof(cuda::LaneHome));
}

}  // namespace tutti::comm
