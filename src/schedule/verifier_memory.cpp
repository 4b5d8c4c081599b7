#include "schedule/verifier_memory.h"

#include <fmt/format.h>

#include <optional>

namespace tutti::schedule::verifier {
namespace {

/// Which input block of `rank` is which output block when the call is in place.
struct Alias {
  std::uint32_t input = 0;
  std::uint32_t output = 0;
};
std::optional<Alias> alias_of(const Request& request, int rank) {
  const auto self = static_cast<std::uint32_t>(rank);
  const bool at_root = rank == request.root;
  switch (request.collective) {
    case Collective::kAllReduce: return Alias{0, 0};
    case Collective::kReduce:
    case Collective::kBroadcast: return at_root ? std::optional(Alias{0, 0}) : std::nullopt;
    case Collective::kAllGather: return Alias{0, self};
    case Collective::kReduceScatter: return Alias{self, 0};
    case Collective::kGather: return at_root ? std::optional(Alias{0, self}) : std::nullopt;
    case Collective::kScatter: return at_root ? std::optional(Alias{self, 0}) : std::nullopt;
    case Collective::kAllToAll:  // block by block, see below
    case Collective::kSend:
    case Collective::kReceive: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

Memory::Memory(const Schedule& schedule, bool in_place) : units_(schedule.shape.units) {
  const bool every_block = in_place && schedule.request.collective == Collective::kAllToAll;
  for (int rank = 0; rank < schedule.request.ranks; ++rank) {
    Buffers b{};
    b.blocks[0] = input_blocks(schedule.request, rank);
    b.blocks[1] = output_blocks(schedule.request, rank);
    b.blocks[2] = schedule.shape.scratch_blocks;
    for (int place = 0; place < 3; ++place) {
      b.first_cell[place] = cells_;
      cells_ += b.blocks[place] * units_;
    }
    if (every_block) b.first_cell[0] = b.first_cell[1];
    if (const auto alias = in_place ? alias_of(schedule.request, rank) : std::nullopt) {
      b.aliased_input = alias->input;
      b.aliased_cell = b.first_cell[1] + alias->output * units_;
    }
    ranks_.push_back(b);
  }
}

std::uint32_t Memory::blocks(int rank, Place place) const {
  return ranks_[static_cast<std::size_t>(rank)].blocks[static_cast<int>(place)];
}

std::uint32_t Memory::cell(int rank, Place place, std::uint32_t block, std::uint32_t unit) const {
  const Buffers& b = ranks_[static_cast<std::size_t>(rank)];
  if (place == Place::kInput && block == b.aliased_input) return b.aliased_cell + unit;
  return b.first_cell[static_cast<int>(place)] + block * units_ + unit;
}

std::string Memory::name_of(std::uint32_t cell) const {
  for (std::size_t rank = ranks_.size(); rank-- > 0;) {
    for (int place = 2; place >= 0; --place) {
      const std::uint32_t first = ranks_[rank].first_cell[place];
      if (cell < first || cell >= first + ranks_[rank].blocks[place] * units_) continue;
      return name_of_unit(static_cast<Place>(place), (cell - first) / units_, (cell - first) % units_,
                          static_cast<int>(rank));
    }
  }
  return "no place";
}

std::string name_of_unit(Place place, std::uint32_t block, std::uint32_t unit, int rank) {
  constexpr const char* kNames[] = {"in", "out", "scratch", "peer"};
  return fmt::format("{}[{}.{}] of rank {}", kNames[static_cast<int>(place)], block, unit, rank);
}

}  // namespace tutti::schedule::verifier
