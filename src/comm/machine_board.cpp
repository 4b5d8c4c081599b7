#include "comm/machine_board.h"

#include "base/round_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

namespace tutti::comm {

struct MachineBoard::Header {
  alignas(64) std::uint64_t merging;  ///< Merging
  std::uint64_t used;                 ///< bytes of the text
  std::uint64_t merged_offset;
  std::uint64_t merged_bytes;
  std::uint64_t trees_offset;
  std::uint64_t trees_bytes;
  double memory_gbps;
};

struct MachineBoard::Record {
  struct Look {
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint8_t outcome;  ///< LookOutcome
  };

  alignas(64) std::int32_t numa;
  std::int32_t package;
  std::int32_t cache;
  std::int32_t quota_percent;
  std::uint64_t outlook;
  std::uint8_t wants_machine;
  std::uint8_t has_file;
  std::uint8_t loopback;
  std::int32_t megabits;
  std::uint64_t kernel;
  char interface[16];
  char processors[kListBytes];
  Look look;  ///< the last: what lies before it is told earlier
};

namespace {

constexpr std::size_t kNoRoom = ~std::size_t{0};
constexpr std::size_t kLine = 64;

std::size_t text_bytes_for(int ranks) {
  return ranks > 1
             ? std::max(MachineBoard::kTextBytes, static_cast<std::size_t>(ranks) * MachineBoard::kTextBytesPerRank)
             : 0;
}

/// As much as fits, and a zero byte.
template <std::size_t kSize>
void put_text(char (&place)[kSize], std::string_view text) {
  const std::size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(place, text.data(), length);
  place[length] = '\0';
}
template <std::size_t kSize>
std::string text_in(const char (&place)[kSize]) {
  return {place, strnlen(place, kSize)};
}

}  // namespace

std::size_t MachineBoard::bytes_for(int ranks) {
  return sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(Record) + text_bytes_for(ranks);
}

MachineBoard::Header& MachineBoard::header() const { return *reinterpret_cast<Header*>(memory_); }
MachineBoard::Record& MachineBoard::record(int rank) const {
  return reinterpret_cast<Record*>(memory_ + sizeof(Header))[rank];
}
std::byte* MachineBoard::text() const {
  return memory_ + sizeof(Header) + static_cast<std::size_t>(ranks_) * sizeof(Record);
}
std::size_t MachineBoard::text_bytes() const { return text_bytes_for(ranks_); }

void MachineBoard::sit(int rank, const planner::Seat& seat, const Manners& manners) const {
  Record& mine = record(rank);
  mine.numa = seat.numa;
  mine.package = seat.package;
  mine.cache = seat.cache;
  mine.quota_percent = seat.quota_percent;
  mine.outlook = manners.outlook;
  mine.wants_machine = manners.wants_machine;
  mine.has_file = manners.has_file;
  mine.loopback = manners.port.loopback;
  mine.megabits = manners.port.megabits;
  mine.kernel = manners.kernel;
  put_text(mine.interface, manners.port.interface);
  const std::string list = planner::to_list(seat.processors);
  if (list.size() < kListBytes) put_text(mine.processors, list);
}

planner::Seat MachineBoard::seat(int rank) const {
  const Record& its = record(rank);
  planner::Seat seat;
  seat.numa = std::max(its.numa, planner::kUnknownSeat);
  seat.package = its.package;
  seat.cache = its.cache;
  seat.quota_percent = std::max(0, its.quota_percent);
  seat.processors = planner::from_list(text_in(its.processors));
  return seat;
}

Manners MachineBoard::manners(int rank) const {
  const Record& its = record(rank);
  return {its.outlook,
          its.wants_machine != 0,
          its.has_file != 0,
          {text_in(its.interface), std::max(0, its.megabits), its.loopback != 0},
          its.kernel};
}

std::size_t MachineBoard::take_room(std::size_t bytes) const {
  std::atomic_ref<std::uint64_t> used(header().used);
  std::uint64_t from = used.load();
  do {
    if (from > text_bytes() || round_up(bytes, kLine) > text_bytes() - from) return kNoRoom;
  } while (!used.compare_exchange_weak(from, from + round_up(bytes, kLine)));
  return from;
}

Result<std::string> MachineBoard::text_at(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset > text_bytes() || bytes > text_bytes() - offset)
    return error(Code::kInternal, fmt::format("the machine's board has no {} bytes at {}", bytes, offset));
  return std::string(reinterpret_cast<const char*>(text()) + offset, bytes);
}

