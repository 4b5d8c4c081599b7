#include "comm/rails.h"

#include "base/float_mode.h"
#include "base/round_up.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

using Pattern = LineRoutes::Pattern;

/// Parts begin with a cache line.
constexpr std::size_t kLine = 64;

constexpr std::size_t part_bytes_max(int ranks) {
  return round_up(RailRoom::kBytesMax / static_cast<unsigned>(ranks), kLine);
}

/// The number has a line of its own, and so has what is left between blocks: they do not begin in the same sets of a cache.
constexpr std::size_t stride(int ranks) { return part_bytes_max(ranks) + 2 * kLine; }

constexpr unsigned kTurns = 2;

static_assert(RailRoom::kBytesMax <= 2 * FarInputs::kBytesMax,
              "of two ranks' parts each is as long as what comes may be");

std::size_t index(int value) { return static_cast<std::size_t>(value); }

int host_with(const HostRanks& hosts, int rank) {
  const auto has_it = [rank](const std::vector<int>& ranks) { return std::ranges::count(ranks, rank) != 0; };
  return static_cast<int>(std::ranges::find_if(hosts, has_it) - hosts.begin());
}

int place_of(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

}  // namespace

std::size_t RailRoom::bytes_for(int ranks) { return kTurns * index(ranks) * index(ranks) * stride(ranks); }

RailRoom::Block RailRoom::block(int from, int to, unsigned turn) const {
  const std::size_t number = (index(from) * index(ranks_) + index(to)) * kTurns + turn;
  std::byte* const begin = memory_.data() + number * stride(ranks_);
  return {reinterpret_cast<std::uint64_t*>(begin), begin + kLine};
}

RailPlan plan_rails(int hosts, int per_host, const planner::NetworkCosts& network, int sharers, bool one_system) {
  RailPlan plan;
  plan.pattern = choose_pattern(hosts, network, sharers, true, true);
  plan.longest = one_system ? RailRoom::kBytesMax : RailRoom::kOverNetworkMax;
  in_standard_mode([&] {
    // By a schedule a call takes two messages with each other host, after its lines, and two ways.
    const double saved_us = 4 * (hosts - 1) * network.work_us + 2 * network.message_us;
    const LineRoutes routes(hosts, plan.pattern);
    const double more = std::max(sharers > 1 ? routes.per_host() : routes.chain(), 1.0) - 2.0 * (hosts - 1) / hosts;
    // A host's ranks share its network, but for one that their threads are.
    const int abreast = one_system ? per_host : 1;
    if (more > 0) {
      const double limit = saved_us * network.gbps * 1e3 / more * abreast;
      plan.longest = static_cast<std::size_t>(std::min(limit, static_cast<double>(plan.longest)));
    }
  });
  return plan;
}

RailPlan plan_shares(int hosts, bool by_mpi) {
  const auto n = static_cast<std::size_t>(hosts);
  return {.longest = by_mpi ? n * RailRoom::kEarlyShareMax : RailRoom::kBytesMax,
          .shortest = n * (by_mpi ? RailRoom::kEarlyShareMin : RailRoom::kStreamedShareMin),
          .shares = true};
}

Rails::Rails(PartCarrier& network, RailRoom room, HostRanks hosts, int rank, RailPlan plan)
    : network_(network),
      room_(room),
      hosts_(std::move(hosts)),
      plan_(plan),
      host_(host_with(hosts_, rank)),
      place_(place_of(hosts_[index(host_)], rank)),
      routes_(static_cast<int>(hosts_.size()), plan.pattern, plan.hub),
      sources_(std::max(hosts_.size(), hosts_.front().size())) {
  find_shares();
}

/// Of the ranks at that place of all hosts.
Rails::Part Rails::part(int place) const {
  const std::size_t all = call_.count * call_.element_bytes;
  const std::size_t each = round_up((all + index(room_.ranks()) - 1) / index(room_.ranks()), kLine);
  const std::size_t first = std::min(all, each * index(place));
  return {first, std::min(each, all - first)};
}

/// Of this rank's part, that which a host adds up, from the part's begin on.
Rails::Part Rails::share(int host) const {
  if (!plan_.shares) return {0, own_.bytes};
  const std::size_t each = round_up((own_.bytes + hosts_.size() - 1) / hosts_.size(), kLine);
  const std::size_t first = std::min(own_.bytes, each * index(host));
  return {first, std::min(each, own_.bytes - first)};
}

/// What lies there of this call; nullptr: it has not come yet.
const std::byte* Rails::found(int from, int to) const {
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const RailRoom::Block block = room_.block(from, to, turn);
    if (executor::load_acquire(block.number) == marked_) return block.bytes;
  }
  return nullptr;
}

std::byte* Rails::far(std::uint32_t part) const { return network_.part_of(call_.number, part, share(host_).bytes); }

/// Of the part's bytes that host's share.
void Rails::send(int host, std::uint32_t part, const std::byte* bytes) {
  const Part its = share(host);
  network_.send_part(rank_on(host), call_.number, part, bytes + its.first, its.bytes);
}

