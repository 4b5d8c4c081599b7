#include "algorithm/host_rails.h"

#include "base/assert.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>

namespace tutti::algorithm {

namespace {

/// More rails cut data finer than links differ.
constexpr std::int64_t kRailsMax = 1024;

}  // namespace

bool HostRails::by_block(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter;
}

HostRails::HostRails(Collective collective, const Groups& groups, const Groups& carriers, int units)
    : groups_(groups),
      carriers_(carriers.empty() ? groups : carriers),
      by_block_(by_block(collective)),
      row_units_(units) {
  TUTTI_ASSERT(!groups_.empty() && carriers_.size() == groups_.size());
  std::int64_t common = 1;
  std::size_t most = 1;
  std::size_t ranks = 0;
  for (std::size_t host = 0; host < groups_.size(); ++host) {
    TUTTI_ASSERT(!groups_[host].empty() && !carriers_[host].empty());
    ranks += groups_[host].size();
    most = std::max(most, std::max(by_block_ ? groups_[host].size() : 1, carriers_[host].size()));
    if (common > kRailsMax) continue;
    common = std::lcm(common, static_cast<std::int64_t>(carriers_[host].size()));
    if (by_block_) common = std::lcm(common, static_cast<std::int64_t>(groups_[host].size()));
  }
  cuts_blocks_ = common <= kRailsMax;
  rails_in_all_ = cuts_blocks_ ? static_cast<int>(common) : static_cast<int>(most);

  units_in_all_ = count_units();

  host_of_.assign(ranks, -1);
  place_of_.assign(ranks, -1);
  for (int host = 0; host < hosts(); ++host) {
    for (int place = 0; place < size(host); ++place) {
      const std::size_t rank = index(group(host)[index(place)]);
      TUTTI_ASSERT(rank < ranks && host_of_[rank] < 0);  // every rank once
      host_of_[rank] = host;
      place_of_[rank] = place;
    }
  }
  for (int rail = 0; rail < rails_in_all_; ++rail) {
    if (!rails_.empty() && continues(rails_.back(), rail)) {
      ++rails_.back().count;
    } else {
      rails_.push_back({rail, 1, 0, owners(rail)});
    }
  }
  assign_passes();
}

int HostRails::owner(int host, int rail) const {
  const std::vector<int>& own = carriers_[index(host)];
  return own[static_cast<std::size_t>(std::int64_t{rail} * static_cast<std::int64_t>(own.size()) / rails_in_all_)];
}

std::vector<int> HostRails::owners(int rail) const {
  std::vector<int> all;
  for (int host = 0; host < hosts(); ++host) all.push_back(owner(host, rail));
  return all;
}

bool HostRails::continues(const Rail& rail, int next) const {
  if (by_block_ && !cuts_blocks_) return false;
  for (int host = 0; host < hosts(); ++host) {
    if (owner(host, next) != rail.owners[index(host)]) return false;
    if (by_block_ && home({next, 1, 0, {}}, host) != home(rail, host)) return false;
  }
  return true;
}

/// The first pass in which none of its owners has another rail.
void HostRails::assign_passes() {
  std::vector<std::set<int>> busy;
  for (Rail& rail : rails_) {
    const auto is_free = [&](const std::set<int>& pass) {
      return std::ranges::none_of(rail.owners, [&](int owner) { return pass.contains(owner); });
    };
    const auto found = std::ranges::find_if(busy, is_free);
    rail.pass = static_cast<int>(found - busy.begin());
    if (found == busy.end()) busy.emplace_back();
    busy[index(rail.pass)].insert(rail.owners.begin(), rail.owners.end());
  }
  passes_ = static_cast<int>(busy.size());
}

int HostRails::count_units() const {
  if (!by_block_) return rails_in_all_ * row_units_;
  int units = 1;
  for (int host = 0; cuts_blocks_ && host < hosts(); ++host) units = std::lcm(units, rails_in_all_ / size(host));
  return units;
}

schedule::Span HostRails::units(const Rail& rail, int chunk, std::uint32_t unit, std::uint32_t width) const {
  const std::uint32_t first = index(chunk) * index(units_in_all()) + index(rail.first) * index(row_units_);
  return {0, first + unit * index(rail.count), width * index(rail.count)};
}

int HostRails::home(const Rail& rail, int host) const {
  return group(host)[static_cast<std::size_t>(std::int64_t{rail.first} * size(host) / rails_in_all_)];
}

schedule::Span HostRails::part(const Rail& rail, int host) const {
  if (!cuts_blocks_) {
    // The first of the rails that the block may be on.
    const bool first = rail.first == 0 || home({rail.first - 1, 1, 0, {}}, host) != home(rail, host);
    return {0, 0, first ? 1u : 0u};
  }
  const int parts = rails_in_all_ / size(host);
  const int width = units_in_all() / parts;
  return {0, index(rail.first % parts * width), index(rail.count * width)};
}

int HostRails::carrier_towards(int host, int rank) const {
  const std::vector<int>& own = carriers_[index(host)];
  const auto place = static_cast<std::size_t>(place_of(rank));
  return own[place * own.size() / groups_[index(host_of(rank))].size()];
}

}  // namespace tutti::algorithm