Status MachineBoard::put_look(int rank, std::string_view graph) const {
  const std::size_t at = take_room(graph.size());
  if (at == kNoRoom) {
    put_outcome(rank, LookOutcome::kTooLarge);
    return error(Code::kSystem, fmt::format("the machine's description has {} bytes: there is no room for them beside "
                                            "the other ranks' ({} in all)",
                                            graph.size(), text_bytes()));
  }
  return keep_look(rank, graph, at, round_up(graph.size(), kLine));
}

Status MachineBoard::put_look(int rank, std::string_view graph, int place, int places) const {
  const std::size_t room = text_bytes() / static_cast<std::size_t>(places) / kLine * kLine;
  return keep_look(rank, graph, static_cast<std::size_t>(place) * room, room);
}

Status MachineBoard::keep_look(int rank, std::string_view graph, std::size_t at, std::size_t room) const {
  if (graph.size() > room) {
    put_outcome(rank, LookOutcome::kTooLarge);
    return error(
        Code::kSystem,
        fmt::format("the machine's description has {} bytes: there is room for {} of each rank's", graph.size(), room));
  }
  std::memcpy(text() + at, graph.data(), graph.size());
  record(rank).look.offset = at;
  record(rank).look.bytes = graph.size();
  put_outcome(rank, LookOutcome::kSeen);
  return {};
}

void MachineBoard::put_outcome(int rank, LookOutcome outcome) const {
  record(rank).look.outcome = static_cast<std::uint8_t>(outcome);
}

LookOutcome MachineBoard::outcome(int rank) const {
  const std::uint8_t outcome = record(rank).look.outcome;
  return outcome <= static_cast<std::uint8_t>(LookOutcome::kFailed) ? static_cast<LookOutcome>(outcome)
                                                                    : LookOutcome::kFailed;
}

std::span<const std::byte> MachineBoard::told_of_seat(int rank) const {
  return std::as_bytes(std::span(&record(rank), 1)).first(offsetof(Record, look));
}

std::vector<std::span<const std::byte>> MachineBoard::told_of_look(int rank) const {
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(&record(rank).look, 1))};
  const Record::Look its = record(rank).look;
  // Where it is another rank's, which has it from elsewhere, look() says that it lies outside.
  const bool inside = its.offset <= text_bytes() && its.bytes <= text_bytes() - its.offset;
  if (its.bytes != 0 && inside) parts.emplace_back(text() + its.offset, its.bytes);
  return parts;
}

Result<std::string> MachineBoard::look(int rank) const {
  return text_at(record(rank).look.offset, record(rank).look.bytes);
}

MachineBoard::Merging MachineBoard::merging() const {
  return static_cast<Merging>(std::atomic_ref(header().merging).load(std::memory_order_acquire));
}

bool MachineBoard::claim() const {
  auto nobody = static_cast<std::uint64_t>(Merging::kNobody);
  return std::atomic_ref(header().merging)
      .compare_exchange_strong(nobody, static_cast<std::uint64_t>(Merging::kUnderWay));
}

void MachineBoard::publish(std::string_view graph) const {
  const std::size_t at = take_room(graph.size());
  if (at == kNoRoom) {
    give_up();
    return;
  }
  std::memcpy(text() + at, graph.data(), graph.size());
  header().merged_offset = at;
  header().merged_bytes = graph.size();
  std::atomic_ref(header().merging).store(static_cast<std::uint64_t>(Merging::kDone), std::memory_order_release);
}

void MachineBoard::give_up() const {
  std::atomic_ref(header().merging).store(static_cast<std::uint64_t>(Merging::kNobody), std::memory_order_release);
}

Result<std::string> MachineBoard::merged() const { return text_at(header().merged_offset, header().merged_bytes); }

Status MachineBoard::put_trees(std::string_view text) const {
  const std::size_t at = take_room(text.size());
  if (at == kNoRoom)
    return error(Code::kSystem, fmt::format("there is no room for {} bytes of planned trees", text.size()));
  std::memcpy(this->text() + at, text.data(), text.size());
  header().trees_offset = at;
  header().trees_bytes = text.size();
  return {};
}

Result<std::string> MachineBoard::trees() const { return text_at(header().trees_offset, header().trees_bytes); }

double MachineBoard::memory_gbps() const { return std::atomic_ref(header().memory_gbps).load(); }

void MachineBoard::keep_memory_gbps(double gbps) const {
  double nobody = 0;
  std::atomic_ref(header().memory_gbps).compare_exchange_strong(nobody, gbps);
}

}  // namespace tutti::comm