void Rails::begin(const Call& call, executor::HostMachine& machine) {
  if (stage_ != Stage::kOver) turn_ = 1 - turn_;  // the last call was refused: others may still read
  call_ = call;
  marked_ = marked(call.number);
  next_ = 0;
  round_ = 0;
  own_ = part(place_);
  network_.await_part(-1);
  stage_ = own_.bytes == 0 ? Stage::kShare : Stage::kHost;
  const auto* const input = static_cast<const std::byte*>(call.input);
  for (int to = 0; to < room_.ranks(); ++to) {
    const Part its = part(to);
    if (to == place_ || its.bytes == 0) continue;
    const RailRoom::Block block = room_.block(place_, to, turn_);
    machine.store_bytes(block.bytes, input + its.first, its.bytes);
    executor::store_release(block.number, marked_);
  }
  if (own_.bytes == 0) return;
  for (const Share& share : shares_out_) network_.hold_lines(rank_on(share.host), call.number);
  if (sums_for_all())
    for (const Share& share : shares_in_) network_.hold_lines(rank_on(share.host), call.number);
  if (gets_sum()) network_.expect_part(call.number, FarInputs::kSumOfAll, own_.bytes, own_shown());
  // Who sends a sum has had this rank's share of it: in place nothing that is still to be sent is written over.
  for (int host = 0; plan_.shares && host < static_cast<int>(hosts_.size()); ++host)
    if (const Part its = share(host); host != host_)
      network_.expect_part(call.number, sum_of(host), its.bytes, sums() + its.first);
}

void Rails::find_shares() {
  const auto own = static_cast<std::uint32_t>(host_);
  if (plan_.pattern == Pattern::kDoubling) {
    for (int round = 0; round < routes_.rounds(); ++round) {
      shares_out_.push_back({routes_.to(host_, round), static_cast<std::uint32_t>(round)});
      shares_in_.push_back({routes_.from(host_, round), static_cast<std::uint32_t>(round)});
    }
    return;
  }
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    if (host == host_) continue;
    if (!is_star() || host == routes_.hub()) shares_out_.push_back({host, own});
    if (!is_star() || sums_for_all()) shares_in_.push_back({host, static_cast<std::uint32_t>(host)});
  }
}

/// Of those that have not gone.
void Rails::tell_refused(std::uint32_t number) {
  refused_ = marked(number);
  if (marked_ != refused_) return;  // this rank's does not go by rails
  const std::size_t sent = stage_ != Stage::kAcross              ? 0
                           : plan_.pattern == Pattern::kDoubling ? round_ + 1
                                                                 : shares_out_.size();
  for (std::size_t i = sent; i < shares_out_.size(); ++i)
    network_.send_part(rank_on(shares_out_[i].host), number, shares_out_[i].part, nullptr, 0);
}

bool Rails::end_refused(std::uint32_t number, const std::function<bool(int)>& is_by_rails) {
  if (refused_ != marked(number)) tell_refused(number);
  const auto is_owed = [&](const Share& share) {
    return is_by_rails(rank_on(share.host)) && !network_.has_part(number, share.part);
  };
  const auto owed = std::ranges::find_if(shares_in_, is_owed);
  owed_by_ = owed == shares_in_.end() ? -1 : rank_on(owed->host);
  return owed_by_ < 0;
}

bool Rails::advance(executor::HostMachine& machine, bool alike) {
  bool moved = false;
  if (stage_ == Stage::kHost) moved = add_up_host(machine);
  if (stage_ == Stage::kAcross) moved |= go_across(machine, alike);
  if (stage_ == Stage::kSums) moved |= take_sums(machine);
  if (stage_ == Stage::kShare && alike) moved |= take_results(machine);
  network_.await_part(stage_ == Stage::kAcross || stage_ == Stage::kSums ? waiting_for() : -1);
  return moved;
}

bool Rails::add_up_host(executor::HostMachine& machine) {
  for (; next_ < room_.ranks(); ++next_) {
    const void*& source = sources_[index(next_)];
    source = next_ == place_ ? static_cast<const std::byte*>(call_.input) + own_.first : found(next_, place_);
    if (source == nullptr) return false;
  }
  if (plan_.shares && !has_mates()) {
    host_sum_ = static_cast<const std::byte*>(call_.input);
  } else {
    if (!sum_) sum_ = std::make_unique_for_overwrite<std::byte[]>(part_bytes_max(room_.ranks()));
    void* const sum = sum_.get();
    machine.reduce({sources_.data(), room_.ranks(), &sum, 1, own_.bytes / call_.element_bytes, nullptr, 0});
    host_sum_ = sum_.get();
  }
  stage_ = Stage::kAcross;
  const std::size_t first = plan_.pattern == Pattern::kDoubling ? 1 : shares_out_.size();
  for (std::size_t i = 0; i < first; ++i) send(shares_out_[i].host, shares_out_[i].part, host_sum_);
  return true;
}

