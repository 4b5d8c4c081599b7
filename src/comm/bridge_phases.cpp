// How ranks learn, while the communicator is made, how far the others are and what they say of themselves: from host to host by carriers, as
// announce lines go (bridge_lines.cpp), but each rank's as soon as it is there.
#include "comm/bridge.h"
#include "executor/host_machine.h"

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

/// What a rank says of itself when it comes to a phase. Nothing is said twice: others may be reading what was said before.
std::vector<std::span<const std::byte>> said_in(const Control& control, int rank, RankPhase phase) {
  std::vector<std::span<const std::byte>> parts;
  if (phase == RankPhase::kMapped) {
    if (rank == 0) parts = control.written_by_leader();
    parts.push_back(std::as_bytes(std::span(&control.device_card(rank), 1)));
    parts.push_back(control.abilities(rank));
    parts.push_back(control.machine().told_of_seat(rank));
  } else if (phase == RankPhase::kReady) {
    parts = control.machine().told_of_look(rank);
    parts.push_back(std::as_bytes(std::span(&control.network_costs(rank), 1)));
  }
  return parts;
}

}  // namespace

RankPhase Bridge::phase_of(const Control& copy, int rank) const {
  return static_cast<RankPhase>(executor::load_acquire(copy.phase(rank)));
}

void Bridge::queue_phase(Remote& remote, int rank, RankPhase phase) {
  for (const std::span<const std::byte> part : said_in(control_, rank, phase)) queue(remote, part.data(), part.size());
  Record record;
  record.word = offset_of(control_.phase(rank));
  record.value = static_cast<std::uint64_t>(phase);  // the rank may be further by now
  remote.link->queue(record, nullptr);
}

void Bridge::enter_phase(RankPhase phase) {
  for (Remote& remote : remotes_) {
    if (!remote.link->is_stream()) queue_phase(remote, rank_, phase);
  }
}

bool Bridge::pass_phase(RankPhase phase) {
  for (const Elsewhere& from : usual_.sources) take_phase(from, phase);
  for (Round& round : usual_.rounds) {
    for (std::size_t place = 0; round.to != nullptr && place < round.sent.size(); ++place) {
      if (round.phases[place] >= phase || phase_of(control_, round.sent[place]) < phase) continue;
      round.phases[place] = phase;
      queue_phase(*round.to, round.sent[place], phase);
    }
  }
  return is_sent();
}

/// From the copy of the rank of this host that gets it.
void Bridge::take_phase(const Elsewhere& from, RankPhase phase) {
  if (phase_of(control_, from.rank) >= phase || phase_of(from.copy, from.rank) < phase) return;
  const auto take = [&](std::span<const std::byte> part) {
    const auto offset = static_cast<std::size_t>(part.data() - from.copy.memory().data());
    std::memcpy(control_.memory().data() + offset, part.data(), part.size());
  };
  for (const std::span<const std::byte> part : said_in(from.copy, from.rank, phase)) take(part);
  executor::store_release(control_.phase(from.rank), static_cast<std::uint64_t>(phase));
}

void Bridge::share_leaving() {
  if (late_ != nullptr) {
    late_->close_doors();
    take_news();
  }
  for (Remote& remote : remotes_) {
    if (!remote.link->is_stream())
      queue(remote, control_.farewell(rank_), sizeof(std::uint64_t), control_.phase(rank_));
    if (remote.link->is_stream() && !remote.link->waits_for_stream())
      queue(remote, nullptr, 0, control_.farewell(rank_));
  }
}

/// Whether a rank of another host has left.
void Bridge::settle(Remote& remote) {
  if (remote.has_left) return;
  const bool told = executor::load_acquire(remote.farewell) != 0;
  const bool has_link = !remote.link->waits_for_stream() && remote.link->state() == RecordLink::State::kOpen;
  const bool silent = remote.goodbye && !has_link;
  remote.is_leaving = told || remote.goodbye;
  if (!told && !silent) return;
  // What it said of itself last, by carriers, is still to come.
  if (phase_of(control_, remote.peer) < RankPhase::kReady) return;
  remote.is_leaving = false;
  remote.has_left = true;
  if (!told) executor::store_release(control_.farewell(remote.peer), Control::kFarewell + *remote.goodbye);
  executor::store_release(control_.phase(remote.peer), static_cast<std::uint64_t>(RankPhase::kLeft));
  if (silent) remote.link->close();
}

/// Back along the way, host by host. What a rank on it says comes by the rest of the way, and does not wait for long for what comes from behind
/// that rank: if those between are there and it is not, it has not come.
template <class IsThere>
int Bridge::who_keeps_it(int rank, const LineRoutes& routes, const IsThere& is_there) const {
  if (phase_of(control_, rank) == RankPhase::kLeft) return rank;
  const int of = host_of_[rank];
  for (int host = host_of_[rank_]; host != of;) {
    const int by_host = routes.from(host, routes.round_of(host, of));
    const int takes = carrier(hosts_, host, by_host);
    if (takes != rank_ && !is_there(takes)) return takes;
    const int carries = carrier(hosts_, by_host, host);
    if (!is_there(carries)) return carries;
    host = by_host;
  }
  return rank;
}

int Bridge::whom_it_waits_for(int rank, std::uint32_t number) const {
  const LineRoutes& routes = ways_->routes;
  return who_keeps_it(rank, routes, [&](int other) {
    // It may be here, to be taken at the next look.
    return has_line(other, number) || (!is_here(other) && has_line(*copies_[taker_of(other, routes)], other, number));
  });
}

int Bridge::whom_it_waits_for(int rank, RankPhase phase) const {
  return who_keeps_it(rank, usual_.routes, [&](int other) { return phase_of(control_, other) >= phase; });
}

}  // namespace tutti::comm