/// From which the first part comes that has not; kNone: all are there.
int Rails::missing_host() const {
  const auto missing = std::ranges::find_if(shares_in_, [&](const Share& share) { return far(share.part) == nullptr; });
  return missing == shares_in_.end() ? LineRoutes::kNone : missing->host;
}

/// Of pairs of hosts, the lower one's first: so both have the same bits. What came in the round before has become what this rank has.
void Rails::add_pair(std::uint32_t round, std::span<void* const> to, int divisor, executor::HostMachine& machine) {
  const void* const own = round == 0 ? sum_.get() : far(round - 1);
  const void* const other = far(round);
  const bool first = host_ < routes_.from(host_, static_cast<int>(round));
  const void* const sources[] = {first ? own : other, first ? other : own};
  machine.reduce(
      {sources, 2, to.data(), static_cast<int>(to.size()), own_.bytes / call_.element_bytes, nullptr, divisor});
}

/// As many sums as what has come allows, in its place; they go on to the next pair.
void Rails::double_up(executor::HostMachine& machine) {
  for (; round_ != last_round() && far(round_) != nullptr; ++round_) {
    std::byte* const sum = far(round_);
    void* const to = sum;
    add_pair(round_, {&to, 1}, 0, machine);
    send(routes_.to(host_, static_cast<int>(round_) + 1), round_ + 1, sum);
  }
}

void Rails::add_hosts(std::span<void* const> to, executor::HostMachine& machine) {
  const Part own = share(host_);
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host)
    sources_[index(host)] = host == host_ ? host_sum_ + own.first : far(static_cast<std::uint32_t>(host));
  machine.reduce({sources_.data(), static_cast<int>(hosts_.size()), to.data(), static_cast<int>(to.size()),
                  own.bytes / call_.element_bytes, nullptr, call_.divisor});
}

/// The sum of this host's share, for all.
void Rails::add_share(executor::HostMachine& machine) {
  const Part own = share(host_);
  void* const both[] = {own_output() + own.first, has_mates() ? own_shown() + own.first : nullptr};
  add_hosts({both, has_mates() ? 2u : 1u}, machine);
  for (const Share& to : shares_out_)
    if (own.bytes != 0)
      network_.send_part(rank_on(to.host), call_.number, sum_of(host_), sums() + own.first, own.bytes);
  stage_ = Stage::kSums;
  next_ = 0;
}

bool Rails::take_sums(executor::HostMachine& machine) {
  bool moved = false;
  for (; next_ < static_cast<int>(hosts_.size()); ++next_) {
    const Part its = share(next_);
    if (next_ == host_ || its.bytes == 0) continue;
    if (network_.part_of(call_.number, sum_of(next_), its.bytes) == nullptr) return moved;
    if (has_mates()) machine.load_bytes(own_output() + its.first, own_shown() + its.first, its.bytes);
    moved = true;
  }
  if (has_mates()) executor::store_release(room_.block(place_, place_, turn_).number, marked_);
  stage_ = Stage::kShare;
  next_ = 0;
  return true;
}

bool Rails::go_across(executor::HostMachine& machine, bool alike) {
  const std::uint32_t round = round_;
  if (plan_.pattern == Pattern::kDoubling) double_up(machine);
  if (!alike || waiting_for() >= 0) return round_ != round;
  if (plan_.shares) {
    add_share(machine);
    return true;
  }
  const RailRoom::Block shown = room_.block(place_, place_, turn_);
  std::byte* const output = own_output();
  void* const both[] = {output, shown.bytes};
  if (plan_.pattern == Pattern::kDoubling) {
    add_pair(round_, both, call_.divisor, machine);
  } else if (gets_sum()) {
    machine.load_bytes(output, shown.bytes, own_.bytes);
  } else {
    add_hosts(both, machine);
  }
  executor::store_release(shown.number, marked_);
  if (sums_for_all())
    for (const Share& share : shares_in_) send(share.host, FarInputs::kSumOfAll, shown.bytes);
  stage_ = Stage::kShare;
  next_ = 0;
  return true;
}

bool Rails::take_results(executor::HostMachine& machine) {
  bool moved = false;
  for (; next_ < room_.ranks(); ++next_) {
    const Part its = part(next_);
    if (next_ == place_ || its.bytes == 0) continue;
    const std::byte* const result = found(next_, next_);
    if (result == nullptr) return moved;
    machine.load_bytes(static_cast<std::byte*>(call_.output) + its.first, result, its.bytes);
    moved = true;
  }
  stage_ = Stage::kOver;
  return true;
}

int Rails::waiting_for() const {
  switch (stage_) {
    case Stage::kHost:
    case Stage::kShare: return hosts_[index(host_)][index(std::min(next_, room_.ranks() - 1))];
    case Stage::kSums: return rank_on(std::min(next_, static_cast<int>(hosts_.size()) - 1));
    case Stage::kAcross: break;
    case Stage::kOver: return -1;
  }
  if (gets_sum()) return far(FarInputs::kSumOfAll) == nullptr ? rank_on(routes_.hub()) : -1;
  const int missing = missing_host();
  return missing == LineRoutes::kNone ? -1 : rank_on(missing);
}

}  // namespace tutti::comm
